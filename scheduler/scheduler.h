// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kv_events/announced_state.h"
#include "kv_events/clock.h"
#include "kv_events/config.h"
#include "kv_events/error.h"
#include "kv_events/event_publisher.h"
#include "kv_events/hash/block_hasher.h"
#include "kv_events/log.h"
#include "kv_events/state_publisher.h"
#include "scheduler/kv_cache_group.h"
#include "scheduler/kv_cache_manager.h"
#include "scheduler/kv_connector.h"
#include "scheduler/request.h"
#include "scheduler/scheduler_output.h"

namespace kvwire::scheduler {

struct SchedulerConfig {
  std::uint32_t num_blocks = 0;   // the null block included; at least 2
  std::uint32_t block_size = 16;  // tokens per hash, and per block unless `groups` says otherwise
  // The KV-cache groups of the model; empty: one of full attention. See CheckGroups.
  std::vector<KVCacheGroup> groups;
  std::uint32_t max_num_seqs = 128;
  std::uint32_t max_num_batched_tokens = 8192;  // per step
  std::uint32_t max_model_len = 1u << 20;       // prompt and output of one request
  std::uint32_t num_speculative_tokens = 0;     // draft tokens of a request that a step verifies, at most
  bool enable_prefix_caching = true;
  bool enable_kv_cache_events = false;
  // A prefix hit may end within a block of several hash blocks, and such a block is registered before it is full.
  // Without effect where every block is one hash block.
  bool partial_blocks = false;
  Removals removals = Removals::kExact;
  // vLLM's own order and events: a store is recorded at allocation, a "full" report at every attempt, a removal per
  // physical copy (whatever `removals` says).
  bool vllm_exact = false;
  // Blocks of the host tier and of the disk tier, which keep what the device evicts; 0: there is none. They need prefix
  // caching, and are not vLLM's: not with vllm_exact.
  std::uint32_t host_blocks = 0;
  std::uint32_t disk_blocks = 0;
  std::uint32_t tensor_parallel_size = 1;  // workers, each of which copies its part of every block to these tiers
  TierReset reset_lower_tiers = TierReset::kClear;
  LogSink log;
};

enum class FinishReason : std::uint8_t {
  kLength,  // max_tokens were produced
  kError,   // the runner returned no token for it
};

struct FinishedRequest {
  RequestId id = 0;
  FinishReason reason = FinishReason::kLength;
  std::uint32_t num_prompt_tokens = 0;
  std::uint32_t num_cached_tokens =
      0;  // of the prompt, found in the cache or received before the request was first admitted
  std::uint32_t num_preemptions = 0;
  std::vector<TokenId> output;
  KeptBlocks kept = {};  // of one with keep_blocks, that did not fail
};

// How a reception ended.
enum class Arrival : std::uint8_t {
  kComplete,  // every word is where it belongs
  kFailed,    // whatever is there is nothing
};

enum class ResetMode : std::uint8_t { kFailWhileRunning, kPreemptRunning };

// Counters since the start. Prompt figures count a request at its first admission only; each prompt token is in one of
// hit_tokens, host_hit_tokens, disk_hit_tokens, received_tokens and computed_prompt_tokens.
struct SchedulerStats {
  std::uint64_t requests_added = 0;
  std::uint64_t requests_refused = 0;
  std::uint64_t requests_finished = 0;
  std::uint64_t requests_aborted = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t steps = 0;               // with at least one request
  std::uint64_t prompt_tokens = 0;       // of admitted requests
  std::uint64_t full_prompt_blocks = 0;  // of admitted requests
  std::uint64_t hit_tokens = 0;          // of prompts, found on the device
  std::uint64_t hit_blocks = 0;
  std::uint64_t host_hit_tokens = 0;         // of prompts, found, some of it on the host only
  std::uint64_t disk_hit_tokens = 0;         // of prompts, found, some of it on the disk only
  std::uint64_t computed_prompt_tokens = 0;  // of prompts, neither found nor received
  std::uint64_t scheduled_tokens = 0;
  std::uint64_t output_tokens = 0;
  std::uint64_t draft_tokens = 0;           // computed to be verified
  std::uint64_t accepted_draft_tokens = 0;  // of these, right
  std::uint64_t new_prompt_blocks = 0;      // prompt blocks registered whose hash was not resident
  std::uint64_t stored = 0;                 // block hashes announced in BlockStored, without reports
  std::uint64_t reported = 0;               // block hashes announced again by "full" reports
  std::uint64_t removed = 0;                // block hashes in BlockRemoved
  std::uint64_t clears = 0;                 // AllBlocksCleared recorded
  std::uint64_t events = 0;                 // in published batches
  std::uint64_t batches = 0;                // handed to the publisher, the dropped ones included
  std::uint64_t dropped_batches = 0;        // of these, not accepted by the publisher
  std::uint64_t failed_loads = 0;           // requests computed again because a block could not be loaded
  std::uint64_t receptions = 0;             // that began, with something to receive
  std::uint64_t failed_receptions = 0;      // of these
  std::uint64_t received_tokens = 0;        // of prompts of admitted requests; neither computed nor found here
  std::uint64_t kept_requests = 0;          // finished requests whose blocks stayed held
  std::uint64_t kept_given_up = 0;          // of these, those whose blocks were needed before they were released
  StatePublisherStats stream;
  KVConnectorStats host;
  KVConnectorStats disk;
};

// First-come-first-served continuous batching over one block pool: a token budget per step, chunked prefill, preemption
// of the request that was admitted last (its blocks are given up and it is computed again).
//
// A step is Schedule(), the model runner, UpdateFromOutput(); one step at a time ("in flight" in between). The events
// of a step leave in one batch at the end of UpdateFromOutput, and behind it a piece of what the publisher wants of the
// state (StatePublisher). What happens outside a step is published at once; while a step is in flight it waits for the
// step's batch.
//
// Engines can share the work: a request with keep_blocks leaves its prompt's blocks held when it has finished, for
// somebody to copy; one with num_receivable_tokens gets blocks and waits, not counted as running, until OnReceived says
// that their contents are there. Only then are they registered and announced. What a reception is not to bring is
// computed. Blocks that are kept, or received and not used yet, are given up when nothing else could go on.
//
// Threads: the step thread. Ownership: publisher and clock outlive the scheduler, which keeps no other reference.
// Errors: refusals are results; nothing throws but for lack of memory.
class Scheduler {
 public:
  // `publisher` may be null when events are off, and is then never needed.
  // Errors: kInvalidArgument names the field, its value and what is allowed.
  static Result<std::unique_ptr<Scheduler>> Create(SchedulerConfig config, BlockHasher hasher,
                                                   EventPublisher* publisher, const Clock* clock = &SystemClock::Get());
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Queues a request. Refused: an empty prompt, a token above kMaxTokenId, no output, an id in use, more tokens than
  // max_model_len, more blocks than the pool could ever give it (the message has both numbers), after Shutdown().
  Status AddRequest(NewRequest request);

