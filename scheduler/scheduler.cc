// SPDX-License-Identifier: Apache-2.0
#include "scheduler/scheduler.h"

#include <algorithm>
#include <cassert>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "scheduler/tiered_connector.h"

namespace kvwire::scheduler {

namespace {

Status AtLeast(const char* field, std::uint32_t value, std::uint32_t bound) {
  if (value >= bound) return {};
  return MakeError(ErrorCode::kInvalidArgument, fmt::format("{} is {}; allowed: {} or more", field, value, bound));
}

Status CheckConfig(const SchedulerConfig& config, const EventPublisher* publisher, const Clock* clock) {
  for (const Status& status : {AtLeast("num_blocks", config.num_blocks, 2), AtLeast("block_size", config.block_size, 1),
                               AtLeast("max_num_seqs", config.max_num_seqs, 1),
                               AtLeast("max_num_batched_tokens", config.max_num_batched_tokens, 1),
                               AtLeast("max_model_len", config.max_model_len, 2)}) {
    if (!status) return status;
  }
  if (config.enable_kv_cache_events && publisher == nullptr) {
    return MakeError(ErrorCode::kInvalidArgument, "enable_kv_cache_events is true, but there is no publisher");
  }
  if (clock == nullptr) return MakeError(ErrorCode::kInvalidArgument, "there is no clock");
  for (const auto& [tier, blocks] : {std::pair(Tier::kHost, config.host_blocks), {Tier::kDisk, config.disk_blocks}}) {
    if (blocks == 0 || (!config.vllm_exact && config.enable_prefix_caching)) continue;
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{} is {}; allowed: 0, as {}", TraitsOf(tier).option, blocks,
                                 config.vllm_exact ? "vllm_exact is true" : "enable_prefix_caching is false"));
  }
  if (Status status = AtLeast("tensor_parallel_size", config.tensor_parallel_size, 1); !status) return status;
  return CheckGroups(config.groups, config.block_size);
}

KVCacheManager::Options CacheOptions(const SchedulerConfig& config) {
  KVCacheManager::Options options;
  options.report_at_lookup = config.vllm_exact;
  options.pool.num_blocks = config.num_blocks;
  options.pool.block_size = config.block_size;
  options.pool.enable_caching = config.enable_prefix_caching;
  options.pool.enable_events = config.enable_kv_cache_events;
  options.pool.removals = config.vllm_exact ? Removals::kPerCopy : config.removals;
  options.pool.announce_at_registration = config.vllm_exact;
  options.pool.partial_blocks = config.partial_blocks;
  options.pool.log = config.log;
  options.groups = config.groups;
  options.max_num_batched_tokens = config.max_num_batched_tokens;
  return options;
}

StatePublisher::Options StreamOptions(const Clock* clock) {
  StatePublisher::Options options;
  options.clock = clock;
  return options;
}

Result<std::unique_ptr<TieredConnector>> CreateLowerTiers(const SchedulerConfig& config, BlockPool* pool) {
  TieredConnectorOptions options;
  options.num_blocks = {config.host_blocks, config.disk_blocks};
  options.num_workers = config.tensor_parallel_size;
  options.max_stores_in_flight = std::max(1u, config.num_blocks / 8);
  options.enable_events = config.enable_kv_cache_events;
  return TieredConnector::Create(options, pool, config.log);
}

}  // namespace

Result<std::unique_ptr<Scheduler>> Scheduler::Create(SchedulerConfig config, BlockHasher hasher,
                                                     EventPublisher* publisher, const Clock* clock) {
  if (config.groups.empty()) config.groups = {KVCacheGroup{KVCacheKind::kFullAttention, config.block_size, 0}};
  if (Status status = CheckConfig(config, publisher, clock); !status) return tl::unexpected(std::move(status.error()));
  if (config.enable_kv_cache_events && !config.enable_prefix_caching) {
    Log(config.log, LogLevel::kWarning,
        "enable_kv_cache_events is true, but enable_prefix_caching is false: no BlockStored and no BlockRemoved will "
        "be published");
  }
  std::unique_ptr<Scheduler> scheduler(new Scheduler(std::move(config), std::move(hasher), publisher, clock));
  if (scheduler->config_.host_blocks > 0 || scheduler->config_.disk_blocks > 0) {
    auto tiers = CreateLowerTiers(scheduler->config_, &scheduler->cache_.pool());
    if (!tiers) return tl::unexpected<Error>(std::move(tiers).error());
    scheduler->connector_ = *std::move(tiers);
    scheduler->cache_.set_connector(scheduler->connector_.get());
  }
  return scheduler;
}

