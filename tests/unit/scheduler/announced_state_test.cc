// SPDX-License-Identifier: Apache-2.0
#include "kv_events/announced_state.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "scheduler/block_pool.h"
#include "scheduler/lower_tier.h"
#include "scheduler/scheduler.h"
#include "scheduler/tiered_connector.h"
#include "tests/unit/kv_events/announced_state_suite.h"
#include "tests/unit/scheduler/rig.h"

namespace kvwire::scheduler {
namespace {

using test::DrivenSource;
using test::HandPublisher;
using test::OwnStream;
using test::RunAnnouncedStateSuite;
using test::StreamKey;

constexpr std::uint32_t kBlockSize = 2;

// A prompt that shares its beginning with others: what stands at a position decides what may follow.
struct Prompt {
  std::vector<BlockHash> hashes;
  std::vector<TokenId> tokens;

  BlockChain chain() const {
    BlockChain chain;
    chain.hashes = hashes;
    chain.token_ids = tokens;
    return chain;
  }
};

Prompt RandomPrompt(std::mt19937_64* random) {
  Prompt prompt;
  std::uint64_t state = (*random)() % 3;
  for (std::uint64_t length = 1 + (*random)() % 7; length > 0; --length) {
    state = StateDigest::Mix(state * 4 + (*random)() % 2);
    prompt.hashes.push_back(BlockHash::FromUint64(state));
    for (std::uint32_t i = 0; i < kBlockSize; ++i) prompt.tokens.push_back(static_cast<TokenId>((state + i) & 0xffff));
  }
  return prompt;
}

BlockPoolOptions PoolOptions(Removals removals, bool announce_at_registration) {
  BlockPoolOptions options;
  options.num_blocks = 48;
  options.block_size = kBlockSize;
  options.enable_events = true;
  options.removals = removals;
  options.announce_at_registration = announce_at_registration;
  return options;
}

class DrivenPool final : public DrivenSource {
 public:
  explicit DrivenPool(const BlockPoolOptions& options) : pool_(options) {}

  AnnouncedState* state() override { return &pool_; }
  KVEventBatch TakeEvents() override { return pool_.TakeEvents(); }
  std::uint32_t Announced(const StreamKey& key) const override {
    return pool_.num_announced(std::get<2>(key), std::get<0>(key));
  }
  bool IsResident(const StreamKey& key) const override {
    return pool_.FindCached(std::get<2>(key), std::get<0>(key)) != kNullBlock;
  }
  bool SetsAgree() const override { return pool_.options().removals == Removals::kExact; }

  void Operate(std::mt19937_64* random) override {
    const std::uint64_t dice = (*random)() % 100;
    if (dice < 55) {
      Admit(random);
    } else if (dice < 92) {
      Release(random);
    } else {
      const Prompt prompt = RandomPrompt(random);
      pool_.EvictHash(prompt.hashes.back(), Group(prompt));
    }
  }

  void Clear() override {
    for (const std::vector<BlockId>& table : held_) pool_.Free(table);
    held_.clear();
    REQUIRE(pool_.Reset());
  }

 private:
  static std::uint32_t Group(const Prompt& prompt) { return prompt.hashes.front().Low64() % 2 == 0 ? 0 : 1; }

  // Some find what is cached, others compute it again and make copies.
  void Admit(std::mt19937_64* random) {
    const Prompt prompt = RandomPrompt(random);
    const std::uint32_t group = Group(prompt);
    std::vector<BlockId> table;
    if ((*random)() % 3 > 0) {
      for (const BlockHash& hash : prompt.hashes) {
        const BlockId block = pool_.FindCached(hash, group);
        if (block == kNullBlock) break;
        table.push_back(block);
      }
    }
    const auto found = static_cast<std::uint32_t>(table.size());
    pool_.Touch(table);
    if (!pool_.Allocate(prompt.hashes.size() - found, &table)) {
      pool_.Free(table);
      return;
    }
    // A consumer that counts does not count reports with removals per copy.
    if (found > 0 && SetsAgree()) pool_.Report(std::span(table).first(found));
    pool_.Register(prompt.chain(), table, found, static_cast<std::uint32_t>(prompt.hashes.size()), group);
    if ((*random)() % 8 == 0) {
      pool_.Free(table);  // was never computed
    } else {
      held_.push_back(std::move(table));
    }
    pool_.AnnouncePending();
  }