  // Chooses the next step's work; empty when there is none. The output is valid until UpdateFromOutput, also across
  // Abort and ResetPrefixCache.
  // REQUIRES: no step is in flight.
  SchedulerOutput Schedule();

  // Ends the step: undoes the requests that a failed load has spoilt, which wait to be computed again; announces what
  // it computed, appends tokens, finishes requests, publishes the step's events. Tokens of requests that were aborted
  // or preempted since Schedule() are ignored. To be called after every Schedule().
  std::vector<FinishedRequest> UpdateFromOutput(const SchedulerOutput& step, const RunnerOutput& output);

  // The requests that the last UpdateFromOutput undid; what the runner drew for them does not count.
  std::span<const RequestId> undone() const noexcept { return undone_; }

  // Forgets a request, also what is kept of it. False if there is none with this id.
  bool Abort(RequestId id);

  // Ends a reception. Complete: announces its blocks, at once or, while a step is in flight, with the step. Failed: the
  // blocks are given back and the request is computed. False, and nothing happens, if the request does not receive:
  // it was aborted, or its blocks were taken by a reset.
  bool OnReceived(RequestId id, Arrival arrival);
  bool is_receiving(RequestId id) const;

  // What a finished request left held, or null.
  const KeptBlocks* FindKept(RequestId id) const;
  // Its blocks stay cached. False if nothing is kept of such a request.
  bool ReleaseKept(RequestId id);

