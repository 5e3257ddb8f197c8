// SPDX-License-Identifier: Apache-2.0
// Two engines under random load, of which one computes prompts and the other one receives their blocks. Words are
// copied from memory to memory, sometimes not, sometimes too late; what the receiving engine announces and says stays
// true.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "engine/engine_core.h"
#include "tests/unit/engine/engine_fixture.h"
#include "tests/unit/engine/model_support.h"

namespace kvwire::engine {
namespace {

using scheduler::Arrival;
using scheduler::BlockId;
using scheduler::KeptBlocks;
using scheduler::Reception;
using scheduler::RequestId;
using scheduler::ResetMode;

struct Load {
  Groups groups = kDense;
  std::uint32_t num_blocks = 24;  // of the receiving engine
  std::uint32_t num_speculative_tokens = 0;
  bool partial_blocks = false;
  std::uint32_t host_blocks = 0;
  std::uint32_t failed_load_percent = 0;
  int failing_percent = 10;
  bool announces_early = false;  // the fault: a transfer that is said to be complete and is not
};

// Sees the receptions that begin, and lets something happen while a step is in flight.
class SeeingRunner final : public scheduler::ModelRunner {
 public:
  SeeingRunner(std::unique_ptr<SimulatedRunner> inner, std::vector<Reception>* begun, std::function<void()> disturb)
      : inner_(std::move(inner)), begun_(begun), disturb_(std::move(disturb)) {}

  scheduler::RunnerOutput Run(const scheduler::SchedulerOutput& step) override {
    begun_->insert(begun_->end(), step.receptions.begin(), step.receptions.end());
    if (disturb_ && !step.empty()) disturb_();
    return inner_->Run(step);
  }
  SimulatedRunner& words() { return *inner_; }

 private:
  const std::unique_ptr<SimulatedRunner> inner_;
  std::vector<Reception>* const begun_;
  const std::function<void()> disturb_;
};

class TransferCheck {
 public:
  TransferCheck(std::uint64_t seed, Load load)
      : dice_(seed), load_(std::move(load)), stream_(load_.groups, &complaints) {
    EngineConfig config = SmallConfig(load_.num_blocks * static_cast<std::uint32_t>(load_.groups.size()));
    config.scheduler.groups = load_.groups;
    config.scheduler.partial_blocks = load_.partial_blocks;
    config.scheduler.max_num_batched_tokens = static_cast<std::uint32_t>(dice_.Random(6, 40));
    config.scheduler.max_num_seqs = static_cast<std::uint32_t>(dice_.Random(2, 6));
    EngineConfig source = config;
    source.scheduler.host_blocks = load_.host_blocks;
    auto runner = std::make_unique<SeeingRunner>(RunnerFor(source), &ignored_, nullptr);
    source_words_ = &runner->words();
    source_ = MakeEngine(source, &source_publisher_, std::move(runner));
    config.scheduler.host_blocks = load_.host_blocks;
    config.scheduler.num_speculative_tokens = load_.num_speculative_tokens;
    SimulatedRunner::Options copying;
    copying.failed_load_percent = load_.failed_load_percent;
    copying.copy_seed = seed;
    runner = std::make_unique<SeeingRunner>(RunnerFor(config, copying), &begun_, [this] { Disturb(); });
    words_ = &runner->words();
    decode_ = MakeEngine(config, &publisher_, std::move(runner));
    reference_ = std::make_unique<ReferenceEngine>(config, &complaints);
  }

  void Advance() {
    if (decode_->scheduler().num_waiting() < 3 && dice_.Chance(60)) AddRequest();
    if (dice_.Chance(10)) DoSomething();
    while (!begun_.empty() && dice_.Chance(40)) Arrive();
    Step();
  }

  void Drain() {
    while (decode_->has_work() || !begun_.empty()) {
      while (!begun_.empty()) Arrive();
      Step();
    }
    reference_->Drain();
    if (decode_->scheduler().pool().num_free() + 1 != decode_->scheduler().pool().num_blocks()) {
      complaints.push_back("blocks are held and nobody runs");
    }
    for (const auto& [id, kept] : held_) source_->ReleaseKept(id);
    if (source_->scheduler().pool().num_free() + 1 != source_->scheduler().pool().num_blocks()) {
      complaints.push_back("the source holds blocks for nobody");
    }
  }

  const ReferenceEngine& reference() const { return *reference_; }
  const StreamCheck& stream() const { return stream_; }

  Complaints complaints;
  std::uint64_t num_failed = 0;
  std::uint64_t num_late = 0;  // arrivals for a request that received no longer
  scheduler::SchedulerStats stats() const { return decode_->scheduler().stats(); }