Scheduler::Scheduler(SchedulerConfig config, BlockHasher hasher, EventPublisher* publisher, const Clock* clock)
    : config_(std::move(config)),
      hasher_(std::move(hasher)),
      publisher_(publisher == nullptr ? &nobody_ : publisher),
      cache_(CacheOptions(config_)),
      stream_(StreamOptions(clock), publisher_, config_.enable_kv_cache_events ? &state_ : nullptr) {}

Scheduler::~Scheduler() = default;

Status Scheduler::Check(const NewRequest& request) const {
  if (closed_) return MakeError(ErrorCode::kUnavailable, "the scheduler is shut down");
  if (request.prompt.empty()) return MakeError(ErrorCode::kInvalidArgument, "the prompt is empty");
  if (request.max_tokens == 0) return MakeError(ErrorCode::kInvalidArgument, "max_tokens is 0; allowed: 1 or more");
  const auto bad =
      std::find_if(request.prompt.begin(), request.prompt.end(), [](TokenId token) { return token > kMaxTokenId; });
  if (bad != request.prompt.end()) {
    return MakeError(ErrorCode::kInvalidArgument, fmt::format("token {} of the prompt is {}; allowed: 0 to {}",
                                                              bad - request.prompt.begin(), *bad, kMaxTokenId));
  }
  if (requests_.contains(request.id) || kept_by_id_.contains(request.id)) {
    return MakeError(ErrorCode::kInvalidArgument, fmt::format("request id {} is in use", request.id));
  }
  const std::uint64_t num_tokens = std::uint64_t{request.prompt.size()} + request.max_tokens;
  if (num_tokens > config_.max_model_len) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        fmt::format("prompt and max_tokens make {} tokens; max_model_len is {}", num_tokens, config_.max_model_len));
  }
  // The last output token is never computed.
  const std::uint64_t retained =
      request.keep_blocks ? num_tokens - cache_.TransferableTokens(static_cast<std::uint32_t>(request.prompt.size()))
                          : 0;
  const std::uint64_t needed = cache_.MostBlocksFor(num_tokens - 1, retained);
  const std::uint64_t available = config_.num_blocks - 1;
  if (needed > available) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("the request needs {} blocks; the pool has {}", needed, available));
  }
  return {};
}

Status Scheduler::AddRequest(NewRequest request) {
  if (Status status = Check(request); !status) {
    ++stats_.requests_refused;
    return status;
  }
  const RequestId id = request.id;
  auto added = std::make_unique<Request>(std::move(request), config_.block_size,
                                         config_.enable_prefix_caching ? &hasher_ : nullptr);
  waiting_.push_back(added.get());
  requests_.emplace(id, std::move(added));
  ++stats_.requests_added;
  return {};
}

SchedulerOutput Scheduler::Schedule() {
  assert(!in_flight_);
  SchedulerOutput step;
  std::uint32_t budget = config_.max_num_batched_tokens;
  // Whoever was just preempted would be the first to be admitted again.
  if (ScheduleRunning(&budget, &step)) ScheduleWaiting(&budget, &step);
  in_flight_ = !step.empty();
  if (in_flight_) ++stats_.steps;
  step.copies = copies_ = cache_.TakeCopies();
  if (connector_ != nullptr) PlanTransfers(&step);
  stats_.scheduled_tokens += step.num_scheduled_tokens;
  return step;
}

void Scheduler::PlanTransfers(SchedulerOutput* step) {
  step->loads = cache_.TakeLoads();
  step->finish_stores = step->empty() && has_stores_in_flight();
  // An engine without requests comes to rest.
  if (!step->empty()) connector_->PlanStores(&cache_.pool(), &step->stores);
}

