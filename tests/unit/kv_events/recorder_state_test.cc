// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/event_recorder.h"
#include "tests/unit/kv_events/announced_state_suite.h"
#include "tests/unit/kv_events/event_builders.h"

namespace kvwire {
namespace {

using test::DrivenSource;
using test::HandPublisher;
using test::OwnStream;
using test::RunAnnouncedStateSuite;
using test::StreamKey;

enum class Contents { kShadow, kHost };

// An engine of two tiers that tells a recorder what it does. A chain is 8 blocks long; a hash tells its place in it.
class DrivenRecorder final : public DrivenSource, public OwnStream {
 public:
  DrivenRecorder(Contents contents, Removals removals, EventPublisher* publisher)
      : recorder_(OptionsFor(contents, removals), publisher) {}

  OwnStream* own_stream() override { return this; }
  void DoStateWork() override { (void)recorder_.EndStep(); }
  bool HasStateWork() const override { return recorder_.HasStateWork(); }
  bool IsHealing() const override { return recorder_.is_healing(); }
  StatePublisherStats stats() const override { return recorder_.stream_stats(); }

  const StateDigest& digest() override { return recorder_.digest(); }
  std::uint32_t Announced(const StreamKey& key) const override {
    const auto& [group, medium, hash] = key;
    return recorder_.num_announced(hash, group, medium);
  }
  bool IsResident(const StreamKey& key) const override { return copies_.contains(key); }
  bool SetsAgree() const override { return removals_ == Removals::kExact; }

  void Operate(std::mt19937_64* random) override {
    medium_ = (*random)() % 3 == 0 ? kMediumCpu : kMediumGpu;
    const std::uint64_t first = 8 * ((*random)() % 6) + (*random)() % 5;
    const std::uint64_t dice = (*random)() % 10;
    if (dice < 5) {
      Store(first, 1 + (*random)() % 3);
    } else if (dice < 9) {
      Remove(first + (*random)() % 3);
    } else {
      Reuse(first);
    }
    (void)recorder_.EndStep();
  }

  void Clear() override {
    copies_.clear();
    recorder_.Clear();
    (void)recorder_.EndStep();
  }

 private:
  EventRecorder::Options OptionsFor(Contents contents, Removals removals) {
    removals_ = removals;
    EventRecorder::Options options;
    options.removals = removals;
    options.blocks_per_chunk = 4;
    switch (contents) {
      case Contents::kShadow:
        options.shadow_bytes = std::size_t{1} << 20;
        break;
      case Contents::kHost:
        options.describe = [this](const BlockHash& hash, std::uint32_t /*group*/, std::string_view medium,
                                  const EventRecorder::TellBlock& tell) {
          CHECK(copies_.contains(test::KeyOf(0, medium, hash)));
          const StoredEvent event({hash.Low64()});
          tell(event.view());
        };
        break;
    }
    return options;
  }

  StreamKey Key(std::uint64_t hash) const { return test::KeyOf(0, medium_, BlockHash::FromUint64(hash)); }

  // Blocks of which the one before is there, as in a prefix tree.
  void Store(std::uint64_t first, std::uint64_t count) {
    if (first % 8 != 0 && !copies_.contains(Key(first - 1))) first -= first % 8;
    for (std::uint64_t hash = first; hash < first + count; ++hash) {
      const StoredEvent event({hash}, hash % 8 == 0 ? std::nullopt : std::optional<std::uint64_t>(hash - 1));
      BlockStored stored = event.view();
      stored.medium = medium_;
      recorder_.Store(stored);
      ++copies_[Key(hash)];
    }
  }

  void Reuse(std::uint64_t hash) {
    if (removals_ == Removals::kPerCopy || !copies_.contains(Key(hash))) return;
    const StoredEvent event({hash}, hash % 8 == 0 ? std::nullopt : std::optional<std::uint64_t>(hash - 1));
    BlockStored stored = event.view();
    stored.medium = medium_;
    recorder_.Reuse(stored);
  }

  void Remove(std::uint64_t hash) {
    const auto found = copies_.find(Key(hash));
    if (found == copies_.end()) return;
    if (--found->second == 0) copies_.erase(found);
    const RemovedEvent event({hash});
    BlockRemoved removed = event.view();
    removed.medium = medium_;
    recorder_.Remove(removed);
  }

