// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/engine/model_check.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/temp_dir.h"
#include "tests/unit/engine/engine_fixture.h"
#include "tests/unit/kv_events/announced_state_suite.h"

namespace kvwire::engine {
namespace {

using scheduler::BlockId;
using scheduler::RequestId;
using scheduler::ResetMode;
using scheduler::RunnerOutput;
using scheduler::ScheduledRequest;
using scheduler::SchedulerOutput;

// What the runner asks the check for.
class RunnerHooks {
 public:
  // The step is in flight: whatever may happen to the scheduler meanwhile. True if something did.
  virtual bool Disturb(const SchedulerOutput& step) = 0;
  // Whether lookups of the block's hash give the request's own block number `index`: nothing else would show.
  virtual bool IsFirstCopy(const ScheduledRequest& request, std::uint32_t index) = 0;

 protected:
  ~RunnerHooks() = default;
};

// Runs the step, unless a fault is planted: then one request is announced without being computed, or computed in a
// block that belongs to another. Afterwards every block table must hold the chain of its request's tokens.
class CheckedRunner final : public scheduler::ModelRunner {
 public:
  CheckedRunner(std::unique_ptr<SimulatedRunner> runner, Groups groups, const Fault* fault, bool* planted,
                RunnerHooks* hooks, Complaints* complaints)
      : runner_(std::move(runner)),
        groups_(std::move(groups)),
        fault_(fault),
        planted_(planted),
        hooks_(hooks),
        complaints_(complaints) {}

  RunnerOutput Run(const SchedulerOutput& step) override {
    num_copies_ += step.copies.size();
    SchedulerOutput actual = step;
    // What is announced of a step that was disturbed is uncertain, hence whether a fault in it could be seen.
    if (!hooks_->Disturb(step)) Plant(&actual);
    RunnerOutput output = runner_->Run(actual);
    if (*fault_ == Fault::kHiddenLoadFailure) output.failed_loads.clear();
    if (*fault_ == Fault::kHiddenStoreFailure) {
      for (scheduler::StoreResult& result : output.stores) result.ok = true;
    }
    if (!*planted_) {
      for (const ScheduledRequest& request : step.requests) {
        // What was computed on top of a failed load is to be undone; here, whatever follows it.
        if (std::ranges::count(output.failed_loads, request.id) > 0) break;
        CheckTable(request);
      }
    } else {
      // The engine must not notice: a token for everyone who waits for one.
      output.sampled.clear();
      for (const ScheduledRequest& request : step.requests) {
        if (request.samples) output.sampled.push_back({request.id, 131072});
      }
    }
    return output;
  }

  const SimulatedRunner& words() const { return *runner_; }
  std::uint64_t num_copies() const { return num_copies_; }

 private:
  // Without drafts, which may be wrong.
  static std::uint32_t EndOf(const ScheduledRequest& request) {
    return request.num_computed_tokens + request.num_scheduled_tokens -
           static_cast<std::uint32_t>(request.draft_token_ids.size());
  }

  // Only faults that show: in blocks that will be announced and found, and that do not hold the right words already.
  void Plant(SchedulerOutput* step) {
    if (*planted_) return;
    if (*fault_ == Fault::kEarlyEvent) {
      for (std::size_t i = 0; i < step->requests.size(); ++i) {
        if (!ShowsIfNotComputed(step->requests[i])) continue;
        step->requests.erase(step->requests.begin() + static_cast<std::ptrdiff_t>(i));
        *planted_ = true;
        return;
      }
    }
    if (*fault_ == Fault::kStolenBlock && step->requests.size() >= 2) {
      // The last request writes where the first one has just filled a block.
      const ScheduledRequest& first = step->requests.front();
      ScheduledRequest& last = step->requests.back();
      const std::uint32_t filled = EndOf(first) / kBlockSize;
      if (first.num_computed_tokens / kBlockSize == filled || last.block_tables[0].empty()) return;
      // At another position the words differ whatever the tokens are.
      if ((EndOf(last) - 1) / kBlockSize == filled - 1 || !hooks_->IsFirstCopy(first, filled - 1)) return;
      stolen_.front().assign(last.block_tables[0].size(), first.block_tables[0][filled - 1]);
      last.block_tables = stolen_;
      *planted_ = true;
    }
  }

  bool ShowsIfNotComputed(const ScheduledRequest& request) {
    for (std::uint32_t index = request.num_computed_tokens / kBlockSize; index < EndOf(request) / kBlockSize; ++index) {
      if (!Holds(request, (index + 1) * kBlockSize) && hooks_->IsFirstCopy(request, index)) return true;
    }
    return false;
  }