  // Empties the prefix cache and announces it, also when it was empty; reset_lower_tiers says what these do.
  // Stores in flight are given up. False, and nothing happens, if blocks are in use
  // and the mode does not allow to preempt.
  bool ResetPrefixCache(ResetMode mode);

  // Takes the blocks of the request that was admitted last; it waits to be computed again. Nothing if none runs.
  // REQUIRES: no step is in flight.
  std::optional<RequestId> PreemptNewest();

  // Takes blocks out of the prefix cache; who holds them keeps them. Blocks without a hash are passed over.
  // Errors: kInvalidArgument for an id outside the pool; then nothing was evicted.
  Status EvictBlocks(std::span<const BlockId> blocks);

  // Every physical copy of the hash; returns how many there were.
  std::size_t EvictHash(const BlockHash& hash, std::uint32_t group = 0);

  // How many tokens of a prompt with these hashes are cached for every group.
  std::uint32_t CachedTokens(std::span<const BlockHash> hashes) const { return cache_.CachedTokens(hashes); }

  // Does the next piece of what the publisher wants of the state, as each step does by itself: to be called when
  // HasStateWork() and no step is due. Nothing while a step is in flight.
  void DoStateWork() { FlushOutsideStep(); }
  bool HasStateWork() const noexcept { return stream_.HasStateWork(); }
  // The queue has no room for it, or a back-off is not over: a moment later.
  bool StateWorkWaits() const noexcept { return stream_.StateWorkWaits(); }
  // Between a loss and the end of the walk that heals it: blocks may be resident and not announced.
  bool is_healing() const noexcept { return stream_.silent() || stream_.renewing(); }

  // Publishes what is still recorded and closes the publisher. Idempotent.
  void Shutdown(std::chrono::milliseconds deadline = std::chrono::milliseconds(2000));

  // Steps without requests are to be run until they have ended.
  bool has_stores_in_flight() const noexcept { return connector_ != nullptr && connector_->num_storing() > 0; }
  bool has_unfinished_requests() const noexcept {
    return !running_.empty() || !waiting_.empty() || !receiving_.empty();
  }
  // Whether a step may find something to do. False while all unfinished requests receive, or wait for the blocks of
  // those that do.
  bool has_schedulable_requests() const noexcept { return !running_.empty() || (!waiting_.empty() && !is_stalled()); }
  std::size_t num_running() const noexcept { return running_.size(); }
  std::size_t num_waiting() const noexcept { return waiting_.size(); }      // without those that receive
  std::size_t num_receiving() const noexcept { return receiving_.size(); }  // requests
  std::size_t num_kept_blocks() const noexcept { return num_kept_blocks_; }
  bool step_in_flight() const noexcept { return in_flight_; }

  // Events are on and can happen: prefix caching is on too.
  bool events_effective() const noexcept { return config_.enable_kv_cache_events && config_.enable_prefix_caching; }

  // The device's blocks and their contents.
  const BlockPool& pool() const noexcept { return cache_.pool(); }
  // The lower tiers, or null.
  const KVConnector* connector() const noexcept { return connector_.get(); }
  // What was announced in the present era of the stream, over all tiers.
  const AnnouncedState& state() const noexcept { return state_; }
  const StateDigest& digest() const noexcept { return pool().digest(); }
  const SchedulerConfig& config() const noexcept { return config_; }  // its groups are never empty
  const BlockHasher& hasher() const noexcept { return hasher_; }
  SchedulerStats stats() const noexcept;

 private:
  struct InFlight {
    Request* request = nullptr;
    std::uint32_t num_tokens = 0;  // drafts included
    std::uint32_t num_drafts = 0;
    bool samples = false;
    bool discarded = false;                 // aborted or preempted since Schedule()
    std::span<const SampledToken> sampled;  // what the runner drew
  };

