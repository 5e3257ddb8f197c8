// SPDX-License-Identifier: Apache-2.0
#include "scheduler/lower_tier.h"

#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/unit/scheduler/tier_rig.h"

namespace kvwire::scheduler {
namespace {

TEST_CASE_TEMPLATE("a lower tier without prefix caching, with vllm_exact or without workers is refused by name", T,
                   OnHost, OnDisk) {
  const auto refusal = [](const SchedulerConfig& config) {
    CollectingEventPublisher publisher;
    auto created = Scheduler::Create(config, HasherWithSeed("0"), &publisher);
    REQUIRE_FALSE(created.has_value());
    return created.error().message;
  };
  SchedulerConfig config = TierConfig<T>(1);
  config.enable_prefix_caching = false;
  const std::string blocks(TraitsOf(T::kTier).option);
  CHECK(refusal(config) == blocks + " is 16; allowed: 0, as enable_prefix_caching is false");
  config = TierConfig<T>(1);
  config.vllm_exact = true;
  CHECK(refusal(config) == blocks + " is 16; allowed: 0, as vllm_exact is true");
  CHECK(refusal(TierConfig<T>(0)) == "tensor_parallel_size is 0; allowed: 1 or more");
  CHECK(refusal(TierConfig<T>(4097)) == "tensor_parallel_size is 4097; allowed: 1 to 4096");
}

TEST_CASE_TEMPLATE("G3: a lower block is announced and found from the step on in which its last worker reports, once",
                   T, OnHost, OnDisk) {
  TierRig tier(TierConfig<T>(2));
  const SchedulerOutput step = tier.OtherStep();
  REQUIRE(step.stores.size() == 2);
  CHECK(step.stores[0].device_block == tier.FindOnDevice(1));  // the next victim first
  CHECK(step.stores[1].device_block == tier.FindOnDevice(0));
  CHECK(step.stores[0].num_tokens == 4);
  tier.Update(step, tier.AllOf(0));
  CHECK(tier.Published().empty());
  CHECK(tier.Find(0) == kNoHostBlock);
  CHECK(tier.rig.pool().num_references(tier.FindOnDevice(0)) == 1);

  tier.OtherStepWith(1);
  CHECK(tier.Published() == Texts{"S h1 < h0 : 5..8 [lower]", "S h0 < nil : 1..4 [lower]"});
  CHECK(tier.Find(0) != kNoHostBlock);
  CHECK(tier.Find(1) != kNoHostBlock);
  tier.CheckDigest();
  // They are what the device evicts next, as before.
  CHECK(tier.rig.pool().num_references(tier.FindOnDevice(0)) == 0);
  const std::vector<BlockId> free = tier.rig.FreeQueue();
  REQUIRE(free.size() == 16);
  CHECK(free[14] == tier.FindOnDevice(1));
  CHECK(free[15] == tier.FindOnDevice(0));

  tier.OtherStepWith(1);
  CHECK(tier.Published().empty());
}

TEST_CASE_TEMPLATE("G1: a worker that reports a store twice counts once; unknown workers and jobs count nothing", T,
                   OnHost, OnDisk) {
  TierRig tier(TierConfig<T>(2));
  std::vector<StoreResult> results;
  const SchedulerOutput step = tier.OtherStep();
  for (int i = 0; i < 2; ++i) {
    for (const StoreResult& result : tier.AllOf(0)) results.push_back(result);
  }
  for (const StoreResult& result : tier.AllOf(2)) results.push_back(result);
  results.push_back({1, 999, true});
  tier.Update(step, results);
  tier.OtherStepWith(0);
  CHECK(tier.Published().empty());
  CHECK(tier.Find(0) == kNoHostBlock);
}

TEST_CASE_TEMPLATE("G3: a block that one worker could not store is not announced, and is stored again", T, OnHost,
                   OnDisk) {
  TierRig tier(TierConfig<T>(2));
  tier.OtherStepWith(0);
  tier.OtherStepWith(1, false);
  CHECK(tier.Published().empty());
  CHECK(tier.Find(0) == kNoHostBlock);
  CHECK(tier.stats().failed_stores == 2);

  tier.jobs.clear();
  const SchedulerOutput again = tier.OtherStep();
  REQUIRE(again.stores.size() == 2);
  tier.Update(again, tier.AllOf(1));
  CHECK(tier.Published().empty());
  tier.OtherStepWith(0);
  CHECK(tier.Published().size() == 2);
}

TEST_CASE_TEMPLATE(
    "H1: what is announced of a lower tier is found by a request, loaded, and announced of the device again", T, OnHost,
    OnDisk) {
  TierRig tier(TierConfig<T>(1));
  tier.StoreAll();
  tier.EvictFromDevice();
  CHECK(tier.scheduler().CachedTokens(tier.hashes) == 8);
  tier.rig.Add(2, tier.prompt, 1);
  const SchedulerOutput step = tier.Schedule();
  REQUIRE(step.loads.size() == 2);
  CHECK(step.loads[0].host_block == tier.Find(0));
  CHECK(step.loads[0].device_block == step.requests[0].block_tables[0][0]);
  CHECK(step.loads[1].host_block == tier.Find(1));
  CHECK(step.requests[0].num_computed_tokens == 8);
  CHECK(tier.Published().empty());
  const std::vector<FinishedRequest> finished = tier.Update(step);
  REQUIRE(finished.size() == 1);
  CHECK(finished[0].num_cached_tokens == 8);
  CHECK(tier.Published() == Texts{"S h0,h1 < nil : 1..8"});
  CHECK(tier.scheduler().stats().hit_tokens == 0);
  CHECK(tier.hit_tokens() == 8);
  CHECK(tier.Find(0) != kNoHostBlock);
}

TEST_CASE_TEMPLATE("a hit takes from the device what it has and from the lower tier the rest", T, OnHost, OnDisk) {
  TierRig tier(TierConfig<T>(1));
  tier.StoreAll();
  tier.scheduler().EvictHash(tier.hashes[1]);
  CHECK(tier.Published() == Texts{"R h1"});
  const BlockId h0 = tier.FindOnDevice(0);
  tier.rig.Add(2, tier.prompt, 1);
  const SchedulerOutput step = tier.Schedule();
  REQUIRE(step.loads.size() == 1);
  CHECK(step.requests[0].block_tables[0][0] == h0);
  CHECK(step.loads[0].device_block == step.requests[0].block_tables[0][1]);
  tier.Update(step);
  CHECK(tier.Published() == Texts{"S h1 < h0 : 5..8"});
  CHECK(tier.scheduler().stats().hit_tokens == 4);
  CHECK(tier.hit_tokens() == 4);
}

TEST_CASE_TEMPLATE("H6: a block that leaves the device stays in the lower tier, and one that leaves this on the device",
                   T, OnHost, OnDisk) {
  TierRig tier(TierConfig<T>(1));
  tier.StoreAll();
  tier.scheduler().EvictHash(tier.hashes[1]);
  CHECK(tier.Published() == Texts{"R h1"});
  CHECK(tier.FindOnDevice(1) == kNullBlock);
  CHECK(tier.Find(1) != kNoHostBlock);

  TierRig small(TierConfig<T>(1, 1));
  // The tier has one block; it looks no further than the next victim.
  small.rig.Add(2, Range(901, 4 * 14 + 1), 1);  // 15 blocks: h0 alone stays in the queue, and its store is planned
  small.StepWith(0);
  small.Published();
  REQUIRE(small.Find(0) != kNoHostBlock);
  small.jobs.clear();
  small.rig.Add(3, small.prompt, 1);  // h0 is held, so that other victims are next
  small.StepWith(0);
  CHECK(small.Find(0) == kNoHostBlock);
  CHECK(small.FindOnDevice(0) != kNullBlock);
  const Texts published = small.Published();
  CHECK(std::count(published.begin(), published.end(), "R h0 [lower]") == 1);
  CHECK(std::count(published.begin(), published.end(), "R h0") == 0);
  small.CheckDigest();
}

TEST_CASE_TEMPLATE("a lower block that is being loaded is not given up for another; afterwards it may be", T, OnHost,
                   OnDisk) {
  TierRig tier(TierConfig<T>(1, 1));
  tier.rig.Add(2, Range(901, 4 * 14 + 1), 1);  // leaves h0 alone in the queue
  tier.StepWith(0);
  REQUIRE(tier.Find(0) != kNoHostBlock);
  tier.scheduler().EvictHash(tier.hashes[0]);
  tier.rig.Add(3, tier.prompt, 1);  // takes what is not cached, so that a cached block is the next victim
  const SchedulerOutput step = tier.Schedule();
  REQUIRE(step.loads.size() == 1);
  CHECK(step.stores.empty());
  tier.Update(step);
  CHECK(tier.Find(0) != kNoHostBlock);
  tier.rig.Add(4, Range(801, 9), 1);
  CHECK(tier.Schedule().stores.size() == 1);
}

TEST_CASE_TEMPLATE("D11: a block that could not be loaded is announced nowhere, and its request is computed without it",
                   T, OnHost, OnDisk) {
  TierRig tier(TierConfig<T>(1));
  tier.StoreAll();
  tier.EvictFromDevice();
  tier.rig.Add(2, tier.prompt, 1);
  const SchedulerOutput step = tier.Schedule();
  CHECK(tier.Update(step, {}, {2}).empty());
  CHECK(tier.Published() == Texts{"R h0 h1 [lower]"});
  CHECK(tier.FindOnDevice(0) == kNullBlock);
  CHECK(tier.Find(0) == kNoHostBlock);
  CHECK(tier.scheduler().num_waiting() == 1);
  CHECK(tier.scheduler().stats().failed_loads == 1);

  const SchedulerOutput again = tier.Schedule();
  CHECK(again.loads.empty());
  CHECK(again.requests[0].num_computed_tokens == 0);
  const std::vector<FinishedRequest> finished = tier.Update(again);
  REQUIRE(finished.size() == 1);
  CHECK(finished[0].num_preemptions == 1);
  CHECK(tier.Published() == Texts{"S h0,h1 < nil : 1..8"});
}

TEST_CASE_TEMPLATE(
    "D11: who found what another request could not load is undone with it, also when that one was aborted", T, OnHost,
    OnDisk) {
  for (const bool aborted : {false, true}) {
    CAPTURE(aborted);
    TierRig tier(TierConfig<T>(1));
    tier.StoreAll();
    tier.EvictFromDevice();
    tier.rig.Add(2, tier.prompt, 1);
    tier.rig.Add(3, tier.prompt, 1);
    tier.rig.Add(4, Range(101, 9), 1);
    const SchedulerOutput step = tier.Schedule();
    REQUIRE(step.requests.size() == 3);
    REQUIRE(step.loads.size() == 2);
    CHECK(step.requests[1].block_tables[0][1] == step.loads[1].device_block);
    if (aborted) tier.scheduler().Abort(2);
    const std::vector<FinishedRequest> finished = tier.Update(step, {}, {2});
    REQUIRE(finished.size() == 1);
    CHECK(finished[0].id == 4);
    CHECK(tier.Published() == Texts{"S g0,g1 < nil : 101..108", "R h0 h1 [lower]"});
    const SchedulerOutput again = tier.Schedule();
    REQUIRE(again.requests.size() == (aborted ? 1 : 2));
    CHECK(again.requests[0].id == (aborted ? 3 : 2));
    CHECK(tier.Update(again).size() == again.requests.size());
    CHECK(tier.Published() == Texts{"S h0,h1 < nil : 1..8"});
  }
}

TEST_CASE_TEMPLATE("a reset empties the lower tier with the device, and gives up what is being stored", T, OnHost,
                   OnDisk) {
  TierRig tier(TierConfig<T>(2));
  tier.OtherStepWith(0);
  REQUIRE(tier.scheduler().has_stores_in_flight());
  CHECK(tier.scheduler().ResetPrefixCache(ResetMode::kFailWhileRunning));
  CHECK(tier.Published() == Texts{"C"});
  CHECK_FALSE(tier.scheduler().has_stores_in_flight());
  // The other worker is late: that was another life.
  tier.OtherStepWith(1);
  CHECK(tier.Published().empty());
  CHECK(tier.Find(0) == kNoHostBlock);
  tier.CheckDigest();
}

TEST_CASE_TEMPLATE("a lower tier that a reset keeps is announced again behind the clear, parents first", T, OnHost,
                   OnDisk) {
  SchedulerConfig config = TierConfig<T>(1);
  config.reset_lower_tiers = TierReset::kKeep;
  TierRig tier(config);
  tier.StoreAll();
  CHECK(tier.scheduler().ResetPrefixCache(ResetMode::kFailWhileRunning));
  CHECK(tier.Published() == Texts{"C", "S h0 < nil : 1..4 [lower]", "S h1 < h0 : 5..8 [lower]"});
  CHECK(tier.scheduler().CachedTokens(tier.hashes) == 8);
  tier.CheckDigest();
  // Whatever the tier had recorded in a step that the reset falls into is before the clear.
  tier.EvictFromDevice();
  tier.rig.Add(2, tier.prompt, 1);
  const SchedulerOutput step = tier.Schedule();
  CHECK(tier.scheduler().ResetPrefixCache(ResetMode::kPreemptRunning));
  CHECK(tier.Published().empty());
  tier.Update(step, {}, {2});
  CHECK(tier.Published() == Texts{"C"});
  tier.CheckDigest();
}

TEST_CASE_TEMPLATE("the lower block of a store that was given up is not used until its last worker has reported", T,
                   OnHost, OnDisk) {
  TierRig tier(TierConfig<T>(1, 2));
  tier.rig.Add(2, Range(901, 4 * 13 + 1), 1);  // 14 blocks: h1 and h0 alone stay in the queue
  const SchedulerOutput step = tier.Schedule();
  REQUIRE(step.stores.size() == 2);
  tier.Update(step);
  CHECK(tier.scheduler().ResetPrefixCache(ResetMode::kFailWhileRunning));
  tier.rig.Add(3, Range(1, 9), 3);
  tier.Update(tier.Schedule());
  tier.scheduler().PreemptNewest();
  CHECK(tier.Schedule().stores.empty());
}

TEST_CASE_TEMPLATE("an engine without requests ends the stores in flight in one step, and begins no others", T, OnHost,
                   OnDisk) {
  TierRig tier(TierConfig<T>(1));
  tier.Update(tier.OtherStep());
  REQUIRE_FALSE(tier.scheduler().has_unfinished_requests());
  REQUIRE(tier.scheduler().has_stores_in_flight());
  const SchedulerOutput idle = tier.Schedule();
  CHECK(idle.empty());
  CHECK(idle.finish_stores);
  CHECK(idle.stores.empty());
  tier.Update(idle, tier.AllOf(0));
  CHECK(tier.Published().size() == 2);
  CHECK_FALSE(tier.scheduler().has_stores_in_flight());
}

TEST_CASE_TEMPLATE("nobody is preempted for a block that is being stored: the store is given up", T, OnHost, OnDisk) {
  TierRig tier(TierConfig<T>(1));
  tier.rig.Add(2, Range(901, 4 * 13 + 3), 4);
  SchedulerOutput step = tier.Schedule();  // 14 blocks; h1 and h0 are the rest, and are being stored
  REQUIRE(tier.scheduler().has_stores_in_flight());
  tier.Update(step);
  for (int i = 0; i < 3; ++i) {
    step = tier.Schedule();
    CHECK(step.requests.size() == 1);
    tier.Update(step);
  }
  CHECK(tier.scheduler().stats().preemptions == 0);
  CHECK(tier.stats().cancelled_stores == 1);
  tier.CheckDigest();
}

TEST_CASE_TEMPLATE("without events a lower tier works the same", T, OnHost, OnDisk) {
  SchedulerConfig config = TierConfig<T>(1);
  config.enable_kv_cache_events = false;
  Rig rig(config);
  rig.Add(1, Range(1, 9), 1);
  rig.Step();
  rig.Add(2, {900, 901}, 1);
  SchedulerOutput step = rig.Schedule();
  REQUIRE(step.stores.size() == 2);
  RunnerOutput output;
  output.sampled.push_back({2, 7});
  for (const StoreBlock& store : step.stores) output.stores.push_back({0, store.job, true});
  rig.scheduler().UpdateFromOutput(step, output);
  const std::vector<BlockHash> hashes = ChainOf(HasherWithSeed("0"), Range(1, 9), 4);
  for (const BlockHash& hash : hashes) rig.scheduler().EvictHash(hash);
  CHECK(rig.scheduler().CachedTokens(hashes) == 8);
  CHECK(rig.scheduler().ResetPrefixCache(ResetMode::kFailWhileRunning));
  CHECK(rig.scheduler().CachedTokens(hashes) == 0);
}

}  // namespace
}  // namespace kvwire::scheduler
