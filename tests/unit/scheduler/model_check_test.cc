// SPDX-License-Identifier: Apache-2.0
// Random runs of the scheduler against consumers that believe its events.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "scheduler/scheduler.h"
#include "tests/support/event_mirror.h"
#include "tests/unit/scheduler/rig.h"

namespace kvwire::scheduler {
namespace {

using testing::EventMirror;

// The simplest consumer: a store puts in, a removal takes out.
class SetConsumer {
 public:
  void Apply(const KVEventBatch& batch) {
    batch.Visit([this](const auto& event) { Take(event); });
  }

  // By group and medium.
  using Key = std::tuple<std::uint32_t, std::string, BlockHash>;
  const std::set<Key>& held() const { return held_; }

 private:
  void Take(const BlockStored& stored) {
    for (const BlockHash& hash : stored.block_hashes) held_.emplace(*stored.group_idx, *stored.medium, hash);
  }
  void Take(const BlockRemoved& removed) {
    for (const BlockHash& hash : removed.block_hashes)
      held_.erase({*removed.group_idx, std::string(*removed.medium), hash});
  }
  void Take(const AllBlocksCleared&) { held_.clear(); }

  std::set<Key> held_;
};

struct RunOptions {
  unsigned seed = 0;
  std::uint32_t num_blocks = 8;
  std::uint32_t block_size = 2;
  Removals removals = Removals::kExact;
  std::vector<KVCacheGroup> groups;
  bool partial_blocks = false;
  std::uint32_t num_speculative_tokens = 0;
  unsigned first_token_percent = 85;  // the higher, the longer the prefixes that prompts share
  int steps = 1000;
  // Lower tiers; of a hundred copies so many fail.
  std::uint32_t host_blocks = 0;
  std::uint32_t disk_blocks = 0;
  std::uint32_t num_workers = 1;
  unsigned failed_percent = 0;
  TierReset reset = TierReset::kClear;
};

class RandomRun {
 public:
  explicit RandomRun(const RunOptions& options)
      : options_(options),
        random_(options.seed),
        rig_(ConfigOf(options)),
        hasher_(HasherWithSeed("0")),
        mirror_(&hasher_, options.block_size) {}

  void Run() {
    for (int step = 0; step < options_.steps; ++step) {
      AddSome();
      const SchedulerOutput output = rig_.Schedule();
      if (Chance(10)) Disturb();
      Update(output);
      Check("after a step");
      if (Chance(10)) {
        Disturb();
        Check("after an operation outside a step");
      }
    }
  }

  const SchedulerStats stats() { return rig_.scheduler().stats(); }
  std::size_t num_unannounced_parents() const { return mirror_.num_unannounced_parents(); }
  std::uint64_t num_copies() const { return num_copies_; }

 private:
  static SchedulerConfig ConfigOf(const RunOptions& options) {
    SchedulerConfig config = SmallConfig(options.num_blocks, options.block_size);
    config.removals = options.removals;
    config.groups = options.groups;
    config.partial_blocks = options.partial_blocks;
    config.num_speculative_tokens = options.num_speculative_tokens;
    config.host_blocks = options.host_blocks;
    config.disk_blocks = options.disk_blocks;
    config.tensor_parallel_size = options.num_workers;
    config.reset_lower_tiers = options.reset;
    config.max_num_seqs = 6;
    config.max_num_batched_tokens = options.num_blocks * options.block_size / 2;
    return config;
  }

  unsigned Below(unsigned bound) { return static_cast<unsigned>(random_() % bound); }
  bool Chance(unsigned percent) { return Below(100) < percent; }

  // Two tokens only, and mostly the first: prompts share prefixes, and outputs run into other prompts.
  TokenId Token() { return Chance(options_.first_token_percent) ? 1 : 2; }

