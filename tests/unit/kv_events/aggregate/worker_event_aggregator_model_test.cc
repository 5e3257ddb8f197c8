// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/aggregate/worker_event_aggregator.h"

namespace kvwire {
namespace {

using Key = std::tuple<std::uint32_t, std::string, std::uint64_t>;  // group, medium, hash
using Contents = std::map<Key, TokenId>;                            // a block's content is one token
constexpr std::uint64_t kHashes = 24;

// What a worker is told to say, as a value that can wait in a queue.
struct Saying {
  enum class Kind : std::uint8_t { kStore, kRemove, kClear, kLost };
  Kind kind = Kind::kStore;
  std::uint32_t group = 0;
  std::string medium;
  std::vector<std::uint64_t> hashes;
  TokenId content = 0;

  KVEventBatch Batch() const {
    std::vector<BlockHash> blocks;
    for (const std::uint64_t hash : hashes) blocks.push_back(BlockHash::FromUint64(hash));
    KVEventBatch batch;
    if (kind == Kind::kClear) {
      batch.Add(AllBlocksCleared{});
    } else if (kind == Kind::kStore) {
      const std::vector<TokenId> tokens(hashes.size(), content);
      BlockStored stored;
      stored.block_hashes = blocks;
      stored.token_ids = tokens;
      stored.block_size = 1;
      stored.medium = medium;
      stored.group_idx = group;
      if (hashes[0] != 0) stored.parent_block_hash = BlockHash::FromUint64(hashes[0] - 1);
      batch.Add(stored);
    } else {
      BlockRemoved removed;
      removed.block_hashes = blocks;
      removed.medium = medium;
      removed.group_idx = group;
      batch.Add(removed);
    }
    return batch;
  }
};

// A worker as the model sees it: what it said that arrived, and when it said so.
struct ModelWorker {
  std::deque<Saying> under_way;
  Contents holds;
  std::map<Key, std::uint64_t> said;

  void Apply(const Saying& saying, std::uint64_t* now) {
    if (saying.kind == Saying::Kind::kClear || saying.kind == Saying::Kind::kLost) {
      holds.clear();
      return;
    }
    for (const std::uint64_t hash : saying.hashes) {
      const Key key(saying.group, saying.medium, hash);
      if (saying.kind == Saying::Kind::kRemove) {
        holds.erase(key);
        continue;
      }
      const auto held = holds.find(key);
      if (held != holds.end() && held->second == saying.content) continue;
      holds[key] = saying.content;
      said[key] = ++*now;
    }
  }
};

// Who listens: believes every event, and insists that a store is of what it lacks and a removal of what it has.
class Listener {
 public:
  void operator()(const BlockStored& stored) {
    for (std::size_t i = 0; i < stored.block_hashes.size(); ++i) {
      const Key key(*stored.group_idx, std::string(*stored.medium), stored.block_hashes[i].Low64());
      REQUIRE(holds.emplace(key, stored.token_ids[i]).second);
      stored_now.push_back(key);
    }
  }
  void operator()(const BlockRemoved& removed) {
    for (const BlockHash& hash : removed.block_hashes) {
      REQUIRE(holds.erase(Key(*removed.group_idx, std::string(*removed.medium), hash.Low64())) == 1);
    }
  }
  void operator()(const AllBlocksCleared&) { holds.clear(); }

  Contents holds;
  std::vector<Key> stored_now;
};

class Model {
 public:
  Model(std::uint64_t seed, WorkerEventAggregatorOptions options) : random_(seed), options_(std::move(options)) {
    workers_.resize(options_.num_workers);
    aggregator_ = std::move(*WorkerEventAggregator::Create(options_));
  }

  // One worker says something, which may wait; some of what waits arrives; now and then the events are taken.
  void Operate() {
    const auto worker = static_cast<std::uint32_t>(Below(workers_.size()));
    workers_[worker].under_way.push_back(Invent());
    while (Below(3) != 0) Arrive(static_cast<std::uint32_t>(Below(workers_.size())));
    if (Below(4) == 0) Take();
  }

  // What enough workers hold without contradiction.
  Contents Complete() const {
    Contents complete;
    for (std::uint32_t group = 0; group < 2; ++group) {
      for (const char* medium : {"CPU", "STORAGE"}) {
        for (std::uint64_t hash = 0; hash < kHashes; ++hash) {
          const Key key(group, medium, hash);
          std::size_t holders = 0;
          std::set<TokenId> contents;
          for (const ModelWorker& worker : workers_) {
            const auto held = worker.holds.find(key);
            if (held == worker.holds.end()) continue;
            ++holders;
            contents.insert(held->second);
          }
          if (contents.size() == 1 && holders * Factor(group) >= workers_.size()) complete[key] = *contents.begin();
        }
      }
    }
    return complete;
  }

  const Listener& listener() const { return listener_; }
  const WorkerEventAggregator& aggregator() const { return *aggregator_; }
  std::size_t largest() const { return largest_; }

 private:
  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }

  std::uint32_t Factor(std::uint32_t group) const {
    for (const GroupReplication& replication : options_.group_replication) {
      if (replication.group == group) return replication.factor;
    }
    return options_.replication;
  }

