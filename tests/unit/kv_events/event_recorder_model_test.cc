// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/event_recorder.h"

namespace kvwire {
namespace {

using Key = std::tuple<std::uint32_t, std::string, std::uint64_t>;  // group, medium, hash
using Residents = std::set<Key>;

// An engine's pool as far as events are concerned: how many copies of each block it has. The parent of a hash is a
// function of the hash, as in a prefix tree.
class Engine final : public StateSource {
 public:
  static std::optional<BlockHash> ParentOf(std::uint64_t hash) {
    if (hash % 4 == 0) return std::nullopt;
    return BlockHash::FromUint64(hash - 1);
  }

  void Walk(const std::function<void(const ResidentBlock&)>& visit) const override {
    for (const auto& [key, count] : copies) {
      ResidentBlock block;
      block.group = std::get<0>(key);
      block.medium = std::get<1>(key);
      block.hash = BlockHash::FromUint64(std::get<2>(key));
      block.parent = ParentOf(std::get<2>(key));
      visit(block);
    }
  }

  Residents residents() const {
    Residents keys;
    for (const auto& [key, count] : copies) keys.insert(key);
    return keys;
  }

  StateDigest digest() const {
    StateDigest digest;
    for (const auto& [key, count] : copies) digest.Add(std::get<0>(key), std::get<1>(key), std::get<2>(key));
    return digest;
  }

  std::map<Key, int> copies;
};

// The two kinds of consumers: one keeps a set, one counts and forgets at zero.
class Consumers {
 public:
  void Apply(const KVEventBatch& batch) { batch.Visit(*this); }

  void operator()(const BlockStored& stored) {
    for (const BlockHash& hash : stored.block_hashes) {
      const Key key(stored.group_idx.value_or(0), std::string(stored.medium.value_or("GPU")), hash.Low64());
      set.insert(key);
      ++counts[key];
    }
  }
  void operator()(const BlockRemoved& removed) {
    for (const BlockHash& hash : removed.block_hashes) {
      const Key key(removed.group_idx.value_or(0), std::string(removed.medium.value_or("GPU")), hash.Low64());
      set.erase(key);
      const auto found = counts.find(key);
      if (found != counts.end() && --found->second == 0) counts.erase(found);
    }
  }
  void operator()(const AllBlocksCleared&) {
    set.clear();
    counts.clear();
  }

  Residents counted() const {
    Residents keys;
    for (const auto& [key, count] : counts) keys.insert(key);
    return keys;
  }

  Residents set;
  std::map<Key, int> counts;
};

class Model {
 public:
  explicit Model(std::uint64_t seed) : random_(seed), recorder_(EventRecorder::Options{}, &publisher_) {}

  // One engine step: a few operations, then everything must agree.
  void Step() {
    for (std::uint64_t i = Below(5); i > 0; --i) Operate();
    recorder_.EndStep();
    for (const KVEventBatch& batch : publisher_.TakeBatches()) consumers_.Apply(batch);
    const Residents truth = engine_.residents();
    REQUIRE(consumers_.set == truth);
    REQUIRE(consumers_.counted() == truth);
    REQUIRE(recorder_.digest() == engine_.digest());
    const auto divergence = recorder_.Audit(engine_);
    REQUIRE_MESSAGE(!divergence.has_value(), divergence->message);
  }

  std::size_t largest() const { return largest_; }

 private:
  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }

  void Operate() {
    const std::uint64_t dice = Below(100);
    group_ = static_cast<std::uint32_t>(Below(2));
    medium_ = Below(3) == 0 ? kMediumCpu : kMediumGpu;
    if (dice < 45) {
      Announce(/*copies=*/1);
    } else if (dice < 60) {
      Announce(/*copies=*/0);
    } else if (dice < 99) {
      Remove();
    } else {
      engine_.copies.clear();
      recorder_.Clear();
    }
    largest_ = std::max(largest_, engine_.copies.size());
  }

  // A run of up to four blocks of one prefix, stored or, with 0 copies, reported again as far as resident.
  void Announce(int copies) {
    const std::uint64_t first = Below(32);
    const std::uint64_t last = std::min(first + Below(4), first | 3);
    std::vector<BlockHash> hashes;
    for (std::uint64_t hash = first; hash <= last; ++hash) {
      const Key key(group_, std::string(medium_), hash);
      if (copies == 0 && !engine_.copies.contains(key)) break;
      if (copies > 0) engine_.copies[key] += copies;
      hashes.push_back(BlockHash::FromUint64(hash));
    }
    BlockStored stored;
    stored.block_hashes = hashes;
    stored.parent_block_hash = Engine::ParentOf(first);
    stored.medium = medium_;
    if (group_ != 0) stored.group_idx = group_;
    if (copies > 0) {
      recorder_.Store(stored);
    } else {
      recorder_.Reuse(stored);
    }
  }

  // Up to four copies in one call, now and then of a block that is not held.
  void Remove() {
    std::vector<BlockHash> hashes;
    for (std::uint64_t i = Below(4) + 1; i > 0; --i) {
      const std::uint64_t hash = Below(32);
      const auto found = engine_.copies.find(Key(group_, std::string(medium_), hash));
      if (found == engine_.copies.end() && Below(10) != 0) continue;
      if (found != engine_.copies.end() && --found->second == 0) engine_.copies.erase(found);
      hashes.push_back(BlockHash::FromUint64(hash));
    }
    BlockRemoved removed;
    removed.block_hashes = hashes;
    removed.medium = medium_;
    if (group_ != 0) removed.group_idx = group_;
    recorder_.Remove(removed);
  }

  std::mt19937_64 random_;
  std::uint32_t group_ = 0;
  std::string_view medium_ = kMediumGpu;
  std::size_t largest_ = 0;
  Engine engine_;
  Consumers consumers_;
  CollectingEventPublisher publisher_;
  EventRecorder recorder_;
};

TEST_CASE("D14: after every step of a random engine, sets, counts, digest and audit equal the pool") {
  for (const std::uint64_t seed : {1u, 2u, 3u, 4u}) {
    CAPTURE(seed);
    Model model(seed);
    for (int step = 0; step < 3000; ++step) {
      CAPTURE(step);
      model.Step();
    }
    // The run was not vacuous.
    CHECK(model.largest() > 40);
  }
}

}  // namespace
}  // namespace kvwire
