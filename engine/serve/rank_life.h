// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/engine_thread.h"
#include "engine/faults/fault_plan.h"
#include "engine/http/api_error.h"
#include "engine/http/kv_transfer_params.h"
#include "engine/serve/egress_thread.h"
#include "engine/serve/instance_config.h"
#include "engine/serve/kv_transfer.h"
#include "engine/serve/output_stream.h"
#include "engine/simulated_runner.h"
#include "kv_events/event_publisher.h"
#include "kv_events/publish/factory.h"
#include "kv_events/transport/zmq_context.h"

namespace kvwire::engine {

// What does not change from life to life of a rank. Ownership: the pointers outlive the rank.
struct RankSurroundings {
  const InstanceConfig* config = nullptr;
  const BlockHasher* hasher = nullptr;
  EgressThread* egress = nullptr;
  std::shared_ptr<ZmqContext> context;
  std::uint32_t index = 0;
  // A script wants the life with this number to be replaced. Called on its step thread; must not block.
  std::function<void(std::uint64_t life, const RestartOptions& options)> ask_restart;
  KVTransfer* transfer = nullptr;  // null: blocks are neither held for others nor fetched
};

// The faults of a rank and how often they happened, through all its lives. Threads: as FaultPlan and FaultCounters.
struct RankFaults {
  FaultPlan& plan(FaultPlace place) noexcept { return plans[static_cast<std::size_t>(place)]; }

  std::array<FaultPlan, 3> plans{FaultPlan(FaultPlace::kLink), FaultPlan(FaultPlace::kQueue),
                                 FaultPlan(FaultPlace::kEngine)};
  FaultCounters counters;
};

enum class SleepState : std::uint8_t { kAwake, kAsleep };

// One life of a rank: the engine's thread, its publisher, and who waits for its requests.
//
// Threads: any, but for what is said to run on the step thread; Prepare, Start and the destructor: the owner.
// Ownership: surroundings and faults outlive it.
// Errors: a life that was stopped refuses everything.
class RankLife final : public EngineListener {
 public:
  RankLife(const RankSurroundings& around, RankFaults* faults, std::uint64_t number)
      : around_(around), faults_(faults), number_(number) {}
  ~RankLife() override { Stop(std::chrono::milliseconds(2000)); }

  // Binds the publisher and builds the core; the thread starts with Start.
  Status Prepare(const std::optional<PublisherSuccession>& succession);
  // From the beginning asleep, or not.
  void Start(SleepState state);

  tl::expected<std::shared_ptr<OutputStream>, SubmitResult> Submit(
      scheduler::NewRequest request, std::optional<KVTransferParams> source = std::nullopt);
  void Abort(scheduler::RequestId id);
  bool Call(const std::function<void(EngineCore&)>& call);
  bool Sleep();
  bool WakeUp();
  void Stop(std::chrono::milliseconds deadline);

  // On the step thread: single faults, counted.
  std::size_t Evict(const BlockHash& name, std::optional<std::uint32_t> group);
  std::optional<scheduler::RequestId> Preempt();
  bool Reset();

  // On the step thread: blocks that go from engine to engine.
  //
  // How many words a reception has room for; nothing if its request receives no longer.
  std::optional<std::size_t> RoomFor(const scheduler::Reception& reception) const;
  // Writes the words, one block after the other, by group, and announces them; null: the reception failed. Nothing if
  // the request receives no longer. REQUIRES: as many words as RoomFor() says.
  void EndReception(const scheduler::Reception& reception, const std::vector<std::uint64_t>* words);
  // See Instance::TakeKept.
  ApiResult<std::vector<std::uint64_t>> TakeKept(scheduler::RequestId id,
                                                 const std::vector<std::vector<scheduler::BlockId>>& blocks);
  bool ReleaseKept(scheduler::RequestId id) { return engine_->ReleaseKept(id); }

  void OnStep(EngineCore::StepResult&& step) override;
  void OnRefused(scheduler::RequestId id, const Error& error) override;

  std::size_t num_requests() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return waiting_.size();
  }
  std::uint64_t number() const noexcept { return number_; }
  SleepState sleep_state() const noexcept {
    return asleep_.load(std::memory_order_acquire) ? SleepState::kAsleep : SleepState::kAwake;
  }
  EngineThread::Figures figures() const { return thread_->figures(); }
  const EventPublisher& publisher() const noexcept { return *publisher_; }
  // After Stop.
  SequenceNumber next_batch() const noexcept { return thread_->core().next_batch(); }

 private:
  // Who waits for a request's tokens, and what it is told with the first of them.
  struct Waiting {
    std::shared_ptr<OutputStream> stream;
    std::optional<std::uint32_t> cached_tokens;  // once it was admitted
    bool has_token = false;
    std::optional<KVTransferParams> source;  // until its reception begins
  };

  void NoteHits(const scheduler::SchedulerOutput& step);
  void BeginReceptions(const scheduler::SchedulerOutput& step);
  void HoldFor(const scheduler::FinishedRequest& finished, bool is_awaited);
  std::uint32_t BlockSize(std::size_t group) const { return engine_->scheduler().config().groups[group].block_size; }
  void Deliver(EngineCore::StepResult step);
  void MeetFaults();
  void Meet(const Fault& fault);
  void PassTime(std::chrono::nanoseconds time);
  std::optional<Delivery> DeliveryOf(const scheduler::SampledToken& token);
  std::shared_ptr<OutputStream> Take(scheduler::RequestId id);

  const RankSurroundings& around_;
  RankFaults* const faults_;
  const std::uint64_t number_;
  std::unique_ptr<EventPublisher> publisher_;
  std::unique_ptr<EngineCore> core_;   // until Start
  SimulatedRunner* memory_ = nullptr;  // the step thread's; owned by the core
  std::unique_ptr<EngineThread> thread_;
  std::atomic<EngineThread*> nudged_{nullptr};  // whom the publisher tells what it wants; null until Start
  std::atomic<bool> asleep_{false};

  // The step thread's.
  EngineCore* engine_ = nullptr;  // owned by thread_
  SequenceNumber met_ = 0;        // batches below have met the script's faults
  bool ended_ = false;            // by a restart that a script asked for

  mutable std::mutex mutex_;
  std::unordered_map<scheduler::RequestId, Waiting> waiting_;  // guarded by mutex_

  std::mutex stop_mutex_;
  std::condition_variable stop_changed_;
  bool stopping_ = false;  // guarded by stop_mutex_
};

}  // namespace kvwire::engine
