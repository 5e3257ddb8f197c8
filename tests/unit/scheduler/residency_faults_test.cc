// SPDX-License-Identifier: Apache-2.0
// Faults of other producers: events for changes that are none, and events of one group or tier that cannot be told from
// another's.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/unit/scheduler/rig.h"

namespace kvwire::scheduler {
namespace {

TEST_CASE("D13: what changes no residency says nothing: hits, copies that go, preemption, frees, lookups") {
  Rig rig(SmallConfig(32));
  const EventTexts texts = CountedNames();
  rig.Add(1, Range(1, 12), 1);
  rig.Step();
  CHECK(rig.Published(texts) == Texts{"S h0,h1,h2 < nil : 1..12"});
  SUBCASE("a hit and its release") {
    rig.Add(2, Range(1, 14), 1);
    rig.Step();
  }
  SUBCASE("a lookup") { CHECK(rig.scheduler().CachedTokens(ChainOf(HasherWithSeed("0"), Range(1, 12), 4)) == 12); }
  SUBCASE("a request that is preempted and one that is aborted after their hit") {
    rig.Add(2, Range(1, 14));
    rig.Step();
    REQUIRE(rig.scheduler().PreemptNewest());
    rig.Step();
    REQUIRE(rig.scheduler().Abort(2));
  }
  SUBCASE("a copy that is evicted while another stays") {
    rig.Add(2, Range(1, 12), 1);
    rig.Step();
    CHECK(rig.Published(texts) == Texts{"S h2 < h1 : 9..12"});
    const BlockHash h2 = ChainOf(HasherWithSeed("0"), Range(1, 12), 4)[2];
    REQUIRE(rig.pool().num_copies(h2, 0) == 2);
    const BlockId first = rig.pool().FindCached(h2, 0);
    REQUIRE(rig.scheduler().EvictBlocks(std::vector<BlockId>{first}));
    CHECK(rig.pool().num_copies(h2, 0) == 1);
  }
  CHECK(rig.Published(texts).empty());
}

TEST_CASE("D13: equal tokens at different places of a prompt are different blocks, and no event has a hash twice") {
  Rig rig(SmallConfig(32));
  rig.Add(1, std::vector<TokenId>(33, 5), 1);
  rig.Step();
  struct Hashes {
    void operator()(const BlockStored& stored) {
      all.insert(all.end(), stored.block_hashes.begin(), stored.block_hashes.end());
    }
    void operator()(const BlockRemoved&) {}
    void operator()(const AllBlocksCleared&) {}
    std::vector<BlockHash> all;
  } hashes;
  for (const KVEventBatch& batch : rig.publisher().batches()) batch.Visit(hashes);
  CHECK(hashes.all.size() == 8);
  std::sort(hashes.all.begin(), hashes.all.end());
  CHECK(std::adjacent_find(hashes.all.begin(), hashes.all.end()) == hashes.all.end());
}

TEST_CASE("D7: a removal is of one group, and the groups' removals of one step can be told apart") {
  SchedulerConfig config = SmallConfig(7);
  config.groups = {{KVCacheKind::kFullAttention, 4, 0}, {KVCacheKind::kSlidingWindow, 4, 8}};
  Rig rig(config);
  rig.Add(1, Range(1, 9), 1);
  rig.Step();
  const std::string in_window = " [group 1] [kind sliding_window] [window 8]";
  CHECK(rig.Published(CountedNames()) == Texts{"S h0,h1 < nil : 1..8", "S h0,h1 < nil : 1..8" + in_window});
  // It takes every block of the pool.
  rig.Add(2, std::vector<TokenId>(11, 900), 1);
  rig.Step();
  Texts removals;
  for (const std::string& text : rig.Published(CountedNames())) {
    if (text[0] == 'R') removals.push_back(text);
  }
  CHECK(removals == Texts{"R h1", "R h0", "R h1 [group 1]", "R h0 [group 1]"});
}

TEST_CASE("H3: a block is the same event on the host as on the device, at the block size of its group") {
  SchedulerConfig config = SmallConfig(17);
  config.groups = {{KVCacheKind::kFullAttention, 8, 0}};
  config.host_blocks = 16;
  Rig rig(config);
  rig.Add(1, Range(1, 17), 1);
  rig.Step();
  CHECK(rig.Published(CountedNames()) == Texts{"S h1,h3 < nil : 1..16 [block_size 8]"});
  rig.Add(2, {900}, 1);
  const SchedulerOutput step = rig.Schedule();
  REQUIRE(step.stores.size() == 2);
  RunnerOutput output;
  output.sampled = {{2, 7}};
  for (const StoreBlock& store : step.stores) output.stores.push_back({0, store.job, true});
  rig.scheduler().UpdateFromOutput(step, output);
  CHECK(rig.Published(CountedNames()) ==
        Texts{"S h3 < h1 : 9..16 [medium CPU] [block_size 8]", "S h1 < nil : 1..8 [medium CPU] [block_size 8]"});
}

}  // namespace
}  // namespace kvwire::scheduler