// Copies to a lower tier are given up before anybody is preempted for the blocks that they hold, and what waits without
// being used before the last one that runs is: it might find nothing of what it has computed, and come here for ever.
bool Scheduler::AllocateForRunning(Request* request, std::uint32_t num_tokens) {
  bool allocated = cache_.AllocateSlots(request, num_tokens);
  while (!allocated && connector_ != nullptr && connector_->CancelStore(&cache_.pool())) {
    allocated = cache_.AllocateSlots(request, num_tokens);
  }
  while (!allocated && running_.size() == 1 && GiveUpUnused(request)) {
    allocated = cache_.AllocateSlots(request, num_tokens);
  }
  return allocated;
}

// False if a request was preempted.
bool Scheduler::ScheduleRunning(std::uint32_t* budget, SchedulerOutput* step) {
  bool undisturbed = true;
  for (std::size_t i = 0; i < running_.size() && *budget > 0; ++i) {
    Request* const request = running_[i];
    const auto num_known = request->num_tokens() - request->num_computed_tokens;
    const auto num_tokens = std::min(num_known + static_cast<std::uint32_t>(request->draft_tokens.size()), *budget);
    // The victim is at i or behind, so it has no part in this step yet.
    bool allocated = AllocateForRunning(request, num_tokens);
    while (!allocated && i < running_.size()) {
      PreemptLast();
      undisturbed = false;
      allocated = i < running_.size() && AllocateForRunning(request, num_tokens);
    }
    if (!allocated) break;
    Place(request, num_tokens, step);
    *budget -= num_tokens;
  }
  return undisturbed;
}

void Scheduler::ScheduleWaiting(std::uint32_t* budget, SchedulerOutput* step) {
  while (!waiting_.empty() && *budget > 0 && running_.size() < config_.max_num_seqs) {
    Request* const request = waiting_.front();
    const bool hopeless =
        blocked_.request == request && blocked_.version == pool().version() && *budget >= blocked_.budget;
    if (hopeless && !config_.vllm_exact) break;
    if (request->num_receivable_tokens > 0 && !TryReceive(request, step)) {
      if (CannotAllocate(request, *budget, *step)) break;
      continue;
    }
    if (waiting_.empty() || waiting_.front() != request) continue;  // it receives
    const PrefixHit hit = request->num_received_tokens > 0 ? PrefixHit() : cache_.GetComputedBlocks(*request);
    const std::uint32_t num_known = request->num_computed_tokens + hit.num_tokens;
    const std::uint32_t num_tokens = std::min(request->num_tokens() - num_known, *budget);
    if (!cache_.AllocateSlots(request, num_tokens, hit)) {
      if (CannotAllocate(request, *budget, *step)) break;
      continue;
    }
    waiting_.pop_front();
    running_.push_back(request);
    CountAdmission(request, hit);
    Place(request, num_tokens, step);
    *budget -= num_tokens;
  }
}

void Scheduler::Place(Request* request, std::uint32_t num_tokens, SchedulerOutput* step) {
  const std::uint32_t end = request->num_computed_tokens + num_tokens;
  const bool samples = end >= request->num_tokens();
  const std::uint32_t num_drafts = samples ? end - request->num_tokens() : 0;
  step->requests.push_back(ScheduledRequest{request->id(), request->block_tables, request->token_ids(),
                                            std::span(request->draft_tokens).first(num_drafts),
                                            request->num_computed_tokens, num_tokens, samples});
  step->num_scheduled_tokens += num_tokens;
  stats_.draft_tokens += num_drafts;
  step_.push_back(InFlight{request, num_tokens, num_drafts, samples, false, {}});
}

void Scheduler::CountAdmission(Request* request, const PrefixHit& hit) {
  if (request->admitted) return;
  request->admitted = true;
  const std::uint32_t received = request->num_received_tokens;
  request->num_cached_tokens = request->num_computed_tokens;
  stats_.received_tokens += received;
  // Of one that received, the hit was its beginning.
  const std::uint32_t found = received > 0 ? request->num_receiving_tokens - received : hit.num_tokens;
  const std::uint32_t hit_tokens = found - hit.num_host_tokens - hit.num_disk_tokens;
  stats_.prompt_tokens += request->num_prompt_tokens();
  stats_.full_prompt_blocks += request->num_prompt_tokens() / config_.block_size;
  stats_.hit_tokens += hit_tokens;
  stats_.hit_blocks += hit_tokens / config_.block_size;
  stats_.host_hit_tokens += hit.num_host_tokens;
  stats_.disk_hit_tokens += hit.num_disk_tokens;
  stats_.computed_prompt_tokens += request->num_prompt_tokens() - found - received;
}

