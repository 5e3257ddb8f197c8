// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/digest.h"
#include "tests/unit/scheduler/rig.h"

namespace kvwire::scheduler {

// The tier of which a case speaks.
struct OnHost {
  static constexpr Tier kTier = Tier::kHost;
};
struct OnDisk {
  static constexpr Tier kTier = Tier::kDisk;
};

template <class T>
SchedulerConfig TierConfig(std::uint32_t num_workers, std::uint32_t num_blocks = 16) {
  SchedulerConfig config = SmallConfig(17);
  (T::kTier == Tier::kHost ? config.host_blocks : config.disk_blocks) = num_blocks;
  config.tensor_parallel_size = num_workers;
  return config;
}

// A prompt of two full blocks, h0 and h1, that was computed once, and workers that report when they are told to.
class TierRig {
 public:
  explicit TierRig(const SchedulerConfig& config)
      : rig(config),
        prompt(Range(1, 9)),
        hashes(ChainOf(HasherWithSeed("0"), prompt, 4)),
        texts_(4),
        tier_(config.host_blocks > 0 ? Tier::kHost : Tier::kDisk) {
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
  KVConnectorStats stats() { return host().stats(tier_); }
  std::uint64_t hit_tokens() {
    const SchedulerStats stats = scheduler().stats();
    CHECK(stats.hit_tokens + stats.host_hit_tokens + stats.disk_hit_tokens + stats.computed_prompt_tokens ==
          stats.prompt_tokens);
    return tier_ == Tier::kHost ? stats.host_hit_tokens : stats.disk_hit_tokens;
  }
  // The tier's medium is "lower".
  Texts Published() {
    Texts texts = rig.Published(texts_);
    const std::string suffix = " [medium " + std::string(TraitsOf(tier_).medium) + "]";
    for (std::string& text : texts) {
      if (text.ends_with(suffix)) text.replace(text.size() - suffix.size(), suffix.size(), " [lower]");
    }
    return texts;
  }

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
    CHECK(Published() == Texts{"S h1 < h0 : 5..8 [lower]", "S h0 < nil : 1..4 [lower]"});
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
  const Tier tier_;
  RequestId next_id_ = 100;
};

}  // namespace kvwire::scheduler
