// SPDX-License-Identifier: Apache-2.0
#include "kv_events/state_publisher.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/manual_clock.h"
#include "tests/support/thread_calls.h"
#include "tests/unit/kv_events/announced_state_suite.h"
#include "tests/unit/kv_events/event_builders.h"

namespace kvwire {
namespace {

using test::HandPublisher;

// Blocks in the order of a list; of each how often it was announced in this era and in those before.
class ListState final : public AnnouncedState {
 public:
  struct Block {
    std::uint64_t hash = 0;
    std::optional<std::uint64_t> parent;
    std::uint32_t announced = 1;
    bool stale = false;
    std::function<void(BlockStored*)> change;
  };

  const StateDigest& digest() const override { return digest_; }
  void Walk(const std::function<void(const ResidentBlock&)>& /*visit*/) const override {}
  void BeginEra() override {
    ++eras;
    for (Block& block : blocks) block.stale = true;
    digest_.Clear();
  }
  void BeginWalk(WalkKind kind) override { next_[static_cast<std::size_t>(kind)] = 0; }
  bool WalkSome(WalkKind kind, std::size_t max_blocks, const WalkVisitor& visit) override {
    std::size_t& next = next_[static_cast<std::size_t>(kind)];
    for (std::size_t end = std::min(next + max_blocks, blocks.size()); next < end; ++next) {
      Block& block = blocks[next];
      if (block.stale != (kind == WalkKind::kRenew)) continue;
      if (block.stale) Announce(&block);
      BlockStored stored = events_[next].view();
      if (block.change) block.change(&stored);
      visit(stored, block.announced);
    }
    return next < blocks.size();
  }

  // Adds blocks that the stream has announced.
  void Hold(std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t hash = first; hash <= last; ++hash) {
      const auto parent = hash == first ? std::nullopt : std::optional<std::uint64_t>(hash - 1);
      blocks.push_back({hash, parent, 1, false, {}});
      events_.push_back(StoredEvent({hash}, parent));
      Announce(&blocks.back());
    }
  }

  std::vector<Block> blocks;
  int eras = 0;

 private:
  void Announce(Block* block) {
    block->stale = false;
    digest_.Add(0, kMediumGpu, BlockHash::FromUint64(block->hash).Low64());
  }

  StateDigest digest_;
  std::vector<StoredEvent> events_;  // of the blocks
  std::size_t next_[2] = {};
};

KVEventBatch Stored(std::uint64_t hash) {
  KVEventBatch batch;
  const StoredEvent event({hash});
  batch.Add(event.view());
  return batch;
}

// "C" for a clear, "S 1,2<0" for a store, "R 1" for a removal.
std::string TextOf(const KVEventBatch& batch) {
  std::string text;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const KVEventBatch::Event event = batch.at(i);
    if (i > 0) text += ' ';
    if (const auto* const stored = std::get_if<BlockStored>(&event)) {
      text += 'S';
      for (const BlockHash& hash : stored->block_hashes) text += std::to_string(hash.Low64()) + ',';
      text.back() = '<';
      text += stored->parent_block_hash ? std::to_string(stored->parent_block_hash->Low64()) : "-";
    } else {
      text += std::holds_alternative<AllBlocksCleared>(event) ? "C" : "R";
    }
  }
  return text;
}

class Rig {
 public:
  explicit Rig(std::size_t blocks_per_chunk = 2) : stream({blocks_per_chunk, &clock}, &publisher, &state) {}

  PublishResult Publish(KVEventBatch batch = {}) { return stream.Publish(std::move(batch)); }
  // What has arrived since the last call: batches as text, chunks in brackets ("f" first, "l" last), "lost".
  std::vector<std::string> Log() {
    std::vector<std::string> texts;
    for (const HandPublisher::Entry& entry : publisher.log) {
      if (entry.lost) {
        texts.push_back("lost");
      } else if (entry.chunk) {
        texts.push_back("[" + std::to_string(entry.chunk->walk) + (entry.chunk->first ? "f" : "") +
                        (entry.chunk->last ? "l" : "") + " " + TextOf(entry.chunk->blocks) + "]");
      } else {
        texts.push_back(TextOf(entry.batch));
      }
    }
    publisher.log.clear();
    return texts;
  }
  void LoseAll() {
    publisher.refuse = [] { return PublishResult::kDroppedQueueFull; };
  }
  void LoseNothing() { publisher.refuse = nullptr; }

  test::ManualClock clock;
  HandPublisher publisher;
  ListState state;
  StatePublisher stream;
};