 private:
  // First the source computes the prompt, with one token of output; then the other engine receives it.
  void AddRequest() {
    scheduler::NewRequest request;
    request.id = next_id_++;
    request.max_tokens = static_cast<std::uint32_t>(dice_.Random(1, 9));
    const int room = static_cast<int>((load_.num_blocks - 1) * kBlockSize - request.max_tokens);
    const TokenId text = 100 * static_cast<TokenId>(dice_.Random(0, 3));
    request.prompt = RandomPrompt(text, room, &dice_);
    if (dice_.Chance(80)) {
      request.num_receivable_tokens = Prefill(request);
      if (dice_.Chance(10)) request.num_receivable_tokens /= 2;
    }
    open_.insert(request.id);
    scheduler::NewRequest copy = request;
    REQUIRE(decode_->Add(std::move(request)).has_value());
    reference_->Add(std::move(copy));
  }

  std::uint32_t Prefill(const scheduler::NewRequest& request) {
    scheduler::NewRequest prefill;
    prefill.id = request.id;
    prefill.prompt = request.prompt;
    prefill.keep_blocks = true;
    REQUIRE(source_->Add(std::move(prefill)).has_value());
    std::uint32_t held = 0;
    while (source_->has_work()) {
      for (const auto& finished : source_->Step().finished) {
        held = finished.kept.num_tokens;
        if (held > 0) held_[finished.id] = finished.kept;
      }
    }
    source_publisher_.TakeBatches();
    return held;
  }

  // A transfer ends: a random one.
  void Arrive() {
    const auto which = begun_.begin() + dice_.Random(0, static_cast<int>(begun_.size()) - 1);
    const Reception reception = std::move(*which);
    begun_.erase(which);
    const KeptBlocks* const kept = source_->scheduler().FindKept(reception.request);
    const bool complete = kept != nullptr && Holds(*kept, reception) && !dice_.Chance(load_.failing_percent);
    const bool receives = decode_->scheduler().is_receiving(reception.request);
    if (!reception.parts.empty() && !receives) ++num_late;
    if (receives) {
      if (complete && !load_.announces_early) Copy(*kept, reception);
      if (!complete) ++num_failed;
      if (!decode_->OnReceived(reception.request, complete ? Arrival::kComplete : Arrival::kFailed)) {
        complaints.push_back("an arrival was not taken");
      }
    }
    source_->ReleaseKept(reception.request);
    held_.erase(reception.request);
    Check();
  }

  // What is asked to be received may end before what was prepared; then a window's blocks are others.
  static bool Holds(const KeptBlocks& kept, const Reception& reception) {
    for (std::size_t group = 0; group < reception.parts.size(); ++group) {
      const Reception::Part& part = reception.parts[group];
      const auto first = kept.block_tables[group].begin() + part.first;
      if (std::find(first, first + static_cast<std::ptrdiff_t>(part.blocks.size()), scheduler::kNullBlock) !=
          first + static_cast<std::ptrdiff_t>(part.blocks.size())) {
        return false;
      }
    }
    return true;
  }

  void Copy(const KeptBlocks& kept, const Reception& reception) {
    for (std::size_t group = 0; group < reception.parts.size(); ++group) {
      const Reception::Part& part = reception.parts[group];
      for (std::size_t i = 0; i < part.blocks.size(); ++i) {
        const BlockId from = kept.block_tables[group].at(part.first + i);
        std::vector<std::uint64_t> words(load_.groups[group].block_size);
        for (std::uint32_t offset = 0; offset < words.size(); ++offset) {
          words[offset] = source_words_->WordAt(from, offset);
        }
        words_->WriteBlock(part.blocks[i], words);
      }
    }
  }

  // A step is in flight; what happened is checked behind it.
  void Disturb() {
    in_flight_ = true;
    if (dice_.Chance(10) && !begun_.empty()) Arrive();
    if (dice_.Chance(5)) DoSomething();
    in_flight_ = false;
  }

  void DoSomething() {
    const int what = dice_.Random(0, 99);
    if (what < 50 && !open_.empty()) {
      decode_->Abort(TakeRandom(&open_, &dice_));
    } else if (what < 80) {
      std::vector<BlockId> blocks{
          static_cast<BlockId>(dice_.Random(0, static_cast<int>(decode_->scheduler().pool().num_blocks()) - 1))};
      REQUIRE(decode_->EvictBlocks(blocks).has_value());
    } else if (what < 90) {
      decode_->ResetPrefixCache(what < 85 ? ResetMode::kPreemptRunning : ResetMode::kFailWhileRunning);
    } else if (!in_flight_) {
      decode_->PreemptNewest();
    }
    Check();
  }