  void Release(std::mt19937_64* random) {
    if (held_.empty()) return;
    const std::size_t i = (*random)() % held_.size();
    std::reverse(held_[i].begin(), held_[i].end());
    pool_.Free(held_[i]);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  BlockPool pool_;
  std::vector<std::vector<BlockId>> held_;
};

TEST_CASE("a block pool's stream says what it holds, through walks, losses and clears") {
  SUBCASE("removals exact") {
    RunAnnouncedStateSuite(
        [](HandPublisher*) { return std::make_unique<DrivenPool>(PoolOptions(Removals::kExact, false)); });
  }
  SUBCASE("removals per copy") {
    RunAnnouncedStateSuite(
        [](HandPublisher*) { return std::make_unique<DrivenPool>(PoolOptions(Removals::kPerCopy, false)); });
  }
  SUBCASE("vLLM's own order") {
    RunAnnouncedStateSuite(
        [](HandPublisher*) { return std::make_unique<DrivenPool>(PoolOptions(Removals::kPerCopy, true)); });
  }
}

// A host tier below a pool whose own stream nobody hears.
class DrivenTier final : public DrivenSource {
 public:
  explicit DrivenTier(std::uint32_t num_workers) : pool_(PoolOptions(Removals::kExact, false)) {
    LowerTierOptions options;
    options.num_blocks = 20;
    options.num_workers = num_workers;
    options.max_stores_in_flight = 8;
    options.enable_events = true;
    options.digest = &digest_;
    auto tier = LowerTier::Create(options);
    REQUIRE(tier.has_value());
    tier_ = *std::move(tier);
    num_workers_ = num_workers;
  }

  AnnouncedState* state() override { return tier_.get(); }
  // As the pool's clear stands before what a tier says.
  KVEventBatch TakeEvents() override {
    KVEventBatch batch;
    if (std::exchange(cleared_, false)) batch.Add(AllBlocksCleared{});
    tier_->TakeEvents().Visit([&batch](const auto& event) { batch.Add(event); });
    return batch;
  }
  std::uint32_t Announced(const StreamKey& key) const override {
    return IsResident(key) && tier_->IsAnnounced(Find(key)) ? 1 : 0;
  }
  bool IsResident(const StreamKey& key) const override { return Find(key) != kNoHostBlock; }
  bool EventsTellParentsFirst() const override { return false; }  // a tier takes the next victim first

  void Operate(std::mt19937_64* random) override {
    Compute(RandomPrompt(random));
    std::vector<BlockId> victims;
    pool_.free_queue().First(16, &victims);
    std::vector<StoreBlock> stores;
    tier_->PlanStores(&pool_, victims, &next_job_, &stores);
    for (const StoreBlock& store : stores) {
      for (std::uint32_t worker = 0; worker < num_workers_; ++worker) {
        results_.push_back({worker, store.job, (*random)() % 12 > 0});
      }
    }
    std::shuffle(results_.begin(), results_.end(), *random);
    const std::size_t count = (*random)() % (results_.size() + 1);
    tier_->OnWorkerOutput(std::span(results_).first(count), &pool_);
    results_.erase(results_.begin(), results_.begin() + static_cast<std::ptrdiff_t>(count));
    const std::uint64_t dice = (*random)() % 20;
    if (dice == 0) tier_->CancelStore(&pool_);
    if (dice > 2) return;
    const HostBlockId block = tier_->FindBlock(RandomPrompt(random).hashes.back(), 0);
    if (block != kNoHostBlock) tier_->Drop(block);
  }

  // The second time what is resident stays, and is announced again.
  void Clear() override {
    while (tier_->CancelStore(&pool_)) {
    }
    REQUIRE(pool_.Reset());
    digest_.Clear();
    cleared_ = true;
    keeps_ = !keeps_;
    tier_->Reset(keeps_ ? TierReset::kKeep : TierReset::kClear);
  }

 private:
  HostBlockId Find(const StreamKey& key) const { return tier_->FindBlock(std::get<2>(key), std::get<0>(key)); }

  void Compute(const Prompt& prompt) {
    std::vector<BlockId> table;
    if (!pool_.Allocate(prompt.hashes.size(), &table)) return;
    pool_.Register(prompt.chain(), table, 0, static_cast<std::uint32_t>(table.size()), 0);
    pool_.AnnouncePending();
    std::reverse(table.begin(), table.end());
    pool_.Free(table);
    pool_.TakeEvents();
  }

  BlockPool pool_;
  StateDigest digest_;
  std::unique_ptr<LowerTier> tier_;
  std::uint32_t num_workers_ = 1;
  StoreJobId next_job_ = 1;
  std::vector<StoreResult> results_;
  bool cleared_ = false;
  bool keeps_ = false;
};

TEST_CASE("a lower tier's stream says what it holds, through walks, losses and clears") {
  SUBCASE("one worker") {
    RunAnnouncedStateSuite([](HandPublisher*) { return std::make_unique<DrivenTier>(1); });
  }
  SUBCASE("three workers") {
    RunAnnouncedStateSuite([](HandPublisher*) { return std::make_unique<DrivenTier>(3); });
  }
}

// A scheduler with a device, a host and a disk, and workers that report when they like.
class DrivenScheduler final : public DrivenSource, public OwnStream {
 public:
  DrivenScheduler(const SchedulerConfig& config, EventPublisher* publisher) {
    auto created = Scheduler::Create(config, HasherWithSeed("0"), publisher);
    REQUIRE(created.has_value());
    scheduler_ = *std::move(created);
  }