void Scheduler::PreemptLast() {
  Request* const request = running_.back();
  running_.pop_back();
  Discard(request);
  cache_.Free(request, in_flight_ ? &retired_tables_ : nullptr);
  // What the step in flight points to stays.
  if (!in_flight_) request->draft_tokens.clear();
  ++request->num_preemptions;
  ++stats_.preemptions;
  waiting_.push_front(request);
}

// Nothing that the step computes for the request counts any more.
void Scheduler::Discard(const Request* request) {
  if (!in_flight_) return;
  for (InFlight& part : step_) {
    if (part.request == request) part.discarded = true;
  }
}

std::vector<FinishedRequest> Scheduler::UpdateFromOutput([[maybe_unused]] const SchedulerOutput& step,
                                                         const RunnerOutput& output) {
  assert(step.requests.size() == step_.size());
  MatchTokens(output);
  UndoFailedLoads(step, output.failed_loads);
  std::vector<FinishedRequest> finished;
  std::vector<Request*> gone;
  // What the runner failed to execute is given up before anything is announced: its blocks were not computed.
  for (const InFlight& part : step_) {
    if (part.discarded || !part.samples || !part.sampled.empty()) continue;
    Log(config_.log, LogLevel::kError, fmt::format("the runner gave no token for request {}", part.request->id()));
    finished.push_back(Finish(part.request, FinishReason::kError));
    gone.push_back(part.request);
  }
  ReleaseSources();
  cache_.pool().AnnouncePending();
  for (const InFlight& part : step_) {
    if (part.discarded || (part.samples && part.sampled.empty())) continue;
    Request* const request = part.request;
    request->num_computed_tokens += part.num_tokens;
    if (!part.samples) continue;
    const auto accepted = static_cast<std::uint32_t>(part.sampled.size()) - 1;
    // Rejected drafts were computed in vain; their positions are written again.
    request->num_computed_tokens -= part.num_drafts - accepted;
    stats_.output_tokens += part.sampled.size();
    stats_.accepted_draft_tokens += accepted;
    for (const SampledToken& sampled : part.sampled) {
      request->AppendToken(sampled.token, config_.enable_prefix_caching ? &hasher_ : nullptr);
    }
    if (request->num_output_tokens() < request->max_tokens()) continue;
    finished.push_back(Finish(request, FinishReason::kLength));
    gone.push_back(request);
  }
  std::erase_if(running_, [&](Request* request) { return std::find(gone.begin(), gone.end(), request) != gone.end(); });
  TakeDrafts(output);
  for (const FinishedRequest& request : finished) requests_.erase(request.id);
  step_.clear();
  in_flight_ = false;
  if (connector_ != nullptr) {
    for (const LoadBlock& load : step.loads) connector_->Unpin(load.host_block);
    connector_->OnWorkerOutput(output.stores, &cache_.pool());
  }
  retired_requests_.clear();
  retired_tables_.clear();
  PublishRecorded();
  return finished;
}

// Whatever was computed on top of a block that did not arrive is undone, before anything is announced. Requests run in
// the order of the step, so only later ones can hold what an earlier one should have loaded or computed.
void Scheduler::UndoFailedLoads(const SchedulerOutput& step, std::span<const RequestId> failed) {
  undone_.clear();
  if (failed.empty() || connector_ == nullptr) return;
  const auto has_failed = [failed](RequestId id) {
    return std::find(failed.begin(), failed.end(), id) != failed.end();
  };
  std::unordered_set<BlockId> bad;
  for (const LoadBlock& load : step.loads) {
    if (!has_failed(load.request)) continue;
    bad.insert(load.device_block);
    // Which of them it was is not known; none is tried for ever.
    connector_->Drop(load.host_block);
  }
  std::vector<Request*> undone;
  for (std::size_t i = 0; i < step_.size(); ++i) {
    const ScheduledRequest& scheduled = step.requests[i];
    const auto holds_bad = [&bad](const std::vector<BlockId>& table) {
      return std::any_of(table.begin(), table.end(), [&bad](BlockId block) { return bad.contains(block); });
    };
    if (!has_failed(scheduled.id) &&
        !std::any_of(scheduled.block_tables.begin(), scheduled.block_tables.end(), holds_bad)) {
      continue;
    }
    for (std::size_t group = 0; group < scheduled.block_tables.size(); ++group) {
      const std::vector<BlockId>& table = scheduled.block_tables[group];
      for (std::size_t position = scheduled.num_computed_tokens / config_.groups[group].block_size;
           position < table.size(); ++position) {
        if (table[position] != kNullBlock) bad.insert(table[position]);
      }
    }
    if (!std::exchange(step_[i].discarded, true)) undone.push_back(step_[i].request);
  }
  RestartHoldersOf(bad);
  const std::vector<BlockId> evicted(bad.begin(), bad.end());
  [[maybe_unused]] const Status status = cache_.pool().EvictBlocks(evicted);
  assert(status.has_value());
  for (std::size_t i = undone.size(); i-- > 0;) {
    Request* const request = undone[i];
    std::erase(running_, request);
    cache_.Free(request, &retired_tables_);
    ++request->num_preemptions;
    ++stats_.failed_loads;
    undone_.push_back(request->id());
    waiting_.push_front(request);
  }
}