  void Step() {
    for (const auto& finished : decode_->Step().finished) {
      open_.erase(finished.id);
      reference_->Expect(finished);
    }
    Check();
    reference_->Step();
  }

  void Check() {
    if (in_flight_) return;
    const scheduler::Scheduler& scheduler = decode_->scheduler();
    for (const KVEventBatch& batch : publisher_.TakeBatches()) stream_.Take(batch, scheduler.pool(), *words_);
    stream_.Compare(scheduler);
  }

  Dice dice_;
  const Load load_;
  StreamCheck stream_;
  CollectingEventPublisher source_publisher_;
  CollectingEventPublisher publisher_;
  SimulatedRunner* source_words_ = nullptr;
  SimulatedRunner* words_ = nullptr;
  std::vector<Reception> begun_;
  std::vector<Reception> ignored_;
  std::unique_ptr<EngineCore> source_;
  std::unique_ptr<EngineCore> decode_;
  std::unique_ptr<ReferenceEngine> reference_;
  bool in_flight_ = false;
  RequestId next_id_ = 1;
  std::set<RequestId> open_;
  std::unordered_map<RequestId, KeptBlocks> held_;
};

void RequireSound(int steps, Load load) {
  const auto some = static_cast<std::uint64_t>(steps / 100);
  std::uint64_t late = 0;
  for (const std::uint32_t num_blocks : {16u, 24u, 40u}) {
    CAPTURE(num_blocks);
    load.num_blocks = num_blocks;
    TransferCheck check(num_blocks * 7919, load);
    for (int step = 0; step < steps && check.complaints.empty(); ++step) check.Advance();
    check.Drain();
    for (const std::string& complaint : check.complaints) FAIL_CHECK(complaint);
    const scheduler::SchedulerStats stats = check.stats();
    CHECK(check.reference().num_compared() > some);
    CHECK(check.stream().num_checked() > some);
    CHECK(check.num_failed > some / 10);
    CHECK(stats.received_tokens > some);
    CHECK(stats.failed_receptions == check.num_failed);
    CHECK(stats.hit_tokens + stats.host_hit_tokens + stats.received_tokens + stats.computed_prompt_tokens ==
          stats.prompt_tokens);
    late += check.num_late;
  }
  CHECK(late > 0);
}

TEST_CASE("P40: with blocks from another engine outputs are those of one engine, and announced blocks hold the words") {
  RequireSound(3000, {});
  RequireSound(1500, {.num_speculative_tokens = 3});
}

TEST_CASE("P41: the same holds for groups of full attention, of windows and of states") {
  using enum scheduler::KVCacheKind;
  RequireSound(1000, {.groups = {{kFullAttention, 4, 0}, {kSlidingWindow, 4, 8}}});
  RequireSound(1000, {.groups = {{kFullAttention, 8, 0}, {kSlidingWindow, 4, 6}}});
  RequireSound(1000, {.groups = {{kFullAttention, 4, 0}, {kMamba, 8, 0}}});
  RequireSound(
      1000, {.groups = {{kFullAttention, 4, 0}, {kSlidingWindow, 4, 3}, {kMamba, 4, 0}}, .num_speculative_tokens = 2});
}

TEST_CASE("P42: the same holds with host tiers behind both engines") {
  RequireSound(1500, {.host_blocks = 30});
  RequireSound(1500, {.host_blocks = 30, .failed_load_percent = 40});
  using enum scheduler::KVCacheKind;
  RequireSound(1000, {.groups = {{kFullAttention, 4, 0}, {kSlidingWindow, 4, 8}}, .host_blocks = 60});
}

TEST_CASE("P44: the same holds with partial blocks, of which whole ones are transferred") {
  using enum scheduler::KVCacheKind;
  RequireSound(1500, {.groups = {{kFullAttention, 12, 0}}, .partial_blocks = true});
  RequireSound(1000, {.groups = {{kFullAttention, 8, 0}, {kSlidingWindow, 4, 6}}, .partial_blocks = true});
  RequireSound(1000, {.groups = {{kFullAttention, 4, 0}, {kMamba, 8, 0}}, .partial_blocks = true, .host_blocks = 40});
}

TEST_CASE("P43: blocks that are announced without their words are caught") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    TransferCheck check(seed, {.announces_early = true});
    for (int step = 0; step < 500 && check.complaints.empty(); ++step) check.Advance();
    CHECK_FALSE(check.complaints.empty());
  }
}

}  // namespace
}  // namespace kvwire::engine