  // The waiting request that last found too few blocks. Until the pool's version changes it need not try again.
  struct Blocked {
    const Request* request = nullptr;
    std::uint64_t version = 0;
    std::uint32_t budget = 0;
  };

  // The pool, then the lower tiers.
  class State final : public AnnouncedState {
   public:
    explicit State(Scheduler* scheduler) : scheduler_(*scheduler) {}
    void Walk(const std::function<void(const ResidentBlock&)>& visit) const override;
    const StateDigest& digest() const override { return scheduler_.digest(); }
    void BeginEra() override;
    void BeginWalk(WalkKind kind) override;
    bool WalkSome(WalkKind kind, std::size_t max_blocks, const WalkVisitor& visit) override;

   private:
    Scheduler& scheduler_;
    std::array<bool, 2> in_pool_{};  // by kind: the walk has not left it
  };

  Scheduler(SchedulerConfig config, BlockHasher hasher, EventPublisher* publisher, const Clock* clock);

  Status Check(const NewRequest& request) const;
  bool ScheduleRunning(std::uint32_t* budget, SchedulerOutput* step);
  void ScheduleWaiting(std::uint32_t* budget, SchedulerOutput* step);
  void Place(Request* request, std::uint32_t num_tokens, SchedulerOutput* step);
  void MatchTokens(const RunnerOutput& output);
  void TakeDrafts(const RunnerOutput& output);
  bool AllocateForRunning(Request* request, std::uint32_t num_tokens);
  void PlanTransfers(SchedulerOutput* step);
  void UndoFailedLoads(const SchedulerOutput& step, std::span<const RequestId> failed);
  void CancelStores();
  void ReleaseSources();
  bool is_stalled() const noexcept {
    return !receiving_.empty() && blocked_.request == waiting_.front() && blocked_.version == pool().version();
  }
  bool CannotAllocate(Request* request, std::uint32_t budget, const SchedulerOutput& step);
  bool MakeRoom(Request* request);
  bool GiveUpUnused(const Request* request);
  bool TryReceive(Request* request, SchedulerOutput* step);
  void StopReceiving(Request* request);
  void RestartHoldersOf(const std::unordered_set<BlockId>& bad);
  void TakeBackTransfers();
  bool HoldsBlocks() const;
  void Keep(const Request* request, FinishedRequest* finished);
  void CountAdmission(Request* request, const PrefixHit& hit);
  void PreemptLast();
  void Discard(const Request* request);
  FinishedRequest Finish(Request* request, FinishReason reason);
  bool PublishRecorded();
  void FlushOutsideStep();

  const SchedulerConfig config_;
  BlockHasher hasher_;
  NullEventPublisher nobody_;  // stands in when there is no publisher
  EventPublisher* const publisher_;
  KVCacheManager cache_;
  std::unique_ptr<KVConnector> connector_;
  State state_{this};
  StatePublisher stream_;
  std::unordered_map<RequestId, std::unique_ptr<Request>> requests_;
  std::deque<Request*> waiting_;
  std::vector<Request*> running_;                     // in order of admission
  std::vector<Request*> receiving_;                   // in the order in which it began
  std::list<std::pair<RequestId, KeptBlocks>> kept_;  // oldest first
  std::unordered_map<RequestId, std::list<std::pair<RequestId, KeptBlocks>>::iterator> kept_by_id_;
  std::size_t num_kept_blocks_ = 0;
  bool in_flight_ = false;
  bool closed_ = false;
  Blocked blocked_;
  std::vector<InFlight> step_;     // in the order of the step's output
  std::vector<CopyBlock> copies_;  // of the step, until their sources are released
  std::vector<RequestId> undone_;
  // What the step's output still points to.
  std::vector<std::unique_ptr<Request>> retired_requests_;
  std::vector<std::vector<std::vector<BlockId>>> retired_tables_;
  SchedulerStats stats_;
};

}  // namespace kvwire::scheduler
