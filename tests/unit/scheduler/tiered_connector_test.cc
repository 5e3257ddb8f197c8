// SPDX-License-Identifier: Apache-2.0
#include "scheduler/tiered_connector.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "tests/unit/scheduler/tier_rig.h"

namespace kvwire::scheduler {
namespace {

SchedulerConfig BothTiers(std::uint32_t num_workers, std::uint32_t host_blocks = 16, std::uint32_t disk_blocks = 16) {
  SchedulerConfig config = TierConfig<OnHost>(num_workers, host_blocks);
  config.disk_blocks = disk_blocks;
  return config;
}

const Texts kOnBoth = {"S h1 < h0 : 5..8 [lower]", "S h0 < nil : 1..4 [lower]", "S h1 < h0 : 5..8 [medium DISK]",
                       "S h0 < nil : 1..4 [medium DISK]"};

TEST_CASE("H1, G3: both tiers store what the device evicts next, in one space of jobs and blocks, the host first") {
  TierRig tier(BothTiers(2));
  const SchedulerOutput step = tier.OtherStep();
  REQUIRE(step.stores.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(step.stores[i].job == i + 1);
    CHECK(step.stores[i].device_block == tier.FindOnDevice(i % 2 == 0 ? 1 : 0));
    CHECK((step.stores[i].host_block <= 16) == (i < 2));
  }
  CHECK(tier.rig.pool().num_references(tier.FindOnDevice(0)) == 2);
  tier.Update(step, tier.AllOf(0));
  CHECK(tier.Published().empty());
  // The disk's other worker is late: only the host's are announced, and the device blocks are held.
  const std::vector<StoreResult> last = tier.AllOf(1);
  tier.Update(tier.OtherStep(), {last[0], last[1]});
  CHECK(tier.Published() == Texts(kOnBoth.begin(), kOnBoth.begin() + 2));
  CHECK(tier.rig.pool().num_references(tier.FindOnDevice(0)) == 1);
  CHECK(tier.Find(0) <= 16);
  tier.Update(tier.OtherStep(), {last[2], last[3]});
  CHECK(tier.Published() == Texts(kOnBoth.begin() + 2, kOnBoth.end()));
  CHECK(tier.rig.pool().num_references(tier.FindOnDevice(0)) == 0);
  CHECK(tier.scheduler().stats().host.resident == 2);
  CHECK(tier.scheduler().stats().disk.resident == 2);
  tier.CheckDigest();
}

TEST_CASE("one batch has the device's events, then the host's, then the disk's") {
  TierRig tier(BothTiers(1));
  tier.rig.Add(50, Range(101, 9), 1);
  const SchedulerOutput step = tier.Schedule();
  tier.Update(step, tier.AllOf(0));
  Texts expected{"S g0,g1 < nil : 101..108"};
  expected.insert(expected.end(), kOnBoth.begin(), kOnBoth.end());
  CHECK(tier.Published() == expected);
}

TEST_CASE("a hit takes the device first, then the host, then the disk, and each prompt token counts for one of them") {
  TierRig tier(BothTiers(1, 1));
  tier.rig.Add(2, Range(901, 4 * 14 + 1), 1);  // leaves h0 alone in the queue
  tier.StepWith(0);
  tier.jobs.clear();
  tier.rig.Add(3, {900, 901}, 1);
  tier.StepWith(0);
  tier.jobs.clear();
  tier.Published();
  REQUIRE(tier.scheduler().stats().host.resident == 1);
  REQUIRE(tier.scheduler().stats().disk.resident >= 1);
  const HostBlockId on_disk = tier.Find(0);
  CHECK(on_disk != kNoHostBlock);
  tier.EvictFromDevice();
  tier.rig.Add(4, tier.prompt, 1);
  const SchedulerOutput step = tier.Schedule();
  REQUIRE(step.loads.size() == 1);
  CHECK(step.loads[0].host_block == on_disk);
  tier.Update(step, tier.AllOf(0));
  const SchedulerStats stats = tier.scheduler().stats();
  CHECK(stats.host_hit_tokens + stats.disk_hit_tokens == 4);
  CHECK(stats.hit_tokens + stats.host_hit_tokens + stats.disk_hit_tokens + stats.computed_prompt_tokens ==
        stats.prompt_tokens);
  CHECK(stats.host.loaded + stats.disk.loaded == 1);
  tier.CheckDigest();
}

TEST_CASE("H6: what one lower tier loses stays in the other") {
  TierRig tier(BothTiers(1));
  tier.OtherStepWith(0);
  CHECK(tier.Published() == kOnBoth);
  tier.EvictFromDevice();
  // What the host cannot load is loaded from the disk the next time.
  tier.rig.Add(2, tier.prompt, 1);
  const SchedulerOutput step = tier.Schedule();
  REQUIRE(step.loads.size() == 2);
  CHECK(tier.host().TierOf(step.loads[0].host_block) == Tier::kHost);
  tier.Update(step, {}, {2});
  CHECK(tier.Published() == Texts{"R h0 h1 [lower]"});
  const SchedulerOutput again = tier.Schedule();
  REQUIRE(again.loads.size() == 2);
  CHECK(tier.host().TierOf(again.loads[0].host_block) == Tier::kDisk);
  tier.Update(again, {}, {2});
  CHECK(tier.Published() == Texts{"R h0 h1 [medium DISK]"});
  CHECK(tier.Schedule().loads.empty());
  tier.CheckDigest();
}

TEST_CASE("a store that fails in one tier is none there, and one in the other") {
  TierRig tier(BothTiers(1));
  const SchedulerOutput step = tier.OtherStep();
  std::vector<StoreResult> results = tier.AllOf(0);
  results[2].ok = results[3].ok = false;
  tier.Update(step, results);
  CHECK(tier.Published() == Texts(kOnBoth.begin(), kOnBoth.begin() + 2));
  CHECK(tier.scheduler().stats().host.failed_stores == 0);
  CHECK(tier.scheduler().stats().disk.failed_stores == 2);
  tier.CheckDigest();
}

TEST_CASE("a reset clears both tiers, or keeps both and announces them again, the host first") {
  for (const TierReset policy : {TierReset::kClear, TierReset::kKeep}) {
    CAPTURE(policy == TierReset::kKeep);
    SchedulerConfig config = BothTiers(1);
    config.reset_lower_tiers = policy;
    TierRig tier(config);
    tier.OtherStepWith(0);
    CHECK(tier.Published() == kOnBoth);
    CHECK(tier.scheduler().ResetPrefixCache(ResetMode::kFailWhileRunning));
    CHECK(tier.Published() ==
          (policy == TierReset::kClear ? Texts{"C"} : Texts{"C", kOnBoth[1], kOnBoth[0], kOnBoth[3], kOnBoth[2]}));
    CHECK(tier.scheduler().CachedTokens(tier.hashes) == (policy == TierReset::kClear ? 0 : 8));
    tier.CheckDigest();
  }
}

TEST_CASE("nobody is preempted for a block that both tiers are storing") {
  TierRig tier(BothTiers(1));
  tier.rig.Add(2, Range(901, 4 * 13 + 3), 4);
  SchedulerOutput step = tier.Schedule();
  REQUIRE(step.stores.size() == 4);
  tier.Update(step);
  for (int i = 0; i < 3; ++i) {
    step = tier.Schedule();
    CHECK(step.requests.size() == 1);
    tier.Update(step);
  }
  CHECK(tier.scheduler().stats().preemptions == 0);
  tier.CheckDigest();
}

TEST_CASE("several groups are announced and found on the disk, each with its own") {
  SchedulerConfig config = TierConfig<OnDisk>(1, 32);
  config.num_blocks = 33;
  config.groups = {{KVCacheKind::kFullAttention, 4, 0}, {KVCacheKind::kSlidingWindow, 4, 5}};
  Rig rig(config);
  rig.Add(1, Range(1, 9), 1);
  rig.Step();
  rig.Add(2, {900, 901}, 1);
  const SchedulerOutput step = rig.Schedule();
  REQUIRE(step.stores.size() == 4);
  RunnerOutput output;
  output.sampled.push_back({2, 7});
  for (const StoreBlock& store : step.stores) output.stores.push_back({0, store.job, true});
  rig.scheduler().UpdateFromOutput(step, output);
  const auto entries = rig.scheduler().digest().entries();
  CHECK(std::ranges::count(entries, "DISK", &StateDigest::Entry::medium) == 2);
}

}  // namespace
}  // namespace kvwire::scheduler