// Both lists are in the order of the step; the runner may have left requests out.
void Scheduler::MatchTokens(const RunnerOutput& output) {
  const std::span<const SampledToken> sampled(output.sampled);
  std::size_t next = 0;
  for (InFlight& part : step_) {
    if (!part.samples) continue;
    const std::size_t first = next;
    std::size_t valid = 0;
    while (next < sampled.size() && sampled[next].id == part.request->id() && next - first <= part.num_drafts) {
      if (valid == next - first && sampled[next].token <= kMaxTokenId) ++valid;
      ++next;
    }
    part.sampled = sampled.subspan(first, valid);
  }
}

// Guesses for the next step, but for tokens that no request may have, and never more than the output may still grow by.
void Scheduler::TakeDrafts(const RunnerOutput& output) {
  auto drafts = output.drafts.begin();
  for (const InFlight& part : step_) {
    Request* const request = part.request;
    request->draft_tokens.clear();
    if (drafts == output.drafts.end() || drafts->id != request->id()) continue;
    const std::vector<TokenId>& tokens = (drafts++)->tokens;
    if (part.discarded || request->num_output_tokens() >= request->max_tokens()) continue;
    const auto most =
        std::min<std::size_t>(config_.num_speculative_tokens, request->max_tokens() - request->num_output_tokens() - 1);
    for (const TokenId token : tokens) {
      if (request->draft_tokens.size() == most || token > kMaxTokenId) break;
      request->draft_tokens.push_back(token);
    }
  }
}

// Gives up what the request holds; the caller takes it out of the queues.
FinishedRequest Scheduler::Finish(Request* request, FinishReason reason) {
  FinishedRequest finished;
  finished.id = request->id();
  finished.reason = reason;
  finished.num_prompt_tokens = request->num_prompt_tokens();
  finished.num_cached_tokens = request->num_cached_tokens;
  finished.num_preemptions = request->num_preemptions;
  const std::span<const TokenId> output = request->token_ids().subspan(request->num_prompt_tokens());
  finished.output.assign(output.begin(), output.end());
  if (reason == FinishReason::kLength && request->keeps_blocks()) Keep(request, &finished);
  cache_.Free(request);
  ++stats_.requests_finished;
  return finished;
}

bool Scheduler::Abort(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return ReleaseKept(id);
  Request* const request = found->second.get();
  Discard(request);
  cache_.Free(request, in_flight_ ? &retired_tables_ : nullptr);
  std::erase(running_, request);
  std::erase(waiting_, request);
  std::erase(receiving_, request);
  blocked_ = {};
  if (in_flight_) retired_requests_.push_back(std::move(found->second));
  requests_.erase(found);
  ++stats_.requests_aborted;
  FlushOutsideStep();
  return true;
}

bool Scheduler::ResetPrefixCache(ResetMode mode) {
  switch (mode) {
    case ResetMode::kFailWhileRunning:
      break;
    case ResetMode::kPreemptRunning:
      while (!running_.empty()) PreemptLast();
      TakeBackTransfers();
      break;
  }
  if (HoldsBlocks()) return false;
  CancelStores();
  ReleaseSources();
  if (!cache_.pool().Reset()) return false;
  if (connector_ != nullptr) connector_->Reset(config_.reset_lower_tiers);
  FlushOutsideStep();
  return true;
}