using Texts = std::vector<std::string>;

// One batch is lost, and the queue has no room.
void Lose(Rig* rig) {
  rig->LoseAll();
  CHECK(rig->Publish(Stored(90)) == PublishResult::kDroppedQueueFull);
  rig->LoseNothing();
  rig->publisher.has_room = false;
  CHECK(rig->Log() == Texts{"lost"});
}

TEST_CASE("each batch is stamped with the time and the digest of the state") {
  Rig rig;
  rig.state.Hold(1, 2);
  CHECK(rig.Publish(Stored(2)) == PublishResult::kAccepted);
  REQUIRE(rig.publisher.log.size() == 1);
  const KVEventBatch& batch = rig.publisher.log.front().batch;
  CHECK(batch.ts == rig.clock.WallSeconds());
  CHECK(batch.has_digest);
  CHECK(batch.digest == rig.state.digest());
}

TEST_CASE("without a state a batch has no digest, and a loss is a gap") {
  test::ManualClock clock;
  HandPublisher publisher;
  StatePublisher stream({2, &clock}, &publisher, nullptr);
  publisher.refuse = [] { return PublishResult::kDroppedQueueFull; };
  CHECK(stream.Publish(Stored(1)) == PublishResult::kDroppedQueueFull);
  publisher.refuse = nullptr;
  CHECK(stream.Publish(Stored(2)) == PublishResult::kAccepted);
  CHECK(stream.Publish({}) == PublishResult::kAccepted);
  REQUIRE(publisher.log.size() == 2);
  CHECK(publisher.log[1].batch.ts == clock.WallSeconds());
  CHECK_FALSE(publisher.log[1].batch.has_digest);
  publisher.wants = {1, 1, 1};
  CHECK_FALSE(stream.HasStateWork());
  CHECK(stream.stats().losses == 1);
  CHECK(stream.stats().dropped == 1);
}

TEST_CASE("A2: after a loss nothing has a number until the queue has room, and then the Clear has the next one") {
  Rig rig;
  rig.state.Hold(1, 3);
  Lose(&rig);
  CHECK(rig.stream.silent());
  for (int i = 0; i < 5; ++i) CHECK(rig.Publish(Stored(91)) == PublishResult::kAccepted);
  CHECK(rig.Log().empty());
  CHECK(rig.stream.stats().suppressed == 5);
  CHECK(rig.state.eras == 0);

  // What the healing step recorded is void: its blocks come with the walk.
  rig.publisher.has_room = true;
  CHECK(rig.Publish(Stored(92)) == PublishResult::kAccepted);
  CHECK(rig.Log() == Texts{"C S1,2<-"});
  CHECK(rig.state.eras == 1);
  CHECK(rig.stream.renewing());
  CHECK(rig.stream.stats().suppressed == 6);
  CHECK(rig.stream.stats().losses == 1);
  CHECK(rig.stream.stats().resyncs == 1);

  // Live events go between the pieces.
  CHECK(rig.Publish(Stored(93)) == PublishResult::kAccepted);
  CHECK(rig.Log() == Texts{"S93<-", "S3<2"});
  CHECK_FALSE(rig.stream.renewing());
  CHECK_FALSE(rig.stream.HasStateWork());
  CHECK(rig.stream.stats().renewed == 3);
}

TEST_CASE("A12: a loss of one batch is healed, or is a gap and no more, as the publisher says") {
  Rig rig;
  rig.publisher.resyncs = false;
  rig.LoseAll();
  CHECK(rig.Publish(Stored(1)) == PublishResult::kDroppedQueueFull);
  rig.LoseNothing();
  CHECK_FALSE(rig.stream.silent());
  CHECK(rig.Publish(Stored(2)) == PublishResult::kAccepted);
  CHECK(rig.Log() == Texts{"lost", "S2<-"});
}

TEST_CASE("the batch of a piece has the digest behind it, the live batch before it the one before") {
  Rig rig;
  rig.state.Hold(1, 3);
  Lose(&rig);
  rig.publisher.has_room = true;
  rig.Publish();
  rig.publisher.log.clear();
  const StateDigest two = rig.state.digest();
  rig.Publish(Stored(93));
  REQUIRE(rig.publisher.log.size() == 2);
  CHECK(rig.publisher.log[0].batch.digest == two);
  CHECK(rig.publisher.log[1].batch.digest == rig.state.digest());
  CHECK(two != rig.state.digest());
}

