// SPDX-License-Identifier: Apache-2.0
#include "kv_events/event_recorder.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/allocation_counter.h"
#include "tests/unit/kv_events/event_builders.h"

namespace kvwire {
namespace {

class StoppedClock final : public Clock {
 public:
  double WallSeconds() const noexcept override { return 1700000000.25; }
  MonotonicNanos Now() const noexcept override { return 0; }
};

const StoppedClock kClock;

EventRecorder::Options OptionsWith(Removals removals) {
  EventRecorder::Options options;
  options.removals = removals;
  options.clock = &kClock;
  return options;
}

// "S1,2(0) R1 C": stores with their parent, removals, clears.
std::string Text(const KVEventBatch& batch) {
  struct Visitor {
    std::string text;
    void List(std::span<const BlockHash> hashes) {
      for (std::size_t i = 0; i < hashes.size(); ++i) text += (i ? "," : "") + std::to_string(hashes[i].Low64());
    }
    void Start(char kind) {
      if (!text.empty()) text += ' ';
      text += kind;
    }
    void operator()(const BlockStored& stored) {
      Start('S');
      List(stored.block_hashes);
      if (stored.parent_block_hash) text += "(" + std::to_string(stored.parent_block_hash->Low64()) + ")";
    }
    void operator()(const BlockRemoved& removed) {
      Start('R');
      List(removed.block_hashes);
    }
    void operator()(const AllBlocksCleared&) { Start('C'); }
  };
  Visitor visitor;
  batch.Visit(visitor);
  return visitor.text;
}

// A recorder whose batches are collected.
struct Fixture {
  explicit Fixture(EventRecorder::Options options = OptionsWith(Removals::kExact)) : recorder(options, &publisher) {}

  void Store(std::initializer_list<std::uint64_t> hashes, std::optional<std::uint64_t> parent = std::nullopt) {
    recorder.Store(StoredEvent(hashes, parent).view());
  }
  void Reuse(std::initializer_list<std::uint64_t> hashes, std::optional<std::uint64_t> parent = std::nullopt) {
    recorder.Reuse(StoredEvent(hashes, parent).view());
  }
  void Remove(std::initializer_list<std::uint64_t> hashes) { recorder.Remove(RemovedEvent(hashes).view()); }

  bool Holds(std::uint64_t hash) {
    StateDigest probe = recorder.digest();
    const auto before = probe.entries();
    for (const StateDigest::Entry& entry : before) {
      if (entry.count == 1 && entry.sum == StateDigest::Mix(hash)) return true;
    }
    return false;
  }

  CollectingEventPublisher publisher{0};
  EventRecorder recorder;
};

// A walk over a list.
class ListWalk final : public StateSource {
 public:
  struct Block {
    std::uint64_t hash;
    std::optional<std::uint64_t> parent;
    std::uint32_t group = 0;
    std::string medium = "GPU";
  };
  explicit ListWalk(std::vector<Block> blocks) : blocks_(std::move(blocks)) {}

  void Walk(const std::function<void(const ResidentBlock&)>& visit) const override {
    for (const Block& block : blocks_) {
      ResidentBlock resident;
      resident.hash = BlockHash::FromUint64(block.hash);
      if (block.parent) resident.parent = BlockHash::FromUint64(*block.parent);
      resident.group = block.group;
      resident.medium = block.medium;
      visit(resident);
    }
  }

