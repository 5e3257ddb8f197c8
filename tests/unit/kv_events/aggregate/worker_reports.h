// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/aggregate/worker_event_aggregator.h"
#include "tests/unit/kv_events/event_builders.h"

namespace kvwire {

// What a worker reports in one step: blocks of the CPU tier, group unset, two tokens per block derived from the hash.
class Report {
 public:
  Report& Store(std::initializer_list<std::uint64_t> hashes, std::optional<std::uint64_t> parent = std::nullopt,
                std::optional<std::uint32_t> group = std::nullopt) {
    const StoredEvent event(hashes, parent);
    BlockStored stored = event.view();
    stored.medium = kMediumCpu;
    stored.group_idx = group;
    batch.Add(stored);
    return *this;
  }
  Report& Store(const BlockStored& stored) {
    batch.Add(stored);
    return *this;
  }
  Report& Remove(std::initializer_list<std::uint64_t> hashes, std::optional<std::uint32_t> group = std::nullopt) {
    const RemovedEvent event(hashes);
    BlockRemoved removed = event.view();
    removed.medium = kMediumCpu;
    removed.group_idx = group;
    batch.Add(removed);
    return *this;
  }
  Report& Clear() {
    batch.Add(AllBlocksCleared{});
    return *this;
  }

  KVEventBatch batch;
};

// "S1,2(0) R1 C": stores with their parent, removals, clears; a group other than the first as "g1:".
inline std::string Text(const KVEventBatch& batch) {
  struct Visitor {
    std::string text;
    void Start(char kind, const std::optional<std::uint32_t>& group) {
      if (!text.empty()) text += ' ';
      if (group.value_or(0) != 0) text += "g" + std::to_string(*group) + ":";
      text += kind;
    }
    void List(std::span<const BlockHash> hashes) {
      for (std::size_t i = 0; i < hashes.size(); ++i) text += (i != 0 ? "," : "") + std::to_string(hashes[i].Low64());
    }
    void operator()(const BlockStored& stored) {
      Start('S', stored.group_idx);
      List(stored.block_hashes);
      if (stored.parent_block_hash) text += "(" + std::to_string(stored.parent_block_hash->Low64()) + ")";
    }
    void operator()(const BlockRemoved& removed) {
      Start('R', removed.group_idx);
      List(removed.block_hashes);
    }
    void operator()(const AllBlocksCleared&) { Start('C', std::nullopt); }
  };
  Visitor visitor;
  batch.Visit(visitor);
  return visitor.text;
}

// An aggregator and what it logged.
struct Workers {
  explicit Workers(std::uint32_t num_workers, std::uint32_t replication = 1)
      : Workers(OptionsFor(num_workers, replication)) {}
  explicit Workers(WorkerEventAggregatorOptions options) {
    options.log = [this](LogLevel level, std::string_view text) { logged.emplace_back(level, text); };
    auto created = WorkerEventAggregator::Create(std::move(options));
    REQUIRE(created.has_value());
    aggregator = std::move(*created);
  }

  static WorkerEventAggregatorOptions OptionsFor(std::uint32_t num_workers, std::uint32_t replication = 1) {
    WorkerEventAggregatorOptions options;
    options.num_workers = num_workers;
    options.replication = replication;
    return options;
  }

  void Add(std::uint32_t worker, const Report& report) {
    const Status added = aggregator->Add(worker, report.batch);
    REQUIRE_MESSAGE(added.has_value(), added.error().message);
  }
  std::string Take() { return Text(aggregator->Take()); }
  WorkerEventStats stats() const { return aggregator->stats(); }

  std::vector<std::pair<LogLevel, std::string>> logged;
  std::unique_ptr<WorkerEventAggregator> aggregator;
};

}  // namespace kvwire