TEST_CASE("a piece of a renewing walk waits for room") {
  Rig rig;
  rig.state.Hold(1, 3);
  Lose(&rig);
  rig.publisher.has_room = true;
  rig.Publish();
  rig.publisher.has_room = false;
  CHECK(rig.stream.StateWorkWaits());
  rig.Publish(Stored(93));
  CHECK(rig.Log() == Texts{"C S1,2<-", "S93<-"});
  rig.publisher.has_room = true;
  CHECK_FALSE(rig.stream.StateWorkWaits());
  rig.Publish();
  CHECK(rig.Log() == Texts{"S3<2"});
}

TEST_CASE("a loss during the walk begins it again after twice as many calls as the time before, up to a bound") {
  Rig rig;
  rig.state.Hold(1, 3);
  Lose(&rig);
  rig.publisher.has_room = true;
  rig.LoseAll();
  std::vector<std::uint64_t> waits;
  std::uint64_t calls = 0;
  while (waits.size() < 15) {
    CHECK(rig.stream.HasStateWork());
    rig.Publish();
    if (rig.Log().empty()) {
      ++calls;
      continue;
    }
    waits.push_back(calls);
    calls = 0;
  }
  CHECK(waits == std::vector<std::uint64_t>{0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024, 1024});
  CHECK(rig.stream.stats().resyncs == 0);

  // A walk that ends ends the back-off.
  rig.LoseNothing();
  for (std::uint64_t i = 0; i < 2000; ++i) rig.Publish();
  CHECK(rig.Log() == Texts{"C S1,2<-", "S3<2"});
  Lose(&rig);
  rig.publisher.has_room = true;
  rig.Publish();
  CHECK(rig.Log() == Texts{"C S1,2<-"});
}

TEST_CASE("a resync that the publisher asks for begins at once when there is room") {
  Rig rig;
  rig.state.Hold(1, 2);
  rig.Publish(Stored(2));
  rig.Log();
  rig.publisher.wants.resyncs = 1;
  CHECK(rig.stream.HasStateWork());
  CHECK(rig.Publish(Stored(3)) == PublishResult::kAccepted);
  CHECK(rig.Log() == Texts{"C S1,2<-"});
  CHECK(rig.stream.stats().losses == 0);
  CHECK(rig.stream.stats().resyncs == 1);
}

TEST_CASE("a resync that the publisher asks for waits for room, and is one with a loss") {
  Rig rig;
  rig.state.Hold(1, 1);
  Lose(&rig);
  rig.publisher.wants.resyncs = 7;
  rig.Publish();
  CHECK(rig.stream.silent());
  rig.publisher.has_room = true;
  rig.Publish();
  for (int i = 0; i < 3; ++i) rig.Publish();
  CHECK(rig.Log() == Texts{
                         "C S1<-",
                     });
  CHECK(rig.stream.stats().resyncs == 1);
}

TEST_CASE("C14: who was told nothing, and has nothing to be told, gets no Clear") {
  Rig rig;
  rig.publisher.wants.resyncs = 1;
  rig.Publish();
  CHECK(rig.Log().empty());
  CHECK_FALSE(rig.stream.HasStateWork());
  rig.Publish(Stored(1));
  CHECK(rig.Log() == Texts{"S1<-"});
  rig.publisher.wants.resyncs = 2;
  rig.Publish();
  CHECK(rig.Log() == Texts{"C"});
}

TEST_CASE("C9: a snapshot is handed over piece by piece, as far as the publisher lets it") {
  Rig rig;
  rig.state.Hold(1, 5);
  rig.publisher.wants = {0, 1, 0};
  CHECK_FALSE(rig.stream.HasStateWork());
  rig.publisher.wants.chunks = 2;
  CHECK(rig.stream.HasStateWork());
  rig.Publish(Stored(90));
  CHECK(rig.Log() == Texts{"S90<-", "[1f S1,2<-]"});
  rig.publisher.has_room = false;
  CHECK(rig.stream.StateWorkWaits());
  rig.Publish();
  CHECK(rig.Log().empty());
  rig.publisher.has_room = true;
  rig.Publish();
  CHECK(rig.Log() == Texts{"[1 S3,4<2]"});
  CHECK_FALSE(rig.stream.HasStateWork());
  rig.publisher.wants.chunks = 10;
  rig.Publish();
  CHECK(rig.Log() == Texts{"[1l S5<4]"});
  CHECK_FALSE(rig.stream.HasStateWork());
  CHECK(rig.stream.stats().walks == 1);
  CHECK(rig.stream.stats().walked == 5);
  CHECK(rig.stream.stats().chunks == 3);
  // The next one has the next number.
  rig.publisher.wants.walks = 2;
  rig.Publish();
  CHECK(rig.Log() == Texts{"[2f S1,2<-]"});
}