 private:
  std::vector<Block> blocks_;
};

TEST_CASE("Events of a step leave in one batch in the order of the calls, stamped with the wall clock") {
  Fixture f;
  f.Store({1, 2});
  f.Remove({2});
  f.recorder.Clear();
  f.Store({3});
  CHECK(f.publisher.batches().empty());
  CHECK(f.recorder.pending().size() == 4);
  CHECK(f.recorder.EndStep() == PublishResult::kAccepted);
  REQUIRE(f.publisher.batches().size() == 1);
  CHECK(Text(f.publisher.batches()[0]) == "S1,2 R2 C S3");
  CHECK(f.publisher.batches()[0].ts == 1700000000.25);
  CHECK(f.recorder.pending().empty());
}

TEST_CASE("A step without events publishes nothing") {
  Fixture f;
  CHECK(f.recorder.EndStep() == PublishResult::kAccepted);
  f.Store({});
  f.Reuse({});
  f.Remove({});
  CHECK(f.recorder.pending().empty());
  CHECK(f.recorder.EndStep() == PublishResult::kAccepted);
  CHECK(f.publisher.stats().submitted == 0);
}

TEST_CASE("The result of EndStep is the publisher's") {
  Fixture f;
  f.publisher.Close();
  f.Store({1});
  CHECK(f.recorder.EndStep() == PublishResult::kDroppedClosed);
  CHECK(f.recorder.pending().empty());
}

TEST_CASE("The next step is recorded into the publisher's spare batch") {
  class Recycling final : public EventPublisher {
   public:
    PublishResult Publish(KVEventBatch&& batch) noexcept override {
      spare_ = std::move(batch);
      spare_.Clear();
      return PublishResult::kAccepted;
    }
    KVEventBatch TakeSpare() noexcept override {
      ++taken;
      return std::move(spare_);
    }
    void Close(std::chrono::milliseconds) noexcept override {}
    PublisherStats stats() const noexcept override { return {}; }
    int taken = 0;

   private:
    KVEventBatch spare_;
  };
  Recycling publisher;
  EventRecorder recorder(OptionsWith(Removals::kExact), &publisher);
  recorder.EndStep();
  CHECK(publisher.taken == 0);
  recorder.Store(StoredEvent({1}).view());
  recorder.EndStep();
  CHECK(publisher.taken == 1);
  CHECK(recorder.pending().empty());
}

TEST_CASE("An unset medium is written as GPU, and counts as it") {
  Fixture f;
  BlockStored stored;
  const auto hashes = Hashes({1});
  stored.block_hashes = hashes;
  f.recorder.Store(stored);
  f.recorder.Reuse(stored);
  BlockRemoved removed;
  removed.block_hashes = hashes;
  f.recorder.Remove(removed);
  CHECK(f.recorder.digest() == StateDigest());
  REQUIRE(Text(f.recorder.pending()) == "S1 S1 R1 R1");
  for (std::size_t i = 0; i < 2; ++i) CHECK(std::get<BlockStored>(f.recorder.pending().at(i)).medium == "GPU");
  for (std::size_t i = 2; i < 4; ++i) CHECK(std::get<BlockRemoved>(f.recorder.pending().at(i)).medium == "GPU");
}

TEST_CASE("Other fields of an event are passed on as given, in every repetition") {
  Fixture f;
  const auto hashes = Hashes({1});
  BlockStored stored;
  stored.block_hashes = hashes;
  stored.block_size = 16;
  stored.medium = "cpu";
  stored.group_idx = 2;
  stored.session_id = "s";
  f.recorder.Store(stored);
  f.recorder.Reuse(stored);
  BlockRemoved removed;
  removed.block_hashes = hashes;
  removed.medium = "CPU";
  removed.group_idx = 2;
  removed.locality = "LOCAL";
  removed.ownership = "kvcr";
  f.recorder.Remove(removed);
  KVEventBatch expected;
  expected.Add(stored);
  expected.Add(stored);
  expected.Add(removed);
  expected.Add(removed);
  CHECK(f.recorder.pending() == expected);
}

TEST_CASE("A store without tokens is recorded") {
  Fixture f;
  BlockStored stored;
  const auto hashes = Hashes({1});
  stored.block_hashes = hashes;
  stored.medium = kMediumCpu;
  f.recorder.Store(stored);
  CHECK(std::get<BlockStored>(f.recorder.pending().at(0)).token_ids.empty());
  CHECK(f.recorder.digest().ToString() == "0/CPU 1:910a2dec89025cc1");
}

TEST_CASE("D2: a block stored twice is removed twice, when its last copy goes") {
  SUBCASE("S S R: nothing leaves") {
    Fixture f;
    f.Store({1});
    f.Store({1});
    f.Remove({1});
    CHECK(Text(f.recorder.pending()) == "S1 S1");
    CHECK(f.Holds(1));
  }
  SUBCASE("S S R R: both removals, adjacent") {
    Fixture f;
    f.Store({1});
    f.Store({1});
    f.Remove({1});
    f.Store({2});
    f.Remove({1});
    CHECK(Text(f.recorder.pending()) == "S1 S1 S2 R1 R1");
    CHECK_FALSE(f.Holds(1));
  }
  SUBCASE("R of an unknown block: passed on once, no negative count") {
    Fixture f;
    f.Remove({1});
    CHECK(Text(f.recorder.pending()) == "R1");
    CHECK(f.recorder.digest() == StateDigest());
    f.Store({1});
    CHECK(f.Holds(1));
    f.Remove({1});
    CHECK(Text(f.recorder.pending()) == "R1 S1 R1");
  }
  SUBCASE("S C S R: absent") {
    Fixture f;
    f.Store({1});
    f.recorder.Clear();
    f.Store({1});
    f.Remove({1});
    CHECK(Text(f.recorder.pending()) == "S1 C S1 R1");
    CHECK_FALSE(f.Holds(1));
  }
  SUBCASE("a removal of two blocks of which one has another copy: only the other leaves") {
    Fixture f;
    f.Store({1});
    f.Store({1});
    f.Store({2});
    f.Remove({1, 2});
    CHECK(Text(f.recorder.pending()) == "S1 S1 S2 R2");
    CHECK(f.Holds(1));
  }
}

TEST_CASE("One removal of blocks announced differently often lists each as often as announced") {
  Fixture f;
  f.Store({1, 2, 3});
  f.Reuse({1, 2});
  f.Reuse({1});
  f.Remove({3, 2, 1, 9});
  CHECK(Text(f.recorder.pending()) == "S1,2,3 S1,2 S1 R3,2,1,9 R2,1 R1");
  CHECK(f.recorder.digest() == StateDigest());
}

TEST_CASE("A hash that occurs twice in a store has two copies") {
  Fixture f;
  f.Store({1, 1});
  f.Remove({1});
  CHECK(Text(f.recorder.pending()) == "S1,1");
  f.Remove({1});
  CHECK(Text(f.recorder.pending()) == "S1,1 R1 R1");
}

TEST_CASE("A hash that occurs twice in a removal loses two copies") {
  Fixture f;
  f.Store({1});
  f.Store({1});
  f.Remove({1, 1});
  CHECK(Text(f.recorder.pending()) == "S1 S1 R1 R1");
}

TEST_CASE("D10: a reuse report precedes the tail, adds no copy, and is taken back with the block") {
  Fixture f;
  f.Store({1, 2, 3, 4});
  f.recorder.EndStep();
  f.Reuse({1, 2, 3, 4});
  f.Store({5}, 4);
  f.recorder.EndStep();
  CHECK(Text(f.publisher.batches()[1]) == "S1,2,3,4 S5(4)");
  f.Remove({4});
  CHECK(Text(f.recorder.pending()) == "R4 R4");
  // Stored anew, it has one announcement again.
  f.Store({4}, 3);
  f.Remove({4});
  CHECK(Text(f.recorder.pending()) == "R4 R4 S4(3) R4");
}

TEST_CASE("A reuse report of a block that was never stored counts as its store") {
  Fixture f;
  f.Reuse({1});
  CHECK(f.Holds(1));
  f.Reuse({1});
  f.Remove({1});
  CHECK(Text(f.recorder.pending()) == "S1 S1 R1 R1");
  CHECK_FALSE(f.Holds(1));
}

TEST_CASE("Groups and media are counted apart") {
  Fixture f;
  BlockStored gpu;
  const auto hashes = Hashes({1});
  gpu.block_hashes = hashes;
  BlockStored cpu = gpu;
  cpu.medium = kMediumCpu;
  BlockStored other_group = gpu;
  other_group.group_idx = 1;
  f.recorder.Store(gpu);
  f.recorder.Store(cpu);
  f.recorder.Store(other_group);
  CHECK(f.recorder.digest().entries().size() == 3);
  BlockRemoved removed;
  removed.block_hashes = hashes;
  removed.medium = kMediumCpu;
  f.recorder.Remove(removed);
  CHECK(Text(f.recorder.pending()) == "S1 S1 S1 R1");
  CHECK(f.recorder.digest().ToString() == "0/GPU 1:910a2dec89025cc1 1/GPU 1:910a2dec89025cc1");
}

TEST_CASE("Per copy, a removal is published as told") {
  Fixture f(OptionsWith(Removals::kPerCopy));
  f.Store({1});
  f.Store({1});
  f.Reuse({1});
  f.Remove({1});
  CHECK(Text(f.recorder.pending()) == "S1 S1 S1 R1");
  CHECK(f.Holds(1));
  f.Remove({1, 7});
  CHECK(Text(f.recorder.pending()) == "S1 S1 S1 R1 R1,7");
  CHECK(f.recorder.digest() == StateDigest());
}

TEST_CASE("Without tracking, what is called is what is published") {
  EventRecorder::Options options = OptionsWith(Removals::kExact);
  options.track_state = false;
  Fixture f(options);
  f.Store({1});
  f.Store({1});
  f.Reuse({1});
  f.Remove({1});
  f.Remove({1});
  f.Remove({1});
  f.recorder.Clear();
  CHECK(Text(f.recorder.pending()) == "S1 S1 S1 R1 R1 R1 C");
  CHECK(f.recorder.digest() == StateDigest());
}

TEST_CASE("Clear zeroes copies, announcements and the digest") {
  Fixture f;
  f.Store({1});
  f.Store({1});
  f.Reuse({1});
  f.recorder.Clear();
  CHECK(f.recorder.digest() == StateDigest());
  CHECK_FALSE(f.recorder.Audit(ListWalk({})).has_value());
  f.Store({1});
  f.Remove({1});
  CHECK(Text(f.recorder.pending()) == "S1 S1 S1 C S1 R1");
}

TEST_CASE("Clear is announced even when nothing was held") {
  Fixture f;
  f.recorder.Clear();
  CHECK(Text(f.recorder.pending()) == "C");
}

TEST_CASE("A disabled recorder is inert") {
  EventRecorder::Options options = OptionsWith(Removals::kExact);
  options.enabled = false;
  Fixture f(options);
  f.Store({1});
  f.Reuse({1});
  f.Remove({1});
  f.recorder.Clear();
  CHECK(f.recorder.pending().empty());
  CHECK(f.recorder.digest() == StateDigest());
  CHECK(f.recorder.EndStep() == PublishResult::kAccepted);
  CHECK(f.publisher.stats() == PublisherStats());
  CHECK_FALSE(f.recorder.Audit(ListWalk({{1, std::nullopt}})).has_value());
}

TEST_CASE("A disabled recorder builds no event: whatever it is told, it allocates nothing") {
  const StoredEvent stored({1, 2, 3}, 9);
  const RemovedEvent removed({1, 2, 3});
  const std::vector<ExtraKeys> keys(3, ExtraKeys{std::string("a key that does not fit into a short string")});
  BlockStored event = stored.view();
  event.extra_keys = {false, keys};
  event.lora_name = "a name that does not fit into a short string";
  const auto allocations = [&](bool enabled) {
    EventRecorder::Options options = OptionsWith(Removals::kExact);
    options.enabled = enabled;
    NullEventPublisher publisher;
    EventRecorder recorder(options, &publisher);
    const std::size_t start = test::AllocationCount();
    for (int i = 0; i < 100; ++i) {
      recorder.Store(event);
      recorder.Reuse(event);
      recorder.Remove(removed.view());
      recorder.Clear();
      CHECK(recorder.pending().empty() == !enabled);
      CHECK((recorder.pending().ByteSize() == 0) == !enabled);
      CHECK(recorder.EndStep() == PublishResult::kAccepted);
      CHECK(recorder.digest() == StateDigest());
    }
    return test::AllocationCount() - start;
  };
  // Assertions that hold allocate nothing; what an enabled recorder needs shows that the count sees it.
  CHECK(allocations(false) == 0);
  CHECK(allocations(true) > 100);
}

TEST_CASE("Audit finds nothing when walk and events agree") {
  Fixture f;
  CHECK_FALSE(f.recorder.Audit(ListWalk({})).has_value());
  f.Store({1, 2});
  f.Store({3}, 2);
  f.Store({3}, 2);
  f.Remove({3});
  CHECK_FALSE(f.recorder.Audit(ListWalk({{3, 2}, {2, 1}, {1, std::nullopt}})).has_value());
  CHECK_FALSE(f.recorder.Audit(ListWalk({{1, std::nullopt, 0, "gpu"}, {2, 1}, {3, 2}})).has_value());
}

TEST_CASE("Audit names a resident block that was not announced") {
  Fixture f;
  f.Store({1});
  const auto found = f.recorder.Audit(ListWalk({{1, std::nullopt}, {2, 1}}));
  REQUIRE(found.has_value());
  CHECK(found->kind == Divergence::Kind::kNotAnnounced);
  CHECK(found->hash == BlockHash::FromUint64(2));
  CHECK(found->message == "block 0000000000000002 of group 0 in GPU is resident but not announced");
  // The same hash elsewhere is another block.
  const auto elsewhere = f.recorder.Audit(ListWalk({{1, std::nullopt}, {1, std::nullopt, 1, "cpu"}}));
  REQUIRE(elsewhere.has_value());
  CHECK(elsewhere->group == 1);
  CHECK(elsewhere->medium == "CPU");
}

TEST_CASE("Audit names an announced block that is not resident") {
  Fixture f;
  f.Store({1, 2});
  const auto found = f.recorder.Audit(ListWalk({{1, std::nullopt}}));
  REQUIRE(found.has_value());
  CHECK(found->kind == Divergence::Kind::kNotResident);
  CHECK(found->hash == BlockHash::FromUint64(2));
  CHECK(found->message == "block 0000000000000002 of group 0 in GPU is announced but not resident");
}

TEST_CASE("Audit names a block announced under another parent") {
  Fixture f;
  f.Store({1});
  f.Store({2});
  f.Store({3}, 2);
  const auto root = f.recorder.Audit(ListWalk({{1, std::nullopt}, {2, 1}, {3, 2}}));
  REQUIRE(root.has_value());
  CHECK(root->kind == Divergence::Kind::kWrongParent);
  CHECK(root->hash == BlockHash::FromUint64(2));
  CHECK(root->message ==
        "block 0000000000000002 of group 0 in GPU is resident with parent 0000000000000001 but announced with parent "
        "none");
  const auto child = f.recorder.Audit(ListWalk({{1, std::nullopt}, {2, std::nullopt}, {3, 1}}));
  REQUIRE(child.has_value());
  CHECK(child->hash == BlockHash::FromUint64(3));
  // A later announcement under the wrong parent is not hidden by the right one before it.
  f.Reuse({3});
  CHECK(f.recorder.Audit(ListWalk({{1, std::nullopt}, {2, std::nullopt}, {3, 2}})).has_value());
}

TEST_CASE("Audit reports the first difference whatever the order of the walk") {
  Fixture f;
  f.Store({5});
  f.Store({7});
  // 5 is not resident, 6 not announced, 7 under another parent.
  const std::vector<ListWalk::Block> forward = {{6, 5}, {7, 6}};
  const std::vector<ListWalk::Block> backward = {{7, 6}, {6, 5}};
  for (const auto& blocks : {forward, backward}) {
    const auto found = f.recorder.Audit(ListWalk(blocks));
    REQUIRE(found.has_value());
    CHECK(found->kind == Divergence::Kind::kNotResident);
    CHECK(found->hash == BlockHash::FromUint64(5));
  }
  for (const auto& blocks : {forward, backward}) {
    auto with_five = blocks;
    with_five.push_back({5, std::nullopt});
    const auto found = f.recorder.Audit(ListWalk(with_five));
    REQUIRE(found.has_value());
    CHECK(found->hash == BlockHash::FromUint64(6));
  }
}

TEST_CASE("Audit sees pending events") {
  Fixture f;
  f.Store({1});
  f.recorder.EndStep();
  f.Remove({1});
  CHECK_FALSE(f.recorder.Audit(ListWalk({})).has_value());
}

}  // namespace
}  // namespace kvwire