  // Whether the request's first `end` positions hold the chain of its tokens.
  bool Holds(const ScheduledRequest& request, std::uint32_t end) const { return FirstForeign(request, 0, end) == end; }

  // The first of them that the step needs of the group and that does not; `end` if all do.
  std::uint32_t FirstForeign(const ScheduledRequest& request, std::size_t group, std::uint32_t end) const {
    const std::uint32_t size = groups_[group].block_size;
    const std::uint32_t first = groups_[group].NumUnneededTokens(request.num_computed_tokens);
    std::uint64_t word = SimulatedRunner::RootWordOf(group);
    for (std::uint32_t p = 0; p < end; ++p) {
      word = SimulatedRunner::ChainWord(word, request.token_ids[p]);
      if (p >= first && runner_->WordAt(request.block_tables[group][p / size], p % size) != word) return p;
    }
    return end;
  }

  void CheckTable(const ScheduledRequest& request) {
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      const std::uint32_t position = FirstForeign(request, group, EndOf(request));
      if (position == EndOf(request)) continue;
      complaints_->push_back("request " + std::to_string(request.id) + " holds foreign words at position " +
                             std::to_string(position) + " of group " + std::to_string(group));
    }
  }

  const std::unique_ptr<SimulatedRunner> runner_;
  const Groups groups_;
  const Fault* const fault_;
  bool* const planted_;
  RunnerHooks* const hooks_;
  Complaints* const complaints_;
  std::vector<std::vector<BlockId>> stolen_{1};
  std::uint64_t num_copies_ = 0;
};

// Two engines under the same random load, one with prefix caching and events, one without. After every step and every
// operation outside one, what the stream said is held against the pool and the words.
class ModelCheck final : public RunnerHooks {
 public:
  ModelCheck(std::uint64_t seed, std::uint32_t num_blocks, Fault fault = Fault::kNone, Groups groups = kDense,
             std::uint32_t num_speculative_tokens = 0, Tiers tiers = {}, PoolRules rules = {})
      : dice_(seed),
        num_blocks_(num_blocks),
        groups_(std::move(groups)),
        rules_(rules),
        stream_(groups_, &complaints),
        planned_(fault) {
    EngineConfig config = SmallConfig(num_blocks);
    config.scheduler.groups = groups_;
    config.scheduler.partial_blocks = rules.partial_blocks;
    config.scheduler.removals = rules.removals;
    config.scheduler.num_speculative_tokens = num_speculative_tokens;
    config.scheduler.max_num_seqs = static_cast<std::uint32_t>(dice_.Random(2, 6));
    config.scheduler.max_num_batched_tokens = static_cast<std::uint32_t>(dice_.Random(6, 40));
    config.scheduler.host_blocks = tiers.host_blocks;
    config.scheduler.disk_blocks = tiers.disk_blocks;
    config.scheduler.tensor_parallel_size = tiers.num_workers;
    config.scheduler.reset_lower_tiers = tiers.reset;
    SimulatedRunner::Options copying;
    copying.failed_store_percent = tiers.failed_store_percent;
    copying.failed_load_percent = tiers.failed_load_percent;
    if (tiers.disk_blocks > 0) copying.disk_dir = directory_ / "blocks";
    copying.copy_seed = seed;
    auto runner =
        std::make_unique<CheckedRunner>(RunnerFor(config, copying), groups_, &fault_, &planted_, this, &complaints);
    runner_ = runner.get();
    if (rules_.lost_percent > 0) {
      publisher_.refuse = [this] {
        return dice_.Chance(rules_.lost_percent) ? PublishResult::kDroppedQueueFull : PublishResult::kAccepted;
      };
    }
    cached_ = MakeEngine(config, &publisher_, std::move(runner));
    reference_ = std::make_unique<ReferenceEngine>(config, &complaints);
  }

  // One step and the operations around it.
  void Advance() {
    if (cached_->scheduler().num_waiting() < 3 && dice_.Random(0, 9) < 6) AddRequest();
    if (dice_.Chance(10)) {
      DoSomething();
      Check();
    }
    Step();
  }

  void Drain() {
    while (cached_->has_work()) Step();
    if (pool().num_free() + 1 != num_blocks_) complaints.push_back("blocks are held and nobody runs");
    reference_->Drain();
  }

