// SPDX-License-Identifier: Apache-2.0
#include "scheduler/host_tier.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/digest.h"
#include "tests/unit/scheduler/rig.h"

namespace kvwire::scheduler {
namespace {

SchedulerConfig TierConfig(std::uint32_t num_workers, std::uint32_t host_blocks = 16) {
  SchedulerConfig config = SmallConfig(17);
  config.host_blocks = host_blocks;
  config.tensor_parallel_size = num_workers;
  return config;
}

// A prompt of two full blocks, h0 and h1, that was computed once, and workers that report when they are told to.
class TierRig {
 public:
  explicit TierRig(const SchedulerConfig& config)
      : rig(config), prompt(Range(1, 9)), hashes(ChainOf(HasherWithSeed("0"), prompt, 4)), texts_(4) {
    texts_.Name("h", hashes);
    texts_.Name("g", ChainOf(HasherWithSeed("0"), Range(101, 9), 4));
    rig.Add(1, prompt, 1);
    Update(Schedule());
    CHECK(Published() == Texts{"S h0,h1 < nil : 1..8"});
  }

  Scheduler& scheduler() { return rig.scheduler(); }
  const KVConnector& host() { return *rig.scheduler().connector(); }
  HostBlockId Find(std::size_t i) { return host().FindBlock(hashes[i], 0); }
  BlockId FindOnDevice(std::size_t i) { return rig.pool().FindCached(hashes[i], 0); }
  Texts Published() { return rig.Published(texts_); }

  SchedulerOutput Schedule() {
    SchedulerOutput step = rig.Schedule();
    for (const StoreBlock& store : step.stores) jobs.push_back(store.job);
    return step;
  }
  std::vector<FinishedRequest> Update(const SchedulerOutput& step, std::vector<StoreResult> results = {},
                                      std::vector<RequestId> failed_loads = {}) {
    RunnerOutput output;
    for (const ScheduledRequest& request : step.requests) {
      if (request.samples) output.sampled.push_back({request.id, 7});
    }
    output.stores = std::move(results);
    output.failed_loads = std::move(failed_loads);
    return rig.scheduler().UpdateFromOutput(step, output);
  }
  std::vector<StoreResult> AllOf(std::uint32_t worker, bool ok = true) const {
    std::vector<StoreResult> results;
    for (const StoreJobId job : jobs) results.push_back({worker, job, ok});
    return results;
  }

  // A step of a request that shares nothing with the others; with it the stores of h1 and h0 are planned.
  SchedulerOutput OtherStep() {
    rig.Add(next_id_++, {900, 901}, 1);
    return Schedule();
  }
  // Whole steps, in which the worker reports all stores so far.
  std::vector<FinishedRequest> StepWith(std::uint32_t worker, bool ok = true) {
    const SchedulerOutput step = Schedule();
    return Update(step, AllOf(worker, ok));
  }
  void OtherStepWith(std::uint32_t worker, bool ok = true) {
    const SchedulerOutput step = OtherStep();
    Update(step, AllOf(worker, ok));
  }
  // h0 and h1 are on the host, stored by one worker, and announced.
  void StoreAll() {
    OtherStepWith(0);
    CHECK(Published() == Texts{"S h1 < h0 : 5..8 [medium CPU]", "S h0 < nil : 1..4 [medium CPU]"});
    jobs.clear();
  }
  void EvictFromDevice() {
    for (const BlockHash& hash : hashes) scheduler().EvictHash(hash);
    Published();
  }

  // The digest is that of what the walk meets.
  void CheckDigest() {
    StateDigest digest;
    scheduler().state().Walk(
        [&](const ResidentBlock& block) { digest.Add(block.group, block.medium, block.hash.Low64()); });
    CHECK(digest == scheduler().digest());
  }

  Rig rig;
  const std::vector<TokenId> prompt;
  const std::vector<BlockHash> hashes;
  std::vector<StoreJobId> jobs;