  void AddSome() {
    const std::size_t unfinished = rig_.scheduler().num_running() + rig_.scheduler().num_waiting();
    if (unfinished >= 8 || !Chance(unfinished == 0 ? 90 : 30)) return;
    const std::uint32_t most = LongestRequest();
    NewRequest request;
    request.id = next_id_++;
    request.prompt.resize(1 + Below(most - 1));
    for (TokenId& token : request.prompt) token = Token();
    request.max_tokens = 1 + Below(std::min<std::uint32_t>(most - static_cast<std::uint32_t>(request.prompt.size()) + 1,
                                                           4 * options_.block_size));
    if (Chance(10)) request.cache_salt = "salt";
    if (Chance(10)) request.lora = LoraAdapter{7, "lora"};
    // Under per_copy a report leaves a counting consumer with a count too many, as it does in vLLM.
    if (options_.removals == Removals::kExact && Chance(30)) request.extra_args = FullReports();
    REQUIRE(rig_.scheduler().AddRequest(std::move(request)));
  }

  // In tokens, so that every group could hold all of them.
  std::uint32_t LongestRequest() const {
    if (options_.groups.empty()) return (options_.num_blocks - 1) * options_.block_size;
    std::uint32_t most = 0;
    for (const KVCacheGroup& group : options_.groups) most = std::max(most, group.block_size);
    return most * ((options_.num_blocks - 1) / static_cast<std::uint32_t>(options_.groups.size()) / 2);
  }

  void Update(const SchedulerOutput& output) {
    RunnerOutput result;
    for (const ScheduledRequest& request : output.requests) {
      if (!request.samples) continue;
      result.sampled.push_back(SampledToken{request.id, Token()});
      for (const TokenId draft : request.draft_token_ids) {
        if (draft != result.sampled.back().token) break;
        result.sampled.push_back(SampledToken{request.id, Token()});
      }
      if (options_.num_speculative_tokens == 0) continue;
      result.drafts.push_back(DraftTokens{request.id, {}});
      while (result.drafts.back().tokens.size() < options_.num_speculative_tokens) {
        result.drafts.back().tokens.push_back(Token());
      }
    }
    for (const CopyBlock& copy : output.copies) CountCopy(copy);
    Copy(output, &result);
    rig_.scheduler().UpdateFromOutput(output, result);
  }

  void CountCopy(const CopyBlock& copy) {
    ++num_copies_;
    CHECK(copy.source != copy.destination);
    CHECK(copy.num_tokens < options_.groups[copy.group].block_size);
  }

  // Each worker is late by some steps, executes in order, and fails now and then.
  void Copy(const SchedulerOutput& output, RunnerOutput* result) {
    pending_.resize(options_.num_workers);
    for (std::uint32_t worker = 0; worker < options_.num_workers; ++worker) {
      std::deque<StoreJobId>& pending = pending_[worker];
      for (const StoreBlock& store : output.stores) pending.push_back(store.job);
      for (; !pending.empty() && (output.finish_stores || Chance(60)); pending.pop_front()) {
        result->stores.push_back({worker, pending.front(), !Chance(options_.failed_percent)});
      }
    }
    for (const LoadBlock& load : output.loads) {
      const std::vector<RequestId>& failed = result->failed_loads;
      if (!Chance(options_.failed_percent) || std::ranges::count(failed, load.request) > 0) continue;
      result->failed_loads.push_back(load.request);
    }
  }

  // One thing that may happen between any two calls.
  void Disturb() {
    Scheduler& scheduler = rig_.scheduler();
    const unsigned what = Below(20);
    if (what < 10) {
      scheduler.Abort(next_id_ - 1 - Below(10));
    } else if (what < 15) {
      const std::vector<BlockId> blocks = {Below(options_.num_blocks), Below(options_.num_blocks)};
      REQUIRE(scheduler.EvictBlocks(blocks));
    } else if (what < 18) {
      std::vector<std::pair<BlockHash, std::uint32_t>> resident;
      rig_.pool().Walk([&](const ResidentBlock& block) { resident.emplace_back(block.hash, block.group); });
      if (resident.empty()) return;
      const auto& [hash, group] = resident[Below(static_cast<unsigned>(resident.size()))];
      CHECK(scheduler.EvictHash(hash, group) > 0);
    } else {
      const bool preempt = what == 18;
      const bool reset =
          scheduler.ResetPrefixCache(preempt ? ResetMode::kPreemptRunning : ResetMode::kFailWhileRunning);
      if (preempt) CHECK(reset);
    }
  }

