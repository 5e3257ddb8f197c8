// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "kv_events/config.h"
#include "kv_events/publish/factory.h"
#include "kv_events/subscribe/held_blocks.h"
#include "kv_events/wire/frames.h"
#include "tests/support/child_process.h"

namespace kvwire::test {

inline KVEventBatch StoreBatch(std::uint64_t hash, std::optional<std::uint64_t> parent) {
  const BlockHash block = BlockHash::FromUint64(hash);
  const std::vector<TokenId> tokens{1, 2, 3, 4};
  BlockStored stored;
  stored.block_hashes = {&block, 1};
  if (parent) stored.parent_block_hash = BlockHash::FromUint64(*parent);
  stored.token_ids = tokens;
  stored.block_size = 4;
  stored.medium = kMediumGpu;
  KVEventBatch batch;
  batch.ts = 1'700'000'000.25;
  batch.Add(stored);
  return batch;
}

inline KVEventBatch RemoveBatch(std::uint64_t hash) {
  const BlockHash block = BlockHash::FromUint64(hash);
  BlockRemoved removed;
  removed.block_hashes = {&block, 1};
  removed.medium = kMediumGpu;
  KVEventBatch batch;
  batch.ts = 1'700'000'001.5;
  batch.Add(removed);
  return batch;
}

// A publisher at addresses that the operating system chose, and the state that its stream says.
class Source {
 public:
  explicit Source(const CurveConfig& curve = {}) {
    KVEventsConfig config;
    config.kvwire.curve = curve;
    config.enable_kv_cache_events = true;
    config.endpoint = "tcp://127.0.0.1:0";
    config.replay_endpoint = "tcp://127.0.0.1:0";
    config.topic = "kv-events";
    config.kvwire.mode = SocketMode::kBind;
    auto made = CreateEventPublisher(config, PublisherOptions());
    REQUIRE(made.has_value());
    publisher_ = *std::move(made);
    info_ = *publisher_->source();
  }

  void Publish(KVEventBatch batch) {
    held_.Apply(batch);
    digests_ += fmt::format("{} {}\n", next_++, held_.digest().ToString());
    REQUIRE(publisher_->Publish(std::move(batch)) == PublishResult::kAccepted);
  }
  // A chain of blocks, one batch each.
  void PublishChain(std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      Publish(StoreBatch(first + i, i == 0 ? std::nullopt : std::optional(first + i - 1)));
    }
  }
  // Publishes until the process has printed `text`: then its subscription has arrived.
  void PublishUntil(ChildProcess* process, std::string_view text) {
    for (std::uint64_t i = 0; i < 1000 && process->output().find(text) == std::string::npos; ++i) {
      Publish(StoreBatch(1'000'000 + i, std::nullopt));
      REQUIRE(process->ReadSome(10));
    }
    REQUIRE(process->output().find(text) != std::string::npos);
  }

  std::string dump() const {
    std::string lines;
    held_.Dump([&lines](std::string_view line) { lines += std::string(line) + '\n'; });
    return lines;
  }
  const std::string& digests() const { return digests_; }
  const EventSourceInfo& info() const { return info_; }
  SequenceNumber next() const { return next_; }

 private:
  std::unique_ptr<EventPublisher> publisher_;
  EventSourceInfo info_;
  HeldBlocks held_;
  std::string digests_;
  SequenceNumber next_ = 0;
};

}  // namespace kvwire::test
