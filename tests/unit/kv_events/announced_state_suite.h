// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/announced_state.h"
#include "kv_events/batch.h"
#include "kv_events/digest.h"
#include "kv_events/event_publisher.h"
#include "kv_events/state_publisher.h"

// What holds of every source of announced blocks, whoever owns them: random changes among pieces of walks, losses and
// clears, and consumers that must agree with the source's digest at every batch.
namespace kvwire::test {

// How often the suite runs with other chances, and how many losses the longest run has; less where a step costs more.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr std::uint64_t kSuiteSeeds = 1;
inline constexpr std::size_t kSuiteOverflows = 100;
#else
inline constexpr std::uint64_t kSuiteSeeds = 4;
inline constexpr std::size_t kSuiteOverflows = 1000;
#endif

// A publisher whose queue and wishes the test holds in its hands. It keeps what it accepted, in order.
class HandPublisher final : public EventPublisher {
 public:
  struct Entry {
    std::optional<StateChunk> chunk;  // nothing: a batch
    KVEventBatch batch;
    bool lost = false;  // a number that was burnt
  };

  PublishResult Publish(KVEventBatch&& batch) noexcept override {
    const PublishResult result = refuse ? refuse() : PublishResult::kAccepted;
    log.push_back({std::nullopt, std::move(batch), result != PublishResult::kAccepted});
    return result;
  }
  PublishResult PublishChunk(StateChunk&& chunk) noexcept override {
    const PublishResult result = refuse_chunk ? refuse_chunk() : PublishResult::kAccepted;
    if (result == PublishResult::kAccepted) log.push_back({std::move(chunk), {}, false});
    return result;
  }
  bool HasRoom() const noexcept override { return has_room; }
  StateWants state_wants() const noexcept override { return wants; }
  bool resyncs_after_loss() const noexcept override { return resyncs; }
  using EventPublisher::Close;
  void Close(std::chrono::milliseconds /*deadline*/) noexcept override {}
  PublisherStats stats() const noexcept override { return {}; }

  std::vector<Entry> log;
  StateWants wants;
  bool has_room = true;
  bool resyncs = true;
  std::function<PublishResult()> refuse;
  std::function<PublishResult()> refuse_chunk;
};

// A block of a stream.
using StreamKey = std::tuple<std::uint32_t, std::string, BlockHash>;  // group, medium, hash

inline StreamKey KeyOf(const std::optional<std::uint32_t>& group, const std::optional<std::string_view>& medium,
                       const BlockHash& hash) {
  return {group.value_or(0), CanonicalMedium(medium.value_or("")), hash};
}

// Counts announcements, and keeps the set besides. A chunk's blocks get the counts that they have in the chunk.
class ModelConsumer {
 public:
  void Apply(const KVEventBatch& batch) {
    batch.Visit([this](const auto& event) { Take(event); });
  }

  void ApplyChunk(const KVEventBatch& blocks) {
    std::map<StreamKey, std::uint32_t> counts;
    blocks.Visit([&counts](const auto& event) {
      if constexpr (std::is_same_v<std::decay_t<decltype(event)>, BlockStored>) {
        for (const BlockHash& hash : event.block_hashes) ++counts[KeyOf(event.group_idx, event.medium, hash)];
      } else {
        FAIL("a chunk has another event than BlockStored");
      }
    });
    for (const auto& [key, count] : counts) {
      counts_[key] = count;
      set_.insert(key);
    }
  }

  StateDigest counted() const {
    StateDigest digest;
    for (const auto& [key, count] : counts_) digest.Add(std::get<0>(key), std::get<1>(key), std::get<2>(key).Low64());
    return digest;
  }
  StateDigest set() const {
    StateDigest digest;
    for (const StreamKey& key : set_) digest.Add(std::get<0>(key), std::get<1>(key), std::get<2>(key).Low64());
    return digest;
  }
  const std::map<StreamKey, std::uint32_t>& counts() const { return counts_; }
  bool Holds(const StreamKey& key) const { return counts_.contains(key); }
  // Removals of blocks that it does not hold.
  std::size_t num_strays() const { return num_strays_; }

