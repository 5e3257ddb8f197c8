// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/engine_thread.h"
#include "engine/faults/fault_plan.h"
#include "engine/faults/fault_script.h"
#include "engine/http/api_error.h"
#include "engine/http/kv_transfer_params.h"
#include "engine/serve/egress_thread.h"
#include "engine/serve/instance_config.h"
#include "engine/serve/output_stream.h"
#include "kv_events/event_publisher.h"
#include "kv_events/hash/block_hasher.h"
#include "kv_events/transport/zmq_context.h"

namespace kvwire::engine {

class KVTransfer;
class Rank;

// A request on its way: its rank, its number there, and where its tokens come out.
struct Admission {
  std::uint32_t rank = 0;
  scheduler::RequestId id = 0;
  std::shared_ptr<OutputStream> output;
};

// A request that was not taken, and by which rank: the one that was asked for, or that would have been chosen.
struct Rejection {
  SubmitResult reason = SubmitResult::kFull;
  std::uint32_t rank = 0;
};

// An engine as its clients see it: one or more data-parallel ranks, each with its own pool, scheduler, step thread and
// event publisher; one prefix cache per rank.
//
// It can break its streams on purpose, for developers of consumers. Without a script that costs a look at a flag per
// batch. Source: docs/faults.md.
//
// Threads: any, but Shutdown and the destructor: the owner.
// Ownership: egress outlives the instance.
// Errors: Create validates everything and binds all ranks' sockets before a thread runs; nothing is left open;
//   kUnavailable when it gave up.
class Instance {
 public:
  static Result<std::unique_ptr<Instance>> Create(InstanceConfig config, EgressThread* egress,
                                                  const std::shared_ptr<ZmqContext>& context = ZmqContext::Shared());
  // Shutdown with a deadline of two seconds.
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  // Hashes the prompt on this thread and queues the request; request.id is chosen here. Without a rank the one with the
  // fewest requests takes it. `source`: who holds the blocks that it receives. REQUIRES: rank < num_ranks(); a source
  // only if the configuration has kv_transfer.
  tl::expected<Admission, Rejection> Submit(scheduler::NewRequest request, std::optional<std::uint32_t> rank,
                                            std::optional<KVTransferParams> source = std::nullopt);

  // The words of blocks that a finished request holds for other engines, by group in the order given; then it holds
  // them no more. Errors: 404 when it holds nothing, or no longer; 400 for a block that is not among them, and then it
  // goes on holding; 503 when the rank is stopped.
  ApiResult<std::vector<std::uint64_t>> TakeKept(std::uint32_t rank, scheduler::RequestId id,
                                                 const std::vector<std::vector<scheduler::BlockId>>& blocks);

  // Nobody waits for the output any more.
  void Abort(const Admission& admission);

  // On every rank. False if a rank has blocks in use, and the mode does not allow to preempt, or was stopped.
  bool ResetPrefixCache(scheduler::ResetMode mode);

  // Asleep, the cache is empty, running requests are preempted, and requests wait.
  bool Sleep();
  bool WakeUp();
  bool asleep() const;

  // Runs `call` on a rank's step thread, between two steps, and waits for it; false if it could not run.
  // REQUIRES: rank < num_ranks(); not called on a step thread.
  bool Call(std::uint32_t rank, const std::function<void(EngineCore&)>& call);

  // Replaces the script of one rank, or of all, which then meet the same faults at the same numbers; an empty script
  // ends the faults. In force with the next batch that each FaultPlace sees. REQUIRES: rank < num_ranks(), as below.
  // Errors: as FaultScript::Check.
  Status SetFaults(const FaultScript& script, std::optional<std::uint32_t> rank);
  const FaultCounters& fault_counters(std::uint32_t rank) const;

  // Single faults, between two steps, published at once. Not called on a step thread.
  // Errors: kUnavailable when Call could not run.
  //
  // How many copies of the block left the prefix cache, of one KV-cache group or of all. Errors: also as
  // ParseBlockName.
  Result<std::size_t> Evict(std::uint32_t rank, std::string_view block, std::optional<std::uint32_t> group = {});
  // Who was preempted; nothing if no request runs.
  Result<std::optional<scheduler::RequestId>> Preempt(std::uint32_t rank);
  // Empties the prefix cache, preempting what runs.
  Status Reset(std::uint32_t rank);

  // Replaces a rank as if its process had crashed and come back. What was published leaves; unfinished requests are
  // refused; the sockets close; an empty engine binds the same addresses, with an empty replay buffer and without an
  // AllBlocksCleared, asleep if it slept. Returns when the new engine runs. Until then Submit to the rank gives
  // kStopped and Call false; requests without a rank go to other ranks, if there are any. Not called on a step thread.
  // Errors: kInvalidArgument for first_number; kUnavailable after Shutdown; else why the new engine could not be made:
  //   the rank stays stopped, and Restart may be tried again.
  Status Restart(std::uint32_t rank, const RestartOptions& options = {});

  std::uint32_t num_ranks() const noexcept { return static_cast<std::uint32_t>(ranks_.size()); }
  EngineThread::Figures figures(std::uint32_t rank) const;
  PublisherStats publisher_stats(std::uint32_t rank) const;
  // By rank; none when events are off.
  std::vector<EventSourceInfo> sources() const;
  const InstanceConfig& config() const noexcept { return config_; }
  const BlockHasher& hasher() const noexcept { return hasher_; }

  // Requests not finished yet, on all ranks.
  std::size_t num_requests() const;

  // Takes no more requests.
  void Close() noexcept { closed_.store(true, std::memory_order_relaxed); }

  // Refuses what is unfinished, publishes what is recorded, closes the publishers within the deadline. Idempotent.
  void Shutdown(std::chrono::milliseconds deadline);

 private:
  // A restart that a script asked for, of the rank's life with this number.
  struct DueRestart {
    Rank* rank = nullptr;
    std::uint64_t life = 0;
    RestartOptions options;
  };

  Instance(InstanceConfig config, BlockHasher hasher);

  Status StartRestarter();
  void StopRestarter();
  void RestartLoop();
  void Enqueue(DueRestart due);
  // The rank with the fewest requests.
  std::uint32_t ChooseRank();

  const InstanceConfig config_;
  const BlockHasher hasher_;
  std::unique_ptr<KVTransfer> transfer_;  // if the configuration has one; outlives the ranks
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::atomic<std::uint64_t> next_id_{1};
  std::atomic<std::uint32_t> next_rank_{0};  // where the search for the least loaded begins
  std::atomic<bool> closed_{false};

  // Restarts that scripts ask for, on a thread of their own: a step thread cannot end itself.
  std::mutex restarts_mutex_;
  std::condition_variable restarts_changed_;
  std::deque<DueRestart> due_restarts_;  // guarded by restarts_mutex_, as the next two
  bool restarter_ends_ = false;
  std::thread restarter_;  // runs from the first script on that has a restart
};

}  // namespace kvwire::engine