  bool Bounded() const { return options_.max_pending_blocks < kHashes; }

  Saying Invent() {
    Saying saying;
    const std::uint64_t dice = Below(1000);
    saying.kind = dice < 700   ? Saying::Kind::kStore
                  : dice < 985 ? Saying::Kind::kRemove
                  : dice < 995 ? Saying::Kind::kClear
                               : Saying::Kind::kLost;
    saying.group = static_cast<std::uint32_t>(Below(2));
    saying.medium = Below(3) == 0 ? "STORAGE" : "CPU";
    saying.content = Below(50) == 0 ? 1 : 0;
    const std::uint64_t first = Below(kHashes);
    const std::uint64_t last = std::min(first + Below(4), kHashes - 1);
    for (std::uint64_t hash = first; hash <= last; ++hash) saying.hashes.push_back(hash);
    return saying;
  }

  void Arrive(std::uint32_t index) {
    ModelWorker& worker = workers_[index];
    if (worker.under_way.empty()) return;
    const Saying saying = std::move(worker.under_way.front());
    worker.under_way.pop_front();
    worker.Apply(saying, &now_);
    if (saying.kind == Saying::Kind::kLost) {
      REQUIRE(aggregator_->LoseWorker(index).has_value());
    } else {
      REQUIRE(aggregator_->Add(index, saying.Batch()).has_value());
    }
  }

  void Take() {
    listener_.stored_now.clear();
    aggregator_->Take().Visit(listener_);
    const Contents complete = Complete();
    largest_ = std::max(largest_, listener_.holds.size());
    if (Bounded()) {
      // What was dropped is not announced; what is announced is true.
      REQUIRE(std::includes(complete.begin(), complete.end(), listener_.holds.begin(), listener_.holds.end()));
      REQUIRE(aggregator_->stats().pending <= options_.max_pending_blocks);
    } else {
      REQUIRE(listener_.holds == complete);
    }
    REQUIRE(aggregator_->stats().available == listener_.holds.size());
    REQUIRE(aggregator_->Take().empty());
    CheckOrder();
  }

  // Where every worker is needed, the first one is worker 0.
  void CheckOrder() const {
    std::uint64_t last = 0;
    for (const Key& key : listener_.stored_now) {
      if (Factor(std::get<0>(key)) != 1) return;
      const std::uint64_t said = workers_[0].said.at(key);
      if (!Bounded()) REQUIRE(said > last);
      last = said;
    }
  }

  std::mt19937_64 random_;
  const WorkerEventAggregatorOptions options_;
  std::vector<ModelWorker> workers_;
  std::unique_ptr<WorkerEventAggregator> aggregator_;
  Listener listener_;
  std::uint64_t now_ = 0;
  std::size_t largest_ = 0;
};

WorkerEventAggregatorOptions OptionsFor(std::uint32_t num_workers, std::uint32_t replication) {
  WorkerEventAggregatorOptions options;
  options.num_workers = num_workers;
  options.replication = replication;
  return options;
}

TEST_CASE("G1 G2 G3: at every take of a random run the replayed stream is what enough workers hold") {
  struct Shape {
    std::uint32_t num_workers;
    std::uint32_t replication;
  };
  const std::vector<Shape> shapes = {{1, 1}, {2, 1}, {2, 2}, {3, 1}, {3, 3}, {4, 1}, {4, 2}, {4, 4}};
  std::uint64_t seed = 1;
  for (const Shape& shape : shapes) {
    CAPTURE(shape.num_workers);
    CAPTURE(shape.replication);
    for (const WorkerClears clears : {WorkerClears::kPublish, WorkerClears::kAsRemovals}) {
      WorkerEventAggregatorOptions options = OptionsFor(shape.num_workers, shape.replication);
      options.clears = clears;
      Model model(seed++, std::move(options));
      for (int i = 0; i < 7000; ++i) model.Operate();
      // The run was not vacuous.
      const WorkerEventStats stats = model.aggregator().stats();
      CHECK(model.largest() >= 8);
      CHECK(stats.removed > 50);
      CHECK(stats.duplicates > 50);
      if (shape.num_workers > 1) CHECK(stats.disagreements > 50);
      if (clears == WorkerClears::kPublish) CHECK(stats.cleared > 5);
    }
  }
}

TEST_CASE("G2: the same holds when groups are replicated differently") {
  WorkerEventAggregatorOptions options = OptionsFor(4, 1);
  options.group_replication = {{1, 2}};
  Model model(100, std::move(options));
  for (int i = 0; i < 10000; ++i) model.Operate();
  CHECK(model.largest() >= 8);
}

TEST_CASE("A bound on pending blocks loses announcements, never the truth of one") {
  WorkerEventAggregatorOptions options = OptionsFor(3, 1);
  options.max_pending_blocks = 20;
  Model model(200, std::move(options));
  for (int i = 0; i < 10000; ++i) model.Operate();
  CHECK(model.aggregator().stats().dropped > 100);
  CHECK(model.aggregator().stats().published > 100);
}

}  // namespace
}  // namespace kvwire