 private:
  void Take(const BlockStored& stored) {
    for (const BlockHash& hash : stored.block_hashes) {
      const StreamKey key = KeyOf(stored.group_idx, stored.medium, hash);
      ++counts_[key];
      set_.insert(key);
    }
  }
  void Take(const BlockRemoved& removed) {
    for (const BlockHash& hash : removed.block_hashes) {
      const StreamKey key = KeyOf(removed.group_idx, removed.medium, hash);
      set_.erase(key);
      const auto found = counts_.find(key);
      if (found == counts_.end()) {
        ++num_strays_;
      } else if (--found->second == 0) {
        counts_.erase(found);
      }
    }
  }
  void Take(const AllBlocksCleared&) {
    counts_.clear();
    set_.clear();
  }

  std::map<StreamKey, std::uint32_t> counts_;
  std::set<StreamKey> set_;
  std::size_t num_strays_ = 0;
};

// A source that has a StatePublisher of its own: its changes publish by themselves.
class OwnStream {
 public:
  virtual ~OwnStream() = default;

  virtual void DoStateWork() = 0;
  virtual bool HasStateWork() const = 0;
  virtual bool IsHealing() const = 0;
  virtual StatePublisherStats stats() const = 0;
};

// An owner of blocks, as the suite drives it.
class DrivenSource {
 public:
  virtual ~DrivenSource() = default;

  virtual OwnStream* own_stream() { return nullptr; }
  // Not asked of one with a stream of its own, as TakeEvents().
  virtual AnnouncedState* state() { return nullptr; }
  virtual const StateDigest& digest() { return state()->digest(); }
  // Some change; it may record events, or none.
  virtual void Operate(std::mt19937_64* random) = 0;
  // Every block is gone, and the source says so.
  virtual void Clear() = 0;
  virtual KVEventBatch TakeEvents() { return {}; }
  // How often the block was announced and not removed.
  virtual std::uint32_t Announced(const StreamKey& key) const = 0;
  // Whether it is there, announced or not.
  virtual bool IsResident(const StreamKey& key) const = 0;
  // Whether events, too, tell of a parent that is there before its children.
  virtual bool EventsTellParentsFirst() const { return true; }
  // Whether consumers that keep a set agree with those that count.
  virtual bool SetsAgree() const { return true; }
};

struct SuiteOptions {
  std::uint64_t seed = 1;
  std::size_t steps = 400;
  std::size_t losses = 0;  // goes on until there were so many; 0: none
  bool snapshots = false;  // somebody asks for one now and then
  bool clears = false;     // now and then
  std::size_t blocks_per_chunk = 3;
};

// A StatePublisher over the source's state, or the source's own one.
class SuiteStream {
 public:
  SuiteStream(DrivenSource* source, HandPublisher* publisher, std::size_t blocks_per_chunk)
      : source_(*source), own_(source->own_stream()) {
    StatePublisher::Options options;
    options.blocks_per_chunk = blocks_per_chunk;
    if (own_ == nullptr) stream_.emplace(options, publisher, source->state());
  }

  // Whether there was something.
  bool Publish() {
    if (own_ != nullptr) {
      own_->DoStateWork();
      return false;
    }
    KVEventBatch recorded = source_.TakeEvents();
    const bool some = !recorded.empty();
    (void)stream_->Publish(std::move(recorded));
    return some;
  }
  bool silent() const { return own_ != nullptr ? own_->IsHealing() : stream_->silent(); }
  bool HasStateWork() const { return own_ != nullptr ? own_->HasStateWork() : stream_->HasStateWork(); }
  StatePublisherStats stats() const { return own_ != nullptr ? own_->stats() : stream_->stats(); }
  bool is_own() const { return own_ != nullptr; }

