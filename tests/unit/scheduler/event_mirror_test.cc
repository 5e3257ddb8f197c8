// SPDX-License-Identifier: Apache-2.0
#include "tests/support/event_mirror.h"

#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/unit/scheduler/rig.h"

namespace kvwire::scheduler {
namespace {

using testing::EventMirror;

const std::vector<TokenId> kTokens = Range(1, 12);
const std::vector<BlockHash> kHashes = ChainOf(HasherWithSeed("0"), kTokens, 4);

BlockStored StoreOf(std::size_t first, std::size_t last) {
  BlockStored stored;
  stored.block_hashes = std::span(kHashes).subspan(first, last - first);
  if (first > 0) stored.parent_block_hash = kHashes[first - 1];
  stored.token_ids = std::span(kTokens).subspan(4 * first, 4 * (last - first));
  stored.block_size = 4;
  stored.medium = kMediumGpu;
  stored.group_idx = 0;
  stored.extra_keys.absent = false;
  return stored;
}

BlockRemoved RemovalOf(std::size_t i) {
  BlockRemoved removed;
  removed.block_hashes = std::span(kHashes).subspan(i, 1);
  removed.medium = kMediumGpu;
  removed.group_idx = 0;
  return removed;
}

template <class... Events>
KVEventBatch BatchOf(const Events&... events) {
  KVEventBatch batch;
  (batch.Add(events), ...);
  return batch;
}

TEST_CASE("D2: a counting consumer: store store remove is present, one more removal is absent") {
  EventMirror mirror;
  CHECK(mirror.Apply(BatchOf(StoreOf(0, 1), StoreOf(0, 1), RemovalOf(0))).empty());
  CHECK(mirror.count(kHashes[0]) == 1);
  CHECK(mirror.digest().entries().at(0).count == 1);
  CHECK(mirror.Apply(BatchOf(RemovalOf(0))).empty());
  CHECK(mirror.count(kHashes[0]) == 0);
  CHECK(mirror.size() == 0);
  CHECK(mirror.digest() == StateDigest());
}

TEST_CASE("D2: a removal of the unknown is named and counts for nothing") {
  EventMirror mirror;
  CHECK(mirror.Apply(BatchOf(RemovalOf(0))) ==
        Texts{"BlockRemoved of " + std::to_string(kHashes[0].Low64()) + ", which is not held"});
  CHECK(mirror.Apply(BatchOf(StoreOf(0, 1))).empty());
  CHECK(mirror.count(kHashes[0]) == 1);
}

TEST_CASE("D2: a clear sets every count to zero") {
  EventMirror mirror;
  CHECK(mirror.Apply(BatchOf(StoreOf(0, 1), AllBlocksCleared{}, StoreOf(0, 1), RemovalOf(0))).empty());
  CHECK(mirror.count(kHashes[0]) == 0);
}

TEST_CASE("D2: a removal of two hashes lets only the one go that was held once") {
  EventMirror mirror;
  CHECK(mirror.Apply(BatchOf(StoreOf(0, 2), StoreOf(0, 1))).empty());
  BlockRemoved both = RemovalOf(0);
  both.block_hashes = std::span(kHashes).first(2);
  CHECK(mirror.Apply(BatchOf(both)) == Texts{"BlockRemoved does not list exactly one hash"});
  CHECK(mirror.count(kHashes[0]) == 1);
  CHECK(mirror.count(kHashes[1]) == 0);
}

// What is broken by one store that was changed.
Texts BrokenBy(const std::function<void(BlockStored*)>& change) {
  BlockHasher hasher = HasherWithSeed("0");
  EventMirror mirror(&hasher);
  CHECK(mirror.Apply(BatchOf(StoreOf(0, 1))).empty());
  BlockStored stored = StoreOf(1, 3);
  change(&stored);
  return mirror.Apply(BatchOf(stored));
}

TEST_CASE("every rule for a store is named when it is broken") {
  const std::string h1 = std::to_string(kHashes[1].Low64());
  const std::string h2 = std::to_string(kHashes[2].Low64());
  CHECK(BrokenBy([](BlockStored*) {}).empty());
  CHECK(BrokenBy([](BlockStored* s) { s->medium = "TAPE"; }) ==
        Texts{"BlockStored with another medium than GPU, CPU or DISK"});
  CHECK(BrokenBy([](BlockStored* s) { s->group_idx.reset(); }) == Texts{"BlockStored without group_idx"});
  CHECK(BrokenBy([](BlockStored* s) { s->token_ids = s->token_ids.first(7); }) ==
        Texts{"BlockStored with 7 tokens for 2 hashes"});
  CHECK(BrokenBy([](BlockStored* s) {
          s->block_hashes = {};
          s->token_ids = {};
        }) == Texts{"BlockStored without hashes"});
  CHECK(BrokenBy([](BlockStored* s) { s->parent_block_hash.reset(); }) ==
        Texts{h1 + " is not the hash of its parent and tokens"});
  CHECK(BrokenBy([](BlockStored* s) { s->parent_block_hash = BlockHash::FromUint64(5); }) ==
        Texts{"the parent 5 of " + h1 + " was never announced", h1 + " is not the hash of its parent and tokens"});
  static const std::vector<BlockHash> twice = {kHashes[2], kHashes[2]};
  const Texts broken = BrokenBy([](BlockStored* s) { s->block_hashes = twice; });
  CHECK(std::find(broken.begin(), broken.end(), "BlockStored lists " + h2 + " twice") != broken.end());
  CHECK(EventMirror().Apply(KVEventBatch()) == Texts{"a batch without events"});
}

TEST_CASE("a hash announced again must have the same parent and tokens") {
  EventMirror mirror;
  CHECK(mirror.Apply(BatchOf(StoreOf(0, 2))).empty());
  BlockStored other = StoreOf(1, 2);
  other.parent_block_hash.reset();
  CHECK(mirror.Apply(BatchOf(other)).size() == 1);
  other = StoreOf(1, 2);
  other.token_ids = std::span(kTokens).first(4);
  CHECK(mirror.Apply(BatchOf(other)).size() == 1);
}

TEST_CASE("a parent stays known after its removal, and not after a clear") {
  EventMirror mirror;
  CHECK(mirror.Apply(BatchOf(StoreOf(0, 1), RemovalOf(0), StoreOf(1, 2))).empty());
  CHECK(mirror.Apply(BatchOf(AllBlocksCleared{}, StoreOf(1, 2))).size() == 1);
}

// A scheduler that has evicted and stored, its batches, and the state at the end.
class Recorded {
 public:
  Recorded() : rig_(SmallConfig(8)) {
    rig_.Add(1, kTokens, 1);
    rig_.Step();
    rig_.Add(2, Range(100, 20), 1);
    rig_.Step();
    batches_ = rig_.publisher().TakeBatches();
    REQUIRE(batches_.size() == 2);
    REQUIRE(EventTexts(4).Of(batches_[1]).size() == 2);
  }