  OwnStream* own_stream() override { return this; }
  void DoStateWork() override { scheduler_->DoStateWork(); }
  bool HasStateWork() const override { return scheduler_->HasStateWork(); }
  bool IsHealing() const override { return scheduler_->is_healing(); }
  StatePublisherStats stats() const override { return scheduler_->stats().stream; }

  const StateDigest& digest() override { return scheduler_->digest(); }
  std::uint32_t Announced(const StreamKey& key) const override {
    const auto& [group, medium, hash] = key;
    if (medium == kMediumGpu) return scheduler_->pool().num_announced(hash, group);
    const HostBlockId block = TierOf(medium).FindBlock(hash, group);
    return block != kNoHostBlock && TierOf(medium).IsAnnounced(block) ? 1 : 0;
  }
  bool IsResident(const StreamKey& key) const override {
    const auto& [group, medium, hash] = key;
    if (medium == kMediumGpu) return scheduler_->pool().num_copies(hash, group) > 0;
    return TierOf(medium).FindBlock(hash, group) != kNoHostBlock;
  }
  bool EventsTellParentsFirst() const override { return false; }  // a tier takes the next victim first

  void Operate(std::mt19937_64* random) override {
    const std::uint64_t dice = (*random)() % 100;
    if (dice < 3) {
      scheduler_->PreemptNewest();
    } else if (dice < 6) {
      scheduler_->Abort(next_id_ - 1);
    } else if (dice < 9) {
      const auto blocks = {static_cast<BlockId>((*random)() % scheduler_->config().num_blocks)};
      REQUIRE(scheduler_->EvictBlocks(std::vector<BlockId>(blocks)).has_value());
    } else {
      if (scheduler_->num_waiting() < 2) Add(random);
      Step(random);
    }
  }

  void Clear() override { REQUIRE(scheduler_->ResetPrefixCache(ResetMode::kPreemptRunning)); }

 private:
  const LowerTier& TierOf(std::string_view medium) const {
    const auto* const tiers = static_cast<const TieredConnector*>(scheduler_->connector());
    return *tiers->tier(medium == kMediumCpu ? Tier::kHost : Tier::kDisk);
  }

  // Prompts share their beginnings.
  void Add(std::mt19937_64* random) {
    NewRequest request;
    request.id = next_id_++;
    for (std::uint64_t blocks = 1 + (*random)() % 4; blocks > 0; --blocks) {
      const std::uint64_t kind = (*random)() % 2;
      request.prompt.insert(request.prompt.end(), 4, static_cast<TokenId>(kind));
    }
    request.prompt.push_back(9);
    request.max_tokens = static_cast<std::uint32_t>(1 + (*random)() % 6);
    if ((*random)() % 4 == 0) request.extra_args = FullReports();
    REQUIRE(scheduler_->AddRequest(std::move(request)).has_value());
  }

  void Step(std::mt19937_64* random) {
    const SchedulerOutput step = scheduler_->Schedule();
    RunnerOutput output;
    for (const ScheduledRequest& request : step.requests) {
      if (request.samples) output.sampled.push_back({request.id, static_cast<TokenId>((*random)() % 3)});
    }
    for (const StoreBlock& store : step.stores) {
      for (std::uint32_t worker = 0; worker < 2; ++worker) {
        results_.push_back({worker, store.job, (*random)() % 12 > 0});
      }
    }
    const std::size_t count = step.finish_stores ? results_.size() : (*random)() % (results_.size() + 1);
    output.stores.assign(results_.begin(), results_.begin() + static_cast<std::ptrdiff_t>(count));
    results_.erase(results_.begin(), results_.begin() + static_cast<std::ptrdiff_t>(count));
    if (!step.loads.empty() && (*random)() % 4 == 0) output.failed_loads.push_back(step.loads.front().request);
    scheduler_->UpdateFromOutput(step, output);
  }

  std::unique_ptr<Scheduler> scheduler_;
  RequestId next_id_ = 1;
  std::vector<StoreResult> results_;
};

TEST_CASE("a scheduler's stream says what its device and its lower tiers hold, through walks, losses and clears") {
  SchedulerConfig config = SmallConfig(14);
  config.host_blocks = 9;
  config.disk_blocks = 12;
  config.tensor_parallel_size = 2;
  SUBCASE("lower tiers are cleared with the device") { config.reset_lower_tiers = TierReset::kClear; }
  SUBCASE("lower tiers are kept") { config.reset_lower_tiers = TierReset::kKeep; }
  RunAnnouncedStateSuite(
      [&config](HandPublisher* publisher) { return std::make_unique<DrivenScheduler>(config, publisher); });
}

}  // namespace
}  // namespace kvwire::scheduler