 private:
  DrivenSource& source_;
  OwnStream* const own_;
  std::optional<StatePublisher> stream_;
};

class SuiteRun {
 public:
  SuiteRun(DrivenSource* source, HandPublisher* publisher, const SuiteOptions& options)
      : options_(options),
        random_(options.seed),
        source_(*source),
        publisher_(*publisher),
        stream_(source, publisher, options.blocks_per_chunk) {
    if (options.losses == 0) return;
    const auto chance = [this] { return Below(4) == 0 ? PublishResult::kDroppedQueueFull : PublishResult::kAccepted; };
    publisher_.refuse = publisher_.refuse_chunk = chance;
  }

  void Run() {
    for (std::size_t step = 0; step < options_.steps || stream_.stats().losses < options_.losses; ++step) {
      for (std::uint64_t i = Below(4); i > 0; --i) Change([this] { source_.Operate(&random_); });
      if (options_.clears && Below(25) == 0) Change([this] { source_.Clear(); });
      if (options_.snapshots && Below(10) == 0 && publisher_.wants.walks < stream_.stats().walks + 2) {
        ++publisher_.wants.walks;
      }
      publisher_.wants.chunks = stream_.stats().chunks + Below(3);
      if (options_.losses > 0) publisher_.has_room = Below(5) > 0;
      if (options_.losses > 0 && Below(40) == 0) ++publisher_.wants.resyncs;
      Publish();
    }
    Settle();
  }

  StatePublisherStats stats() const { return stream_.stats(); }
  std::size_t num_snapshots() const { return num_snapshots_; }

 private:
  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }

  template <class F>
  void Change(F change) {
    change();
    if (stream_.is_own()) TakeLog(0);
  }

  void Publish() {
    const bool silent = stream_.silent() || publisher_.wants.resyncs > resyncs_;
    resyncs_ = publisher_.wants.resyncs;
    const bool recorded = stream_.Publish();
    TakeLog(recorded && !silent ? 1 : 0);
  }

  // The first `num_live` batches are no pieces of walks.
  void TakeLog(std::size_t num_live) {
    for (const HandPublisher::Entry& entry : std::exchange(publisher_.log, {})) {
      if (entry.chunk) {
        TakeChunk(*entry.chunk);
      } else {
        TakeBatch(entry, num_live == 0);
        if (num_live > 0) --num_live;
      }
    }
    CheckPresent();
  }

  // Nothing is lost any more, and somebody asks for a last snapshot.
  void Settle() {
    publisher_.refuse = publisher_.refuse_chunk = nullptr;
    publisher_.has_room = true;
    publisher_.wants.chunks += 1000000;
    if (options_.snapshots) ++publisher_.wants.walks;
    for (int i = 0; i < 100000 && stream_.HasStateWork(); ++i) Publish();
    REQUIRE_FALSE(stream_.HasStateWork());
    Publish();
    if (!live_synchronised_) return;  // a loss that was not to be healed
    CheckCounts(live_);
    if (options_.snapshots) {
      REQUIRE(joined_complete_);
      CheckCounts(joined_);
    }
  }

  void TakeBatch(const HandPublisher::Entry& entry, bool is_walk) {
    if (entry.lost) {
      live_synchronised_ = joining_ = joined_complete_ = false;
      return;
    }
    const KVEventBatch& batch = entry.batch;
    REQUIRE(batch.has_digest);
    REQUIRE(batch.ts > 0);
    const bool clears = !batch.empty() && std::holds_alternative<AllBlocksCleared>(batch.at(0));
    if (clears) {
      live_synchronised_ = joined_complete_ = true;
      joining_ = true;
    }
    if (live_synchronised_) {
      // Of a source's own stream it is not known what is a piece of a walk.
      if (source_.EventsTellParentsFirst() || (is_walk && (clears || !stream_.is_own()))) CheckParents(batch, live_);
      live_.Apply(batch);
      Compare(live_, batch.digest);
      REQUIRE(live_.num_strays() == 0);
    }
    if (!joining_) return;
    joined_.Apply(batch);
    if (joined_complete_) Compare(joined_, batch.digest);
  }