void Scheduler::CancelStores() {
  while (connector_ != nullptr && connector_->CancelStore(&cache_.pool())) {
  }
}

// What the step in flight copies from is not given to anybody before the next one is planned.
void Scheduler::ReleaseSources() { cache_.ReleaseSources(std::exchange(copies_, {})); }

std::optional<RequestId> Scheduler::PreemptNewest() {
  assert(!in_flight_);
  if (running_.empty()) return std::nullopt;
  const RequestId id = running_.back()->id();
  PreemptLast();
  FlushOutsideStep();
  return id;
}

Status Scheduler::EvictBlocks(std::span<const BlockId> blocks) {
  Status status = cache_.pool().EvictBlocks(blocks);
  FlushOutsideStep();
  return status;
}

std::size_t Scheduler::EvictHash(const BlockHash& hash, std::uint32_t group) {
  const std::size_t copies = cache_.pool().EvictHash(hash, group);
  FlushOutsideStep();
  return copies;
}

void Scheduler::Shutdown(std::chrono::milliseconds deadline) {
  if (closed_) return;
  closed_ = true;
  while (!kept_.empty()) ReleaseKept(kept_.front().first);
  PublishRecorded();
  publisher_->Close(deadline);
}

// Also a piece of what is wanted of the state. False if nothing was handed to the publisher.
bool Scheduler::PublishRecorded() {
  const KVEventBatch* const lower = connector_ == nullptr ? nullptr : &connector_->TakeEvents();
  const bool recorded = !pool().recorded().empty() || (lower != nullptr && !lower->empty());
  if (!recorded && !stream_.HasStateWork()) return false;
  KVEventBatch batch;
  if (recorded) batch = cache_.pool().TakeEvents(stream_.TakeSpare());
  if (lower != nullptr) lower->Visit([&batch](const auto& event) { batch.Add(event); });
  const std::uint64_t handed_before = stream_.stats().batches + stream_.stats().chunks;
  (void)stream_.Publish(std::move(batch));
  return stream_.stats().batches + stream_.stats().chunks != handed_before;
}

void Scheduler::FlushOutsideStep() {
  if (in_flight_ || !PublishRecorded()) return;
  publisher_->Wake();
}

SchedulerStats Scheduler::stats() const noexcept {
  SchedulerStats stats = stats_;
  const BlockPoolStats& pool_stats = pool().stats();
  stats.new_prompt_blocks = pool_stats.new_prompt_blocks;
  stats.stored = pool_stats.stored;
  stats.reported = pool_stats.reported;
  stats.removed = pool_stats.removed;
  stats.clears = pool_stats.clears;
  stats.stream = stream_.stats();
  stats.batches = stats.stream.batches;
  stats.events = stats.stream.events;
  stats.dropped_batches = stats.stream.dropped;
  if (connector_ != nullptr) {
    stats.host = connector_->stats(Tier::kHost);
    stats.disk = connector_->stats(Tier::kDisk);
  }
  return stats;
}

void Scheduler::State::Walk(const std::function<void(const ResidentBlock&)>& visit) const {
  scheduler_.pool().Walk(visit);
  if (scheduler_.connector_ != nullptr) scheduler_.connector_->Walk(visit);
}

void Scheduler::State::BeginEra() {
  scheduler_.cache_.pool().BeginEra();
  if (scheduler_.connector_ != nullptr) scheduler_.connector_->BeginEra();
}

void Scheduler::State::BeginWalk(WalkKind kind) {
  in_pool_[static_cast<std::size_t>(kind)] = true;
  scheduler_.cache_.pool().BeginWalk(kind);
  if (scheduler_.connector_ != nullptr) scheduler_.connector_->BeginWalk(kind);
}

bool Scheduler::State::WalkSome(WalkKind kind, std::size_t max_blocks, const WalkVisitor& visit) {
  bool& in_pool = in_pool_[static_cast<std::size_t>(kind)];
  if (in_pool) {
    in_pool = scheduler_.cache_.pool().WalkSome(kind, max_blocks, visit);
    return in_pool || scheduler_.connector_ != nullptr;
  }
  return scheduler_.connector_ != nullptr && scheduler_.connector_->WalkSome(kind, max_blocks, visit);
}

}  // namespace kvwire::scheduler