 private:
  EventTexts texts_;
  RequestId next_id_ = 100;
};

TEST_CASE("a host tier without prefix caching, with vllm_exact or without workers is refused by name") {
  const auto refusal = [](const SchedulerConfig& config) {
    CollectingEventPublisher publisher;
    auto created = Scheduler::Create(config, HasherWithSeed("0"), &publisher);
    REQUIRE_FALSE(created.has_value());
    return created.error().message;
  };
  SchedulerConfig config = TierConfig(1);
  config.enable_prefix_caching = false;
  CHECK(refusal(config) == "host_blocks is 16; allowed: 0, as enable_prefix_caching is false");
  config = TierConfig(1);
  config.vllm_exact = true;
  CHECK(refusal(config) == "host_blocks is 16; allowed: 0, as vllm_exact is true");
  CHECK(refusal(TierConfig(0)) == "tensor_parallel_size is 0; allowed: 1 or more");
  CHECK(refusal(TierConfig(4097)) == "tensor_parallel_size is 4097; allowed: 1 to 4096");
}

TEST_CASE("G3: a host block is announced and found from the step on in which its last worker reports, once") {
  TierRig tier(TierConfig(2));
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
  CHECK(tier.Published() == Texts{"S h1 < h0 : 5..8 [medium CPU]", "S h0 < nil : 1..4 [medium CPU]"});
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

TEST_CASE("G1: a worker that reports a store twice counts once; unknown workers and jobs count nothing") {
  TierRig tier(TierConfig(2));
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

TEST_CASE("G3: a block that one worker could not store is not announced, and is stored again") {
  TierRig tier(TierConfig(2));
  tier.OtherStepWith(0);
  tier.OtherStepWith(1, false);
  CHECK(tier.Published().empty());
  CHECK(tier.Find(0) == kNoHostBlock);
  CHECK(tier.scheduler().stats().host.failed_stores == 2);

  tier.jobs.clear();
  const SchedulerOutput again = tier.OtherStep();
  REQUIRE(again.stores.size() == 2);
  tier.Update(again, tier.AllOf(1));
  CHECK(tier.Published().empty());
  tier.OtherStepWith(0);
  CHECK(tier.Published().size() == 2);
}

TEST_CASE("H1: what is announced of the host is found by a request, loaded, and announced of the device again") {
  TierRig tier(TierConfig(1));
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
  CHECK(tier.scheduler().stats().host_hit_tokens == 8);
  CHECK(tier.Find(0) != kNoHostBlock);
}

TEST_CASE("a hit takes from the device what it has and from the host the rest") {
  TierRig tier(TierConfig(1));
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
  CHECK(tier.scheduler().stats().host_hit_tokens == 4);
}

TEST_CASE("H6: a block that leaves the device stays on the host, and one that leaves the host on the device") {
  TierRig tier(TierConfig(1));
  tier.StoreAll();
  tier.scheduler().EvictHash(tier.hashes[1]);
  CHECK(tier.Published() == Texts{"R h1"});
  CHECK(tier.FindOnDevice(1) == kNullBlock);
  CHECK(tier.Find(1) != kNoHostBlock);

  TierRig small(TierConfig(1, 1));
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
  CHECK(std::count(published.begin(), published.end(), "R h0 [medium CPU]") == 1);
  CHECK(std::count(published.begin(), published.end(), "R h0") == 0);
  small.CheckDigest();
}

TEST_CASE("a host block that is being loaded is not given up for another; afterwards it may be") {
  TierRig tier(TierConfig(1, 1));
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

TEST_CASE("D11: a block that could not be loaded is announced nowhere, and its request is computed without it") {
  TierRig tier(TierConfig(1));
  tier.StoreAll();
  tier.EvictFromDevice();
  tier.rig.Add(2, tier.prompt, 1);
  const SchedulerOutput step = tier.Schedule();
  CHECK(tier.Update(step, {}, {2}).empty());
  CHECK(tier.Published() == Texts{"R h0 h1 [medium CPU]"});
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

TEST_CASE("D11: who found what another request could not load is undone with it, also when that one was aborted") {
  for (const bool aborted : {false, true}) {
    CAPTURE(aborted);
    TierRig tier(TierConfig(1));
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
    CHECK(tier.Published() == Texts{"S g0,g1 < nil : 101..108", "R h0 h1 [medium CPU]"});
    const SchedulerOutput again = tier.Schedule();
    REQUIRE(again.requests.size() == (aborted ? 1 : 2));
    CHECK(again.requests[0].id == (aborted ? 3 : 2));
    CHECK(tier.Update(again).size() == again.requests.size());
    CHECK(tier.Published() == Texts{"S h0,h1 < nil : 1..8"});
  }
}

TEST_CASE("a reset empties the host tier with the device, and gives up what is being stored") {
  TierRig tier(TierConfig(2));
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

TEST_CASE("a host tier that a reset keeps is announced again behind the clear, parents first") {
  SchedulerConfig config = TierConfig(1);
  config.reset_host_tier = HostReset::kKeep;
  TierRig tier(config);
  tier.StoreAll();
  CHECK(tier.scheduler().ResetPrefixCache(ResetMode::kFailWhileRunning));
  CHECK(tier.Published() == Texts{"C", "S h0 < nil : 1..4 [medium CPU]", "S h1 < h0 : 5..8 [medium CPU]"});
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

TEST_CASE("the host block of a store that was given up is not used until its last worker has reported") {
  TierRig tier(TierConfig(1, 2));
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

TEST_CASE("an engine without requests ends the stores in flight in one step, and begins no others") {
  TierRig tier(TierConfig(1));
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

TEST_CASE("nobody is preempted for a block that is being stored: the store is given up") {
  TierRig tier(TierConfig(1));
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
  CHECK(tier.scheduler().stats().host.cancelled_stores == 1);
  tier.CheckDigest();
}

TEST_CASE("without events the host tier works the same") {
  SchedulerConfig config = TierConfig(1);
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