  // From the next step on. True once the load made it possible.
  void Plant() { fault_ = planned_; }
  bool planted() const { return planted_; }

  const ReferenceEngine& reference() const { return *reference_; }
  const StreamCheck& stream() const { return stream_; }

  Complaints complaints;
  // Blocks of lower tiers whose words were compared: after every operation, on disk only now and then.
  std::array<std::uint64_t, scheduler::kNumTiers> num_lower_checked{};

  // Operations that had an effect, between steps and while one was in flight.
  struct Operations {
    std::uint64_t aborts = 0;
    std::uint64_t evicted_blocks = 0;  // by id, that were registered
    std::uint64_t evicted_hashes = 0;
    std::uint64_t resets_while_running = 0;
    std::uint64_t in_flight = 0;  // of all of these
  };
  Operations operations;

  scheduler::SchedulerStats stats() const { return cached_->scheduler().stats(); }
  std::uint64_t num_copies() const { return runner_->num_copies(); }

 private:
  // EngineCore lends its scheduler for reading. Evictions are the host's to order, on the step thread.
  scheduler::Scheduler& scheduler() { return const_cast<scheduler::Scheduler&>(cached_->scheduler()); }
  const scheduler::BlockPool& pool() const { return cached_->scheduler().pool(); }

  bool Disturb(const SchedulerOutput& step) override {
    if (!dice_.Chance(5)) return false;
    for (const ScheduledRequest& request : step.requests) {
      for (std::size_t group = 0; group < groups_.size(); ++group) {
        const std::vector<BlockId>& table = request.block_tables[group];
        in_work_.insert(in_work_.end(), table.begin() + request.num_computed_tokens / groups_[group].block_size,
                        table.end());
      }
    }
    const bool disturbed = DoSomething();
    in_work_.clear();
    operations.in_flight += disturbed ? 1 : 0;
    return disturbed;
  }

  bool IsFirstCopy(const ScheduledRequest& request, std::uint32_t index) override {
    BlockHash hash;
    for (std::uint32_t i = 0; i <= index; ++i) {
      hash = stream_.HashOf(hash, std::span(request.token_ids).subspan(i * kBlockSize, kBlockSize));
    }
    return pool().FindCached(hash, 0) == request.block_tables[0][index];
  }

  // One thing that may happen between any two calls, also between Schedule and UpdateFromOutput. True if it had an
  // effect.
  bool DoSomething() {
    const int what = dice_.Random(0, 99);
    if (what < 35) return AbortSome();
    if (what < 65) return EvictSomeBlocks();
    if (what < 94) return EvictSomeHash();
    const auto mode = what < 97 ? ResetMode::kFailWhileRunning : ResetMode::kPreemptRunning;
    const bool running = cached_->scheduler().num_running() > 0;
    if (!cached_->ResetPrefixCache(mode)) return false;
    operations.resets_while_running += running ? 1 : 0;
    return true;
  }

  bool AbortSome() {
    if (open_.empty()) return false;
    ++operations.aborts;
    return cached_->Abort(TakeRandom(&open_, &dice_));
  }

  // Whoever holds them, computed or not.
  bool EvictSomeBlocks() {
    std::vector<BlockId> blocks;
    for (int i = dice_.Random(1, 3); i > 0; --i) {
      blocks.push_back(in_work_.empty() || dice_.Chance(30) ? static_cast<BlockId>(dice_.Below(num_blocks_))
                                                            : in_work_[dice_.Below(in_work_.size())]);
    }
    const auto registered = static_cast<std::uint64_t>(
        std::ranges::count_if(blocks, [this](BlockId block) { return pool().is_registered(block); }));
    REQUIRE(scheduler().EvictBlocks(blocks).has_value());
    operations.evicted_blocks += registered;
    return registered > 0;
  }

  bool EvictSomeHash() {
    std::vector<std::pair<BlockHash, std::uint32_t>> resident;
    pool().Walk([&resident](const ResidentBlock& block) { resident.emplace_back(block.hash, block.group); });
    if (resident.empty()) return false;
    const auto& [hash, group] = resident[dice_.Below(resident.size())];
    REQUIRE(scheduler().EvictHash(hash, group) > 0);
    REQUIRE(pool().FindCached(hash, group) == scheduler::kNullBlock);
    ++operations.evicted_hashes;
    return true;
  }

