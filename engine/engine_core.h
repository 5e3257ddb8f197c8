// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/simulated_runner.h"
#include "kv_events/clock.h"
#include "kv_events/error.h"
#include "kv_events/event_publisher.h"
#include "kv_events/hash/block_hasher.h"
#include "scheduler/model_runner.h"
#include "scheduler/scheduler.h"

namespace kvwire::engine {

// Where a step's time goes, summed over all steps.
struct StepTimes {
  std::chrono::nanoseconds schedule{0};
  std::chrono::nanoseconds run{0};          // the model runner, the time model's sleep included
  std::chrono::nanoseconds update{0};       // without the event calls
  std::chrono::nanoseconds event_calls{0};  // Publish() and Wake(); recording is part of schedule and update
};

struct EngineConfig {
  scheduler::SchedulerConfig scheduler;
  TimeModel time_model;
  std::uint64_t first_batch = 0;  // number that the publisher gives to the first batch
  // Passes the time model's time; may return early, when the engine is to end. REQUIRES: set when time_model is not
  // zero.
  std::function<void(std::chrono::nanoseconds)> sleep;
  const Clock* clock = &SystemClock::Get();
  // Sees every batch before it is published, on the step thread; must not throw. May be empty.
  std::function<void(std::uint64_t number, const KVEventBatch& batch)> observe_batch;
};

// Scheduler and model runner, one step at a time: schedule, run, update, and one Wake() when something was handed to
// the publisher.
//
// Threads: one thread at a time, the step thread. EngineThread gives it one of its own.
// Ownership: owns scheduler and runner; publisher and clock outlive it.
// Errors: refusals are results; nothing throws but for lack of memory.
class EngineCore {
 public:
  // What a step did.
  struct StepResult {
    std::uint64_t num_scheduled_tokens = 0;
    // Of requests that finish with this step, too; not of those that a failed load has undone.
    std::vector<scheduler::SampledToken> sampled;
    std::vector<scheduler::FinishedRequest> finished;
    bool published = false;  // a batch left; the ordinal of the last, counted from 0, is batches_published() - 1
  };

  // `publisher` may be null when the configuration has events off.
  static Result<std::unique_ptr<EngineCore>> Create(EngineConfig config, BlockHasher hasher,
                                                    std::unique_ptr<scheduler::ModelRunner> runner,
                                                    EventPublisher* publisher);
  ~EngineCore();
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  Status Add(scheduler::NewRequest request) { return scheduler_->AddRequest(std::move(request)); }
  bool Abort(scheduler::RequestId id) { return scheduler_->Abort(id); }
  // The scheduler publishes and wakes at once.
  bool ResetPrefixCache(scheduler::ResetMode mode) { return scheduler_->ResetPrefixCache(mode); }

  // The contents of a reception's blocks are written, or do not come; see Scheduler::OnReceived.
  bool OnReceived(scheduler::RequestId id, scheduler::Arrival arrival) { return scheduler_->OnReceived(id, arrival); }
  bool ReleaseKept(scheduler::RequestId id) { return scheduler_->ReleaseKept(id); }

  // Of the running requests, the one that was admitted last.
  std::optional<scheduler::RequestId> PreemptNewest() { return scheduler_->PreemptNewest(); }

  // Takes blocks out of the prefix cache; published at once.
  Status EvictBlocks(std::span<const scheduler::BlockId> blocks) { return scheduler_->EvictBlocks(blocks); }
  std::size_t EvictHash(const BlockHash& hash, std::uint32_t group = 0) { return scheduler_->EvictHash(hash, group); }

  // Asleep there is no work: requests wait, commands are executed. Requests that receive are no work either.
  void set_asleep(bool asleep) noexcept { asleep_ = asleep; }
  bool asleep() const noexcept { return asleep_; }

  bool has_work() const noexcept {
    return !asleep_ && (scheduler_->has_schedulable_requests() || scheduler_->has_stores_in_flight());
  }

  // What the publisher wants of the state, apart from steps, each of which does a piece by itself: see Scheduler.
  bool HasStateWork() const noexcept { return scheduler_->HasStateWork(); }
  bool StateWorkWaits() const noexcept { return scheduler_->StateWorkWaits(); }
  void DoStateWork() { scheduler_->DoStateWork(); }

  // Runs one step, also when there is no work.
  StepResult Step();

  // Publishes what is still recorded, closes the publisher and the runner. Idempotent. No step follows.
  void Shutdown(std::chrono::milliseconds deadline);

  // Publish() calls so far, those outside a step included.
  std::uint64_t batches_published() const noexcept;
  // The number that the next batch gets.
  std::uint64_t next_batch() const noexcept;
  std::uint64_t first_batch() const noexcept { return config_.first_batch; }
  StepTimes times() const noexcept;
  // A text that no other engine has, whatever process it is in.
  const std::string& life() const noexcept { return life_; }
  const scheduler::Scheduler& scheduler() const noexcept { return *scheduler_; }

 private:
  class PublishProbe;

  EngineCore(EngineConfig config, std::unique_ptr<PublishProbe> probe, std::unique_ptr<scheduler::Scheduler> scheduler,
             std::unique_ptr<scheduler::ModelRunner> runner);

  void PassModelTime(const scheduler::SchedulerOutput& step, MonotonicNanos started);

  const EngineConfig config_;
  const std::unique_ptr<PublishProbe> probe_;
  const std::unique_ptr<scheduler::ModelRunner> runner_;
  const std::unique_ptr<scheduler::Scheduler> scheduler_;
  StepTimes times_;
  bool asleep_ = false;
  const std::string life_;
};

}  // namespace kvwire::engine