  const std::vector<KVEventBatch>& batches() const { return batches_; }

  // What a consumer finds broken or different that is given each event as `pass` passes it on.
  template <class Pass>
  Texts Found(const Pass& pass) {
    BlockHasher hasher = HasherWithSeed("0");
    EventMirror mirror(&hasher);
    Texts found;
    for (const KVEventBatch& batch : batches_) {
      KVEventBatch changed;
      batch.Visit([&](const auto& event) { pass(event, &changed); });
      const Texts broken = mirror.Apply(changed);
      found.insert(found.end(), broken.begin(), broken.end());
    }
    const Texts different = mirror.Compare(
        rig_.pool(), rig_.pool().digest(),
        [&](const BlockHash& hash, std::uint32_t group) { return rig_.pool().num_announced(hash, group); });
    found.insert(found.end(), different.begin(), different.end());
    return found;
  }

 private:
  Rig rig_;
  std::vector<KVEventBatch> batches_;
};

bool Mentions(const Texts& texts, const std::string& part) {
  return std::any_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return text.find(part) != std::string::npos; });
}

TEST_CASE("the true stream of a scheduler is clean") {
  CHECK(Recorded().Found([](const auto& event, KVEventBatch* to) { to->Add(event); }).empty());
}

TEST_CASE("a planted fault: a missing removal is caught") {
  struct Pass {
    void operator()(const BlockRemoved&, KVEventBatch*) const {}
    void operator()(const BlockStored& event, KVEventBatch* to) const { to->Add(event); }
    void operator()(const AllBlocksCleared& event, KVEventBatch* to) const { to->Add(event); }
  };
  const Texts found = Recorded().Found(Pass());
  CHECK(Mentions(found, "is announced, but not resident"));
  CHECK(Mentions(found, "the digest is"));
}