  // Some prompts are of a text that nobody else has, so that nothing of them was ever announced.
  void AddRequest() {
    scheduler::NewRequest request;
    request.id = next_id_++;
    request.max_tokens = static_cast<std::uint32_t>(dice_.Random(1, 9));
    const std::uint32_t spare = rules_.partial_blocks ? 1 : 0;  // to copy to
    const auto blocks = (num_blocks_ - 1) / static_cast<std::uint32_t>(groups_.size()) - spare;
    const std::uint32_t block_size = std::ranges::min(groups_, {}, &scheduler::KVCacheGroup::block_size).block_size;
    const int room = static_cast<int>(blocks * block_size - request.max_tokens);
    const TokenId text = dice_.Chance(10) ? 200000 + 64 * static_cast<TokenId>(request.id)
                                          : 100 * static_cast<TokenId>(dice_.Random(0, 3));
    request.prompt = RandomPrompt(text, room, &dice_);
    // Under per_copy a report leaves a counting consumer with a count too many, as it does in vLLM.
    if (dice_.Chance(30) && rules_.removals == Removals::kExact)
      request.extra_args = {{"kv_cache_report_mode", std::string("full")}};
    open_.insert(request.id);
    scheduler::NewRequest copy = request;
    REQUIRE(cached_->Add(std::move(request)).has_value());
    reference_->Add(std::move(copy));
  }

  void Step() {
    for (const auto& finished : cached_->Step().finished) {
      open_.erase(finished.id);
      reference_->Expect(finished);
    }
    Check();
    reference_->Step();
  }

  void Check() {
    for (test::HandPublisher::Entry& entry : std::exchange(publisher_.log, {})) Take(&entry);
    if (rules_.lost_percent > 0) AskForSnapshots();
    if (!synchronised_) return;
    stream_.Compare(cached_->scheduler());
    if (joined_complete_ && joined_.counted() != cached_->scheduler().digest()) {
      complaints.push_back("who joined by a snapshot holds other blocks");
    }
    const auto* const connector = static_cast<const scheduler::TieredConnector*>(cached_->scheduler().connector());
    if (connector == nullptr) return;
    ++num_checks_;
    for (const scheduler::Tier tier : {scheduler::Tier::kHost, scheduler::Tier::kDisk}) {
      if (connector->tier(tier) != nullptr) CheckLowerBlocks(*connector->tier(tier));
    }
  }

  // What is announced of the tier is found there, and its words are the chain of its tokens.
  void CheckLowerBlocks(const scheduler::LowerTier& tier) {
    constexpr std::uint64_t kChecksPerLook = 50;  // at the files
    const bool looks = tier.tier() == scheduler::Tier::kHost || num_checks_ % kChecksPerLook == 0;
    tier.Walk([&](const ResidentBlock& resident) {
      const scheduler::HostBlockId block = tier.FindBlock(resident.hash, resident.group);
      if (block == scheduler::kNoHostBlock) {
        complaints.push_back("H1: " + resident.hash.ToHex() + " is announced of a lower tier and not found there");
        return;
      }
      if (!looks) return;
      const auto known = stream_.all_prefixes().find(resident.hash);
      if (known == stream_.all_prefixes().end()) return;  // counted when it was announced of the device
      const std::vector<TokenId>& prefix = known->second;
      const std::size_t start = prefix.size() - groups_[resident.group].block_size;
      const auto words = runner_->words().LowerWords(block, groups_[resident.group].block_size);
      std::uint64_t word = SimulatedRunner::RootWordOf(resident.group);
      for (std::size_t p = 0; p < prefix.size(); ++p) {
        word = SimulatedRunner::ChainWord(word, prefix[p]);
        if (words && (p < start || (*words)[p - start] == word)) continue;
        complaints.push_back("lower block " + std::to_string(block) + " does not hold what was announced as " +
                             resident.hash.ToHex() + " of group " + std::to_string(resident.group));
        return;
      }
      ++num_lower_checked[static_cast<std::size_t>(tier.tier())];
    });
  }

  // The faults of the stream itself.
  void Tamper(KVEventBatch* batch) {
    if (planted_ || (fault_ != Fault::kWrongParent && fault_ != Fault::kMissingRemoval)) return;
    KVEventBatch changed;
    changed.ts = batch->ts;
    for (std::size_t i = 0; i < batch->size(); ++i) {
      const KVEventBatch::Event event = batch->at(i);
      if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
        if (fault_ == Fault::kMissingRemoval && !planted_) {
          planted_ = true;
        } else {
          changed.Add(*removed);
        }
      } else if (const auto* stored = std::get_if<BlockStored>(&event)) {
        BlockStored copy = *stored;
        const auto other = stream_.prefixes().begin();
        if (fault_ == Fault::kWrongParent && !planted_ && other != stream_.prefixes().end() &&
            copy.parent_block_hash != other->first) {
          copy.parent_block_hash = other->first;
          planted_ = true;
        }
        changed.Add(copy);
      } else {
        changed.Add(AllBlocksCleared{});
      }
    }
    *batch = std::move(changed);
  }