  Removals removals_ = Removals::kExact;
  std::map<StreamKey, std::uint32_t> copies_;
  std::string_view medium_ = kMediumGpu;
  EventRecorder recorder_;
};

void RunSuite(Contents contents, Removals removals) {
  RunAnnouncedStateSuite([contents, removals](HandPublisher* publisher) {
    return std::make_unique<DrivenRecorder>(contents, removals, publisher);
  });
}

TEST_CASE("a recorder's stream says what the engine holds, through walks, losses and clears") {
  SUBCASE("from a shadow, removals exact") { RunSuite(Contents::kShadow, Removals::kExact); }
  SUBCASE("from a shadow, removals per copy") { RunSuite(Contents::kShadow, Removals::kPerCopy); }
  SUBCASE("from the host's walk, removals exact") { RunSuite(Contents::kHost, Removals::kExact); }
  SUBCASE("from the host's walk, removals per copy") { RunSuite(Contents::kHost, Removals::kPerCopy); }
}

std::vector<BlockStored> StoredOf(const KVEventBatch& batch) {
  std::vector<BlockStored> stored;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const KVEventBatch::Event event = batch.at(i);
    if (const auto* const one = std::get_if<BlockStored>(&event)) stored.push_back(*one);
  }
  return stored;
}

void StoreOf(EventRecorder* recorder, std::initializer_list<std::uint64_t> hashes) {
  const StoredEvent event(hashes);
  recorder->Store(event.view());
}

void RemoveOf(EventRecorder* recorder, std::initializer_list<std::uint64_t> hashes) {
  const RemovedEvent event(hashes);
  recorder->Remove(event.view());
}

// The stream lost a batch and has healed.
void LoseAndHeal(EventRecorder* recorder, HandPublisher* publisher) {
  publisher->refuse = [] { return PublishResult::kDroppedQueueFull; };
  StoreOf(recorder, {1000});
  CHECK(recorder->EndStep() == PublishResult::kDroppedQueueFull);
  publisher->refuse = nullptr;
  publisher->log.clear();
  while (recorder->HasStateWork()) CHECK(recorder->EndStep() == PublishResult::kAccepted);
}

TEST_CASE("a shadow gives back everything that was told of a block, but who asked for it") {
  HandPublisher publisher;
  EventRecorder::Options options;
  options.shadow_bytes = 10000;
  EventRecorder recorder(options, &publisher);
  const StoredEvent event({1, 2}, 7);
  const std::vector<ExtraKeys> keys = {{}, {std::string("salt")}};
  BlockStored stored = event.view();
  stored.lora_id = 3;
  stored.lora_name = "adapter";
  stored.medium = "cpu";
  stored.extra_keys = {false, keys};
  stored.group_idx = 2;
  stored.kv_cache_spec_kind = "sliding_window";
  stored.kv_cache_spec_sliding_window = 64;
  stored.locality = "here";
  stored.ownership = "mine";
  recorder.Store(stored);
  CHECK(recorder.EndStep() == PublishResult::kAccepted);
  const KVEventBatch told = publisher.log.front().batch;
  publisher.log.clear();
  publisher.wants = {0, 1, 1};
  CHECK(recorder.EndStep() == PublishResult::kAccepted);
  REQUIRE(publisher.log.size() == 1);
  KVEventBatch chunk = publisher.log.front().chunk->blocks;
  chunk.ts = told.ts;
  CHECK(chunk == told);
  CHECK(recorder.shadow_bytes() > 0);
  recorder.Clear();
  CHECK(recorder.shadow_bytes() == 0);
}

TEST_CASE("a session is not in the shadow") {
  HandPublisher publisher;
  EventRecorder::Options options;
  options.shadow_bytes = 10000;
  EventRecorder recorder(options, &publisher);
  const StoredEvent event({1});
  BlockStored stored = event.view();
  stored.session_id = "who";
  recorder.Store(stored);
  publisher.wants = {0, 1, 1};
  CHECK(recorder.EndStep() == PublishResult::kAccepted);
  REQUIRE(publisher.log.size() == 2);
  CHECK(StoredOf(publisher.log[0].batch).front().session_id == "who");
  CHECK_FALSE(StoredOf(publisher.log[1].chunk->blocks).front().session_id.has_value());
}

TEST_CASE("a shadow keeps within its bytes; what found no room is in no walk, and its removal is no event") {
  HandPublisher publisher;
  EventRecorder::Options options;
  options.shadow_bytes = 200;
  EventRecorder recorder(options, &publisher);
  for (std::uint64_t hash = 1; hash <= 10; ++hash) StoreOf(&recorder, {hash});
  CHECK(recorder.EndStep() == PublishResult::kAccepted);
  CHECK(recorder.shadow_bytes() > 0);
  CHECK(recorder.shadow_bytes() <= 200);
  LoseAndHeal(&recorder, &publisher);
  REQUIRE(publisher.log.size() == 1);
  const std::size_t renewed = StoredOf(publisher.log.front().batch).size();
  CHECK(renewed > 0);
  CHECK(renewed < 10);
  CHECK(recorder.stream_stats().renewed == renewed);
  CHECK(recorder.num_announced(BlockHash::FromUint64(10), 0, "GPU") == 0);

  publisher.log.clear();
  RemoveOf(&recorder, {10});
  CHECK(recorder.EndStep() == PublishResult::kAccepted);
  CHECK(publisher.log.empty());
  RemoveOf(&recorder, {1});
  CHECK(recorder.EndStep() == PublishResult::kAccepted);
  CHECK(publisher.log.size() == 1);
}

TEST_CASE("what stayed unannounced is announced by the next store or reuse of it") {
  HandPublisher publisher;
  EventRecorder recorder(EventRecorder::Options{}, &publisher);
  StoreOf(&recorder, {1});
  StoreOf(&recorder, {2});
  CHECK(recorder.EndStep() == PublishResult::kAccepted);
  LoseAndHeal(&recorder, &publisher);
  CHECK(recorder.digest().empty());
  StoreOf(&recorder, {1});
  const StoredEvent again({2});
  recorder.Reuse(again.view());
  CHECK(recorder.num_announced(BlockHash::FromUint64(1), 0, "GPU") == 1);
  CHECK(recorder.num_announced(BlockHash::FromUint64(2), 0, "GPU") == 1);
  // Of block 1 there are two copies, of which the stream was told once.
  RemoveOf(&recorder, {1, 2});
  CHECK(recorder.num_announced(BlockHash::FromUint64(1), 0, "GPU") == 1);
  RemoveOf(&recorder, {1});
  CHECK(recorder.digest().empty());
}

TEST_CASE("a host that does not know a block, or tells of it twice, does no harm") {
  HandPublisher publisher;
  EventRecorder::Options options;
  options.describe = [](const BlockHash& hash, std::uint32_t /*group*/, std::string_view /*medium*/,
                        const EventRecorder::TellBlock& tell) {
    const StoredEvent other({77});
    const StoredEvent two({3, 4});
    const StoredEvent event({hash.Low64()}, 5);
    BlockStored cut = event.view();
    cut.token_ids = cut.token_ids.first(1);
    if (hash.Low64() == 1) tell(event.view());
    if (hash.Low64() == 1) tell(event.view());
    if (hash.Low64() == 2) tell(other.view());
    if (hash.Low64() == 3) tell(two.view());
    if (hash.Low64() == 4) tell(cut);
    if (hash.Low64() == 1000) tell(event.view());
  };
  EventRecorder recorder(options, &publisher);
  StoreOf(&recorder, {1, 2, 3, 4, 5});
  CHECK(recorder.EndStep() == PublishResult::kAccepted);
  LoseAndHeal(&recorder, &publisher);
  REQUIRE(publisher.log.size() == 1);
  const KVEventBatch& batch = publisher.log.front().batch;
  std::vector<std::uint64_t> hashes;
  batch.Visit([&hashes](const auto& event) {
    if constexpr (std::is_same_v<std::decay_t<decltype(event)>, BlockStored>) {
      for (const BlockHash& hash : event.block_hashes) hashes.push_back(hash.Low64());
    }
  });
  CHECK(hashes == std::vector<std::uint64_t>{1, 1000});
}

TEST_CASE("parents that lead back to themselves end a walk") {
  HandPublisher publisher;
  EventRecorder::Options options;
  options.shadow_bytes = 10000;
  EventRecorder recorder(options, &publisher);
  const StoredEvent first({1}, 2);
  const StoredEvent second({2}, 1);
  recorder.Store(first.view());
  recorder.Store(second.view());
  publisher.wants = {0, 1, 9};
  while (recorder.HasStateWork() || !recorder.pending().empty()) CHECK(recorder.EndStep() == PublishResult::kAccepted);
  CHECK(recorder.stream_stats().walked == 2);
}

TEST_CASE("a chain longer than a chunk comes whole and parents first") {
  HandPublisher publisher;
  EventRecorder::Options options;
  options.shadow_bytes = std::size_t{1} << 24;
  options.blocks_per_chunk = 2;
  EventRecorder recorder(options, &publisher);
  // The last block was stored first, so that the walk climbs all the way from it.
  for (std::uint64_t hash = 500; hash > 0; --hash) {
    const StoredEvent event({hash}, hash == 1 ? std::nullopt : std::optional<std::uint64_t>(hash - 1));
    recorder.Store(event.view());
  }
  CHECK(recorder.EndStep() == PublishResult::kAccepted);
  publisher.log.clear();
  publisher.wants = {0, 1, 1000};
  while (recorder.HasStateWork()) CHECK(recorder.EndStep() == PublishResult::kAccepted);
  std::uint64_t next = 1;
  for (const HandPublisher::Entry& entry : publisher.log) {
    CHECK(StoredOf(entry.chunk->blocks).size() <= 2);
    entry.chunk->blocks.Visit([&next](const auto& event) {
      if constexpr (std::is_same_v<std::decay_t<decltype(event)>, BlockStored>) {
        for (const BlockHash& hash : event.block_hashes) CHECK(hash.Low64() == next++);
      }
    });
  }
  CHECK(next == 501);
}

TEST_CASE("a disabled recorder has no work, whatever is wanted") {
  HandPublisher publisher;
  EventRecorder::Options options;
  options.enabled = false;
  EventRecorder recorder(options, &publisher);
  publisher.wants = {1, 1, 1};
  CHECK_FALSE(recorder.HasStateWork());
  CHECK(recorder.EndStep() == PublishResult::kAccepted);
  CHECK(publisher.log.empty());
}

}  // namespace
}  // namespace kvwire