TEST_CASE("a planted fault: a removal too many is caught") {
  struct Pass {
    void operator()(const BlockRemoved& event, KVEventBatch* to) const {
      to->Add(event);
      to->Add(event);
    }
    void operator()(const BlockStored& event, KVEventBatch* to) const { to->Add(event); }
    void operator()(const AllBlocksCleared& event, KVEventBatch* to) const { to->Add(event); }
  };
  CHECK(Mentions(Recorded().Found(Pass()), "which is not held"));
}

TEST_CASE("a planted fault: a store twice is caught by the counts") {
  struct Pass {
    void operator()(const BlockStored& event, KVEventBatch* to) const {
      to->Add(event);
      to->Add(event);
    }
    void operator()(const BlockRemoved& event, KVEventBatch* to) const { to->Add(event); }
    void operator()(const AllBlocksCleared& event, KVEventBatch* to) const { to->Add(event); }
  };
  CHECK(Mentions(Recorded().Found(Pass()), "is counted 2 times, by its owner 1 times"));
}

TEST_CASE("a planted fault: a wrong parent is caught") {
  struct Pass {
    void operator()(const BlockStored& event, KVEventBatch* to) const {
      BlockStored changed = event;
      changed.parent_block_hash = kHashes[0];
      to->Add(changed);
    }
    void operator()(const BlockRemoved& event, KVEventBatch* to) const { to->Add(event); }
    void operator()(const AllBlocksCleared& event, KVEventBatch* to) const { to->Add(event); }
  };
  const Texts found = Recorded().Found(Pass());
  CHECK(Mentions(found, "was never announced"));
  CHECK(Mentions(found, "is not the hash of its parent and tokens"));
  CHECK(Mentions(found, "was announced under another parent"));
}

TEST_CASE("a planted fault: an event of blocks that are not computed yet is caught") {
  Rig rig(SmallConfig(8));
  rig.Add(1, kTokens, 1);
  const SchedulerOutput step = rig.Schedule();
  EventMirror mirror;
  CHECK(mirror.Apply(BatchOf(StoreOf(0, 3))).empty());
  CHECK(Mentions(mirror.Compare(rig.pool(), rig.pool().digest()), "is announced, but not resident"));
  rig.Update(step);
  CHECK(mirror.Compare(rig.pool(), rig.pool().digest()).empty());
}

TEST_CASE("a resident block that was never announced is caught") {
  Rig rig(SmallConfig(8));
  rig.Add(1, kTokens, 1);
  rig.Step();
  EventMirror mirror;
  CHECK(Mentions(mirror.Compare(rig.pool(), rig.pool().digest()), "is resident, but not announced"));
}

TEST_CASE("a walk that meets children first or blocks twice is caught") {
  struct Source final : StateSource {
    void Walk(const std::function<void(const ResidentBlock&)>& visit) const override {
      for (const std::size_t i : order) {
        ResidentBlock block;
        block.hash = kHashes[i];
        if (i > 0) block.parent = kHashes[i - 1];
        block.token_ids = std::span(kTokens).subspan(4 * i, 4);
        visit(block);
      }
    }
    std::vector<std::size_t> order;
  };
  EventMirror mirror;
  CHECK(mirror.Apply(BatchOf(StoreOf(0, 2))).empty());
  Source source;
  source.order = {0, 1};
  CHECK(mirror.Compare(source, mirror.digest()).empty());
  source.order = {1, 0};
  CHECK(Mentions(mirror.Compare(source, mirror.digest()), "before its parent"));
  source.order = {0, 1, 1};
  CHECK(Mentions(mirror.Compare(source, mirror.digest()), "twice"));
}

}  // namespace
}  // namespace kvwire::scheduler