  // Between a lost batch and the Clear that heals it nothing can be said. Behind such a Clear there may be blocks whose
  // parent went before it.
  void Take(test::HandPublisher::Entry* entry) {
    if (entry->lost) {
      synchronised_ = joined_complete_ = false;
      return;
    }
    if (entry->chunk) {
      if (entry->chunk->first) {
        joined_ = test::ModelConsumer();
        joined_complete_ = false;
      }
      joined_.ApplyChunk(entry->chunk->blocks);
      joined_complete_ = joined_complete_ || (entry->chunk->last && synchronised_);
      num_snapshots_ += entry->chunk->last ? 1 : 0;
      return;
    }
    const bool clears = std::holds_alternative<AllBlocksCleared>(entry->batch.at(0));
    Tamper(&entry->batch);
    if (clears && !synchronised_) healed_ = synchronised_ = joined_complete_ = true;
    joined_.Apply(entry->batch);
    if (!synchronised_) return;
    stream_.Take(entry->batch, pool(), runner_->words());
    if (!healed_) return;
    std::erase_if(complaints,
                  [](const std::string& text) { return text.find("was never announced") != std::string::npos; });
  }

  void AskForSnapshots() {
    publisher_.wants.chunks = ~std::uint64_t{0};
    if (dice_.Chance(20) && publisher_.wants.walks == num_snapshots_) ++publisher_.wants.walks;
  }

  const test::TempDir directory_;
  Dice dice_;
  const std::uint32_t num_blocks_;
  const Groups groups_;
  const PoolRules rules_;
  StreamCheck stream_;
  const Fault planned_;
  Fault fault_ = Fault::kNone;
  bool planted_ = false;
  test::HandPublisher publisher_;
  bool synchronised_ = true;      // nothing was lost since the beginning or a Clear
  bool healed_ = false;           // something was lost once
  test::ModelConsumer joined_;    // there from the first chunk of a snapshot on
  bool joined_complete_ = false;  // the snapshot is, and nothing was lost since
  std::uint64_t num_snapshots_ = 0;
  CheckedRunner* runner_ = nullptr;
  std::unique_ptr<EngineCore> cached_;
  std::unique_ptr<ReferenceEngine> reference_;
  RequestId next_id_ = 1;
  std::uint64_t num_checks_ = 0;
  std::set<RequestId> open_;
  std::vector<BlockId> in_work_;  // what the step in flight computes, while it is being disturbed
};

// The tier did everything that it is for.
void RequireBusy(scheduler::Tier tier, const scheduler::KVConnectorStats& stats, const Tiers& tiers,
                 const ModelCheck& check, std::uint64_t some) {
  CAPTURE(scheduler::TraitsOf(tier).option);
  CHECK(stats.stored > some);
  // With two tiers one pool may leave one of them idle.
  if (tiers.disk_blocks == 0) CHECK(stats.removed > some / 10);
  if (tiers.disk_blocks == 0) CHECK(stats.loaded > 0);
  CHECK(check.num_lower_checked[static_cast<std::size_t>(tier)] > some);
  if (tiers.failed_store_percent > 0) CHECK(stats.failed_stores > some);
}

// Fewer pools where a step costs more.
#ifdef __SANITIZE_ADDRESS__
constexpr std::uint32_t kBlocksPerGroup[] = {13, 40};
#else
constexpr std::uint32_t kBlocksPerGroup[] = {8, 13, 24, 40, 64};
#endif

}  // namespace