  void TakeChunk(const StateChunk& chunk) {
    REQUIRE(chunk.blocks.has_digest);
    REQUIRE(chunk.walk == num_walks_ + 1);
    if (chunk.last) ++num_walks_;
    if (chunk.first) {
      joined_ = ModelConsumer();
      joining_ = true;
      joined_complete_ = false;
    }
    if (!joining_) return;
    CheckParents(chunk.blocks, joined_);
    joined_.ApplyChunk(chunk.blocks);
    if (joined_complete_ || chunk.last) Compare(joined_, chunk.blocks.digest);
    if (!chunk.last) return;
    joined_complete_ = true;
    ++num_snapshots_;
  }

  // In a walk a parent that is there comes before its children.
  void CheckParents(const KVEventBatch& batch, const ModelConsumer& before) {
    std::set<StreamKey> met;
    bool cleared = false;
    batch.Visit([&](const auto& event) {
      using Event = std::decay_t<decltype(event)>;
      if constexpr (std::is_same_v<Event, AllBlocksCleared>) cleared = true;
      if constexpr (std::is_same_v<Event, BlockStored>) {
        std::optional<BlockHash> parent = event.parent_block_hash;
        for (const BlockHash& hash : event.block_hashes) {
          if (parent) {
            const StreamKey key = KeyOf(event.group_idx, event.medium, *parent);
            const bool known = met.contains(key) || (!cleared && before.Holds(key));
            REQUIRE((known || !source_.IsResident(key)));
          }
          met.insert(KeyOf(event.group_idx, event.medium, hash));
          parent = hash;
        }
      }
    });
  }

  void Compare(const ModelConsumer& consumer, const StateDigest& digest) const {
    REQUIRE(consumer.counted().ToString() == digest.ToString());
    if (source_.SetsAgree()) REQUIRE(consumer.set().ToString() == digest.ToString());
  }

  // What was published last is the present.
  void CheckPresent() const {
    if (stream_.silent() || !live_synchronised_) return;
    Compare(live_, source_.digest());
    if (joined_complete_) Compare(joined_, source_.digest());
  }

  void CheckCounts(const ModelConsumer& consumer) const {
    for (const auto& [key, count] : consumer.counts()) {
      REQUIRE_MESSAGE(count == source_.Announced(key), std::get<1>(key), " ", std::get<2>(key).ToHex());
    }
  }

  const SuiteOptions options_;
  std::mt19937_64 random_;
  DrivenSource& source_;
  HandPublisher& publisher_;
  SuiteStream stream_;
  std::uint64_t resyncs_ = 0;
  ModelConsumer live_;  // there from the beginning
  bool live_synchronised_ = true;
  ModelConsumer joined_;  // there from a snapshot on
  bool joining_ = false;
  bool joined_complete_ = false;
  std::size_t num_snapshots_ = 0;  // of these, complete
  std::uint64_t num_walks_ = 0;
};

// Every case of the suite over fresh sources.
inline void RunAnnouncedStateSuite(const std::function<std::unique_ptr<DrivenSource>(HandPublisher*)>& make) {
  const auto run = [&make](const std::string& name, const SuiteOptions& options) {
    CAPTURE(name);
    CAPTURE(options.seed);
    HandPublisher publisher;
    const auto source = make(&publisher);
    SuiteRun suite(source.get(), &publisher, options);
    suite.Run();
    if (options.snapshots) CHECK(suite.num_snapshots() > 0);
    if (options.losses > 0) {
      CHECK(suite.stats().resyncs > 0);
      CHECK(suite.stats().renewed > 0);
      CHECK(suite.stats().losses >= options.losses);
    }
  };
  for (std::uint64_t seed = 1; seed <= kSuiteSeeds; ++seed) {
    run("events alone", {seed, 300, 0, false, true});
    run("a snapshot from an empty consumer", {seed, 400, 0, true, false});
    run("losses and resyncs", {seed, 300, 60, false, false});
    run("snapshots, losses and resyncs at once", {seed, 300, 60, true, false});
    run("clears while walks are under way", {seed, 400, 60, true, true});
    run("walks of one block a piece", {seed, 300, 30, true, true, 1});
    run("walks that fit into one piece", {seed, 300, 30, true, true, 1000});
  }
  run("many overflows", {99, 300, kSuiteOverflows, true, true, 16});
}

}  // namespace kvwire::test