  void Check(const char* moment) {
    CAPTURE(moment);
    for (const KVEventBatch& batch : rig_.publisher().TakeBatches()) {
      const Texts broken = mirror_.Apply(batch);
      REQUIRE_MESSAGE(broken.empty(), broken.front());
      set_.Apply(batch);
    }
    REQUIRE(rig_.pool().recorded().empty());
    const Texts different = mirror_.Compare(
        rig_.scheduler().state(), rig_.scheduler().digest(),
        [this](const BlockHash& hash, std::uint32_t group) { return rig_.pool().num_announced(hash, group); });
    REQUIRE_MESSAGE(different.empty(), different.front());
    if (options_.removals == Removals::kPerCopy) return;
    REQUIRE(set_.held().size() == mirror_.size());
    for (const auto& [group, medium, hash] : set_.held()) REQUIRE(mirror_.count(hash, group, medium) > 0);
  }

  const RunOptions options_;
  std::mt19937 random_;
  Rig rig_;
  BlockHasher hasher_;
  EventMirror mirror_;
  SetConsumer set_;
  RequestId next_id_ = 100;
  std::uint64_t num_copies_ = 0;
  std::vector<std::deque<StoreJobId>> pending_;  // by worker
};

// Everything happened.
void CheckEventful(const SchedulerStats& stats) {
  CHECK(stats.requests_finished > 100);
  CHECK(stats.requests_aborted > 20);
  CHECK(stats.hit_tokens > 100);
  CHECK(stats.removed > 100);
  CHECK(stats.clears > 5);
  CHECK(stats.reported > 20);
}

TEST_CASE("D14, D8, D2: over 100,000 random steps events and pool agree after every step and every operation") {
  unsigned seed = 1;
  SchedulerStats sum;
  for (const std::uint32_t num_blocks : {8u, 9u, 12u, 16u, 24u, 64u}) {
    for (const std::uint32_t block_size : {1u, 2u, 4u}) {
      RunOptions options;
      options.seed = seed++;
      options.num_blocks = num_blocks;
      options.block_size = block_size;
      options.steps = 5000;
      CAPTURE(options.seed);
      RandomRun run(options);
      run.Run();
      const SchedulerStats stats = run.stats();
      CheckEventful(stats);
      CHECK(stats.preemptions > 5);
      sum.stored += stats.stored;
      sum.removed += stats.removed;
    }
  }
  for (const std::uint32_t num_blocks : {8u, 32u}) {
    RunOptions options;
    options.seed = seed++;
    options.num_blocks = num_blocks;
    options.removals = Removals::kPerCopy;
    options.steps = 5000;
    CAPTURE(options.seed);
    RandomRun run(options);
    run.Run();
    CHECK(run.stats().removed > 100);
  }
  MESSAGE("stored " << sum.stored << ", removed " << sum.removed);
}

TEST_CASE("D14, D4, D6: the same holds for several groups, whatever their windows and block sizes are") {
  unsigned seed = 100;
  std::size_t unannounced_parents = 0;
  for (const std::vector<KVCacheGroup>& groups : std::vector<std::vector<KVCacheGroup>>{
           {{kFull, 2, 0}, {kWindow, 2, 4}},
           {{kFull, 4, 0}, {kWindow, 2, 3}},
           {{kWindow, 2, 7}},
           {{kFull, 2, 0}, {kMamba, 6, 0}},
           {{kFull, 2, 0}, {kWindow, 4, 5}, {kWindow, 2, 2}, {kMamba, 4, 0}},
       }) {
    for (const std::uint32_t num_blocks : {24u, 64u}) {
      RunOptions options;
      options.seed = seed++;
      options.num_blocks = num_blocks * static_cast<std::uint32_t>(groups.size());
      options.groups = groups;
      options.steps = 5000;
      CAPTURE(options.seed);
      RandomRun run(options);
      run.Run();
      CheckEventful(run.stats());
      unannounced_parents += run.num_unannounced_parents();
    }
  }
  CHECK(unannounced_parents > 100);
}

TEST_CASE("D3, D4, D8, D14: the same holds for partial blocks, with drafts or without, under both rules of removal") {
  unsigned seed = 200;
  for (const std::vector<KVCacheGroup>& groups : std::vector<std::vector<KVCacheGroup>>{
           {{kFull, 12, 0}},
           {{kFull, 12, 0}, {kWindow, 4, 6}},
           {{kFull, 4, 0}, {kMamba, 12, 0}},
           {{kWindow, 12, 14}},
           {{kFull, 8, 0}, {kWindow, 6, 5}, {kMamba, 10, 0}},
       }) {
    for (const std::uint32_t num_blocks : {16u, 48u}) {
      for (const Removals removals : {Removals::kExact, Removals::kPerCopy}) {
        RunOptions options;
        options.seed = seed++;
        options.num_blocks = num_blocks * static_cast<std::uint32_t>(groups.size());
        options.removals = removals;
        options.groups = groups;
        options.partial_blocks = true;
        options.num_speculative_tokens = options.seed % 4;
        options.first_token_percent = 97;
        options.steps = 4000;
        CAPTURE(options.seed);
        RandomRun run(options);
        run.Run();
        const SchedulerStats stats = run.stats();
        CHECK(run.num_copies() > 30);
        CHECK(stats.requests_finished > 100);
        CHECK(stats.hit_tokens > 100);
        CHECK(stats.removed > 100);
        if (removals == Removals::kExact) CHECK(stats.reported > 20);
      }
    }
  }
}

TEST_CASE("D14, G3, D11: the same holds with a host and a disk tier, whatever fails, whoever is late") {
  unsigned seed = 200;
  // The kinds of docs/model-configs.
  for (const std::vector<KVCacheGroup>& groups : std::vector<std::vector<KVCacheGroup>>{
           {{kFull, 2, 0}},
           {{kFull, 2, 0}, {KVCacheKind::kMamba, 4, 0}},
           {{kFull, 2, 0}, {KVCacheKind::kSlidingWindow, 2, 4}, {KVCacheKind::kSlidingWindow, 2, 4}},
       }) {
    for (const std::uint32_t num_workers : {1u, 2u, 4u}) {
      for (const TierReset reset : {TierReset::kClear, TierReset::kKeep}) {
        for (const unsigned failed_percent : {0u, 15u}) {
          RunOptions options;
          options.seed = seed++;
          options.num_blocks = 24 * static_cast<std::uint32_t>(groups.size());
          options.groups = groups;
          options.host_blocks = options.num_blocks / 2;
          options.disk_blocks = options.num_blocks;
          options.num_workers = num_workers;
          options.reset = reset;
          options.failed_percent = failed_percent;
          CAPTURE(options.seed);
          RandomRun run(options);
          run.Run();
          const SchedulerStats stats = run.stats();
          CHECK(stats.host.stored > 20);
          CHECK(stats.disk.stored > 20);
          CHECK(stats.host.removed + stats.disk.removed > 10);
          CHECK(stats.host.loaded + stats.disk.loaded > 5);
          CHECK((stats.failed_loads > 0) == (failed_percent > 0));
          CHECK(stats.hit_tokens + stats.host_hit_tokens + stats.disk_hit_tokens + stats.computed_prompt_tokens ==
                stats.prompt_tokens);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvwire::scheduler