TEST_CASE("each chunk has time and digest; of nothing there is one, first and last") {
  Rig rig;
  rig.publisher.wants = {0, 1, 1};
  rig.Publish();
  REQUIRE(rig.publisher.log.size() == 1);
  const StateChunk& chunk = *rig.publisher.log.front().chunk;
  CHECK(chunk.blocks.has_digest);
  CHECK(chunk.blocks.ts == rig.clock.WallSeconds());
  CHECK(rig.Log() == Texts{"[1fl ]"});
}

TEST_CASE("the first chunk leaves when the walk begins, also without blocks; later ones without blocks do not") {
  Rig rig;
  rig.state.Hold(1, 6);
  for (std::size_t i = 0; i < 4; ++i) rig.state.blocks[i].stale = true;
  rig.publisher.wants = {0, 1, 10};
  for (int i = 0; i < 3; ++i) rig.Publish();
  CHECK(rig.Log() == Texts{"[1f ]", "[1l S5,6<4]"});
}

TEST_CASE("a snapshot with a refused chunk begins again, and has the same number") {
  Rig rig;
  rig.state.Hold(1, 5);
  rig.publisher.wants = {0, 1, 10};
  rig.Publish();
  rig.publisher.refuse_chunk = [] { return PublishResult::kDroppedQueueFull; };
  rig.Publish();
  rig.publisher.refuse_chunk = nullptr;
  CHECK(rig.Log() == Texts{"[1f S1,2<-]"});
  for (int i = 0; i < 5; ++i) rig.Publish();
  CHECK(rig.Log() == Texts{"[1f S1,2<-]", "[1 S3,4<2]", "[1l S5<4]"});
  CHECK(rig.stream.stats().walks == 1);
  CHECK(rig.stream.stats().walked == 7);
}

TEST_CASE("a snapshot waits for the renewing walk, and then goes on") {
  Rig rig;
  rig.state.Hold(1, 5);
  rig.publisher.wants = {0, 1, 10};
  rig.Publish();
  rig.publisher.wants.resyncs = 0;
  CHECK(rig.Log() == Texts{"[1f S1,2<-]"});
  Lose(&rig);
  rig.publisher.has_room = true;
  for (int i = 0; i < 3; ++i) rig.Publish();
  CHECK(rig.Log() == Texts{"C S1,2<-", "S3,4<2", "S5<4"});
  rig.Publish();
  CHECK(rig.Log() == Texts{"[1 S3,4<2]"});
}

TEST_CASE("blocks of a chain are one event, as far as they are alike") {
  using Change = std::function<void(BlockStored*)>;
  const std::vector<Change> changes = {
      [](BlockStored* block) { block->group_idx = 1; },
      [](BlockStored* block) { block->medium = kMediumCpu; },
      [](BlockStored* block) { block->lora_id = 5; },
      [](BlockStored* block) { block->lora_name = "a"; },
      [](BlockStored* block) { block->kv_cache_spec_kind = "mamba"; },
      [](BlockStored* block) { block->kv_cache_spec_sliding_window = 8; },
      [](BlockStored* block) { block->token_ids = {}; },
      [](BlockStored* block) { block->extra_keys.absent = false; },
      [](BlockStored* block) { block->locality = "here"; },
      [](BlockStored* block) { block->ownership = "mine"; },
      [](BlockStored* block) { block->session_id = "s"; },
      [](BlockStored* block) {
        block->token_ids = block->token_ids.first(1);
        block->block_size = 1;
      },
  };
  for (const Change& change : changes) {
    Rig rig(10);
    rig.state.Hold(1, 4);
    rig.state.blocks[2].change = rig.state.blocks[3].change = change;
    rig.publisher.wants = {0, 1, 1};
    rig.Publish();
    CHECK(rig.Log() == Texts{"[1fl S1,2<- S3,4<2]"});
  }
  Rig rig(10);
  rig.state.Hold(1, 2);
  rig.state.Hold(5, 6);
  rig.publisher.wants = {0, 1, 1};
  rig.Publish();
  CHECK(rig.Log() == Texts{"[1fl S1,2<- S5,6<-]"});
}