void RequireSound(int steps_per_pool, const Groups& groups, std::uint32_t num_speculative_tokens, const Tiers& tiers,
                  const PoolRules& rules) {
  const auto some = static_cast<std::uint64_t>(steps_per_pool / 100);
  const auto start = std::chrono::steady_clock::now();
  std::uint64_t resets_while_running = 0;
  std::uint64_t cancelled_stores = 0;
  std::uint64_t host_hit_tokens = 0;
  std::uint64_t failed_loads = 0;
  std::uint64_t lower_removed = 0;
  std::uint64_t disk_hit_tokens = 0;
  std::uint64_t num_copies = 0;
  for (const std::uint32_t blocks_per_group : kBlocksPerGroup) {
    const std::uint32_t num_blocks = blocks_per_group * static_cast<std::uint32_t>(groups.size());
    CAPTURE(num_blocks);
    ModelCheck check(num_blocks * 7919, num_blocks, Fault::kNone, groups, num_speculative_tokens, tiers, rules);
    for (int step = 0; step < steps_per_pool && check.complaints.empty(); ++step) check.Advance();
    check.Drain();
    for (const std::string& complaint : check.complaints) FAIL_CHECK(complaint);
    const scheduler::SchedulerStats stats = check.stats();
    CHECK(check.reference().num_compared() > some);
    CHECK(check.stream().num_checked() > some);
    CHECK(check.stream().num_unchecked() < check.stream().num_checked() / 10);
    CHECK(stats.hit_blocks > some);
    CHECK(stats.removed > some);
    if (!tiers.any()) CHECK(stats.clears > 0);
    if (rules.removals == Removals::kExact) CHECK(stats.reported > some);
    if (rules.lost_percent > 0) {
      CHECK(stats.stream.resyncs > some);
      CHECK(stats.stream.walks > some);
    }
    num_copies += check.num_copies();
    CHECK(check.operations.aborts > some);
    CHECK(check.operations.evicted_blocks > some);
    CHECK(check.operations.evicted_hashes > some);
    if (!tiers.any()) CHECK(check.operations.resets_while_running >= some / 10);
    resets_while_running += check.operations.resets_while_running;
    cancelled_stores += stats.host.cancelled_stores + stats.disk.cancelled_stores;
    CHECK(check.operations.in_flight > some);
    if (blocks_per_group <= 13) CHECK(stats.preemptions > 0);
    CHECK(stats.hit_tokens + stats.host_hit_tokens + stats.disk_hit_tokens + stats.computed_prompt_tokens ==
          stats.prompt_tokens);
    using enum scheduler::Tier;
    host_hit_tokens += stats.host_hit_tokens;
    disk_hit_tokens += stats.disk_hit_tokens;
    if (tiers.host_blocks > 0) RequireBusy(kHost, stats.host, tiers, check, some);
    if (tiers.disk_blocks > 0) RequireBusy(kDisk, stats.disk, tiers, check, some);
    failed_loads += stats.failed_loads;
    lower_removed += stats.host.removed + stats.disk.removed;
    if (num_speculative_tokens > 0) {
      CHECK(stats.accepted_draft_tokens > some);
      CHECK(stats.draft_tokens > stats.accepted_draft_tokens + some);
    }
  }
  if (tiers.host_blocks > 0) CHECK(host_hit_tokens > 0);
  if (tiers.disk_blocks > 0) CHECK(disk_hit_tokens > 0);
  if (tiers.any()) {
    CHECK(resets_while_running > 0);
    CHECK(cancelled_stores > 0);
    CHECK(lower_removed > some);
    CHECK((failed_loads > some / 2) == (tiers.failed_load_percent > 0));
  }
  if (rules.partial_blocks) CHECK(num_copies > some);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  MESSAGE(std::size(kBlocksPerGroup) << " pools of " << steps_per_pool << " steps each took " << seconds.count()
                                     << " s");
}

void RequireCaught(Fault fault) {
  int caught = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    ModelCheck check(seed, 16, fault);
    for (int step = 0; step < 200; ++step) check.Advance();
    REQUIRE(check.complaints.empty());
    check.Plant();
    for (int step = 0; step < 2000 && !check.planted(); ++step) check.Advance();
    REQUIRE(check.planted());
    // The step in which it was planted, or a few later.
    for (int step = 0; step < 20 && check.complaints.empty(); ++step) check.Advance();
    CHECK_FALSE(check.complaints.empty());
    caught += check.complaints.empty() ? 0 : 1;
  }
  CHECK(caught == 10);
}

void RequireCaught(Fault fault, const Tiers& tiers) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    ModelCheck check(seed, 16, fault, kDense, 0, tiers);
    for (int step = 0; step < 200; ++step) check.Advance();
    REQUIRE(check.complaints.empty());
    check.Plant();
    for (int step = 0; step < 2000 && check.complaints.empty(); ++step) check.Advance();
    CHECK_FALSE(check.complaints.empty());
  }
}

}  // namespace kvwire::engine