TEST_CASE("an appended block keeps tokens and extra keys of its own") {
  Rig rig(10);
  rig.state.Hold(1, 2);
  const std::vector<ExtraKeys> keys = {{std::string("salt")}};
  rig.state.blocks[0].change = [](BlockStored* block) { block->extra_keys.absent = false; };
  rig.state.blocks[1].change = [&keys](BlockStored* block) { block->extra_keys = {false, keys}; };
  rig.publisher.wants = {0, 1, 1};
  rig.Publish();
  REQUIRE(rig.publisher.log.size() == 1);
  const KVEventBatch::Event event = rig.publisher.log.front().chunk->blocks.at(0);
  const auto& stored = std::get<BlockStored>(event);
  CHECK(stored.token_ids.size() == 4);
  CHECK(stored.token_ids[3] == 5);
  REQUIRE(stored.extra_keys.per_block.size() == 2);
  CHECK(stored.extra_keys.per_block[0].empty());
  CHECK(stored.extra_keys.per_block[1] == keys[0]);
}

TEST_CASE("a block is in a chunk as often as it is announced") {
  Rig rig(3);
  rig.state.Hold(1, 3);
  rig.state.blocks[1].announced = 3;
  rig.publisher.wants = {0, 1, 1};
  rig.Publish();
  CHECK(rig.Log() == Texts{"[1fl S1,2<- S2<1 S2,3<1]"});
}

TEST_CASE("a publisher that was closed ends the work on the state") {
  Rig rig;
  rig.state.Hold(1, 3);
  Lose(&rig);
  rig.publisher.has_room = true;
  rig.publisher.refuse = [] { return PublishResult::kDroppedClosed; };
  rig.Publish();
  rig.Log();
  CHECK_FALSE(rig.stream.HasStateWork());
  CHECK(rig.Publish() == PublishResult::kAccepted);
  CHECK(rig.Log().empty());
  CHECK(rig.Publish(Stored(1)) == PublishResult::kDroppedClosed);
}

TEST_CASE("what there is to do for the state") {
  Rig rig;
  rig.state.Hold(1, 3);
  CHECK_FALSE(rig.stream.HasStateWork());
  CHECK_FALSE(rig.stream.StateWorkWaits());
  Lose(&rig);
  CHECK(rig.stream.HasStateWork());
  CHECK(rig.stream.StateWorkWaits());
  rig.publisher.has_room = true;
  CHECK_FALSE(rig.stream.StateWorkWaits());
  rig.Publish();
  CHECK(rig.stream.HasStateWork());
  rig.Publish();
  CHECK_FALSE(rig.stream.HasStateWork());
}

// Gives the memory of each batch back at once.
class RecyclingPublisher final : public EventPublisher {
 public:
  PublishResult Publish(KVEventBatch&& batch) noexcept override {
    Keep(std::move(batch));
    return lose ? PublishResult::kDroppedQueueFull : PublishResult::kAccepted;
  }
  PublishResult PublishChunk(StateChunk&& chunk) noexcept override {
    Keep(std::move(chunk.blocks));
    return PublishResult::kAccepted;
  }
  KVEventBatch TakeSpare() noexcept override { return std::exchange(spares_[--num_spares_], {}); }
  StateWants state_wants() const noexcept override { return wants; }
  bool resyncs_after_loss() const noexcept override { return true; }
  using EventPublisher::Close;
  void Close(std::chrono::milliseconds /*deadline*/) noexcept override {}
  PublisherStats stats() const noexcept override { return {}; }

  StateWants wants;
  bool lose = false;

 private:
  void Keep(KVEventBatch&& batch) {
    batch.Clear();
    spares_[num_spares_++] = std::move(batch);
  }

  KVEventBatch spares_[4];
  std::size_t num_spares_ = 4;
};

TEST_CASE("A1: neither lock nor allocation is on the step thread's way, at rest and while it walks") {
  test::ManualClock clock;
  RecyclingPublisher publisher;
  ListState state;
  state.Hold(1, 100);
  StatePublisher stream({8, &clock}, &publisher, &state);
  const StoredEvent event({7});
  const auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      if (i % 50 == 0) ++publisher.wants.walks;
      publisher.lose = i % 70 == 69;
      ++publisher.wants.chunks;
      KVEventBatch batch = stream.TakeSpare();
      batch.Add(event.view());
      (void)stream.Publish(std::move(batch));
    }
  };
  run(1000);
  test::CallCounter counter;
  run(1000);
  const test::ThreadCalls calls = counter.Stop();
  CHECK(calls.allocations == 0);
  CHECK(calls.locks == 0);
  CHECK(stream.stats().resyncs > 10);
  CHECK(stream.stats().walks > 10);
}

}  // namespace
}  // namespace kvwire
