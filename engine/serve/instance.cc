// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/instance.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "engine/serve/kv_transfer.h"
#include "engine/serve/rank.h"

namespace kvwire::engine {

using scheduler::RequestId;

namespace {

tl::unexpected<Error> NotRunning(std::uint32_t rank) {
  return MakeError(ErrorCode::kUnavailable,
                   fmt::format("data-parallel rank {} is stopped, is being replaced, or has too many commands", rank));
}

}  // namespace

Instance::Instance(InstanceConfig config, BlockHasher hasher)
    : config_(std::move(config)), hasher_(std::move(hasher)) {}

Instance::~Instance() { Shutdown(std::chrono::milliseconds(2000)); }

Result<std::unique_ptr<Instance>> Instance::Create(InstanceConfig config, EgressThread* egress,
                                                   const std::shared_ptr<ZmqContext>& context) {
  if (config.data_parallel_size == 0) {
    return MakeError(ErrorCode::kInvalidArgument, "data_parallel_size: 0; allowed: 1 or more");
  }
  Result<BlockHasher> hasher = BlockHasher::Create(config.hash_algorithm, config.hash_seed);
  if (!hasher) return tl::unexpected<Error>(std::move(hasher).error());
  std::unique_ptr<Instance> instance(new Instance(std::move(config), *std::move(hasher)));
  if (instance->config_.kv_transfer) {
    const auto call = [self = instance.get()](std::uint32_t rank, const std::function<void(RankLife&)>& function) {
      const std::shared_ptr<RankLife> life = self->ranks_[rank]->life();
      return life->Call([&](EngineCore&) { function(*life); });
    };
    instance->transfer_ = std::make_unique<KVTransfer>(*instance->config_.kv_transfer, call, instance->config_.log);
  }
  for (std::uint32_t rank = 0; rank < instance->config_.data_parallel_size; ++rank) {
    if (instance->config_.give_up && instance->config_.give_up()) {
      return MakeError(ErrorCode::kUnavailable, fmt::format("given up before data-parallel rank {} was made", rank));
    }
    const auto ask_restart = [self = instance.get(), rank](std::uint64_t life, const RestartOptions& options) {
      self->Enqueue({self->ranks_[rank].get(), life, options});
    };
    instance->ranks_.push_back(std::make_unique<Rank>(RankSurroundings{
        &instance->config_, &instance->hasher_, egress, context, rank, ask_restart, instance->transfer_.get()}));
    const Status prepared = instance->ranks_.back()->Prepare();
    if (!prepared) return tl::unexpected<Error>(prepared.error());
  }
  for (const auto& rank : instance->ranks_) rank->Start();
  return instance;
}

std::uint32_t Instance::ChooseRank() {
  const std::uint32_t first = next_rank_.fetch_add(1, std::memory_order_relaxed);
  std::optional<std::uint32_t> chosen;
  std::size_t fewest = SIZE_MAX;
  for (std::uint32_t i = 0; i < num_ranks(); ++i) {
    const std::uint32_t candidate = (first + i) % num_ranks();
    const Rank& one = *ranks_[candidate];
    const std::size_t load = one.replacing() ? SIZE_MAX : one.life()->num_requests();
    if (chosen && load >= fewest) continue;
    fewest = load;
    chosen = candidate;
  }
  return *chosen;
}

tl::expected<Admission, Rejection> Instance::Submit(scheduler::NewRequest request, std::optional<std::uint32_t> rank,
                                                    std::optional<KVTransferParams> source) {
  if (closed_.load(std::memory_order_relaxed)) {
    return tl::unexpected(Rejection{SubmitResult::kStopped, rank ? *rank : ChooseRank()});
  }
  if (config_.scheduler.enable_prefix_caching) {
    BlockHasher hasher = hasher_;
    request.identity = IdentifyPrompt(request, config_.scheduler.block_size, &hasher);
  }
  request.id = next_id_.fetch_add(1, std::memory_order_relaxed);
  Admission admission;
  admission.rank = rank ? *rank : ChooseRank();
  admission.id = request.id;
  auto stream = ranks_[admission.rank]->life()->Submit(std::move(request), std::move(source));
  if (!stream) return tl::unexpected(Rejection{stream.error(), admission.rank});
  admission.output = *std::move(stream);
  return admission;
}

void Instance::Abort(const Admission& admission) { ranks_[admission.rank]->life()->Abort(admission.id); }

ApiResult<std::vector<std::uint64_t>> Instance::TakeKept(std::uint32_t rank, RequestId id,
                                                         const std::vector<std::vector<scheduler::BlockId>>& blocks) {
  const std::shared_ptr<RankLife> life = ranks_[rank]->life();
  ApiResult<std::vector<std::uint64_t>> words;
  const bool ran = life->Call([&](EngineCore&) { words = life->TakeKept(id, blocks); });
  if (!ran) return tl::unexpected(Unavailable(NotRunning(rank).value().message));
  return words;
}

bool Instance::Call(std::uint32_t rank, const std::function<void(EngineCore&)>& call) {
  return ranks_[rank]->life()->Call(call);
}

bool Instance::ResetPrefixCache(scheduler::ResetMode mode) {
  bool all = true;
  for (std::uint32_t rank = 0; rank < num_ranks(); ++rank) {
    bool reset = false;
    const bool ran = Call(rank, [&](EngineCore& core) { reset = core.ResetPrefixCache(mode); });
    all = all && ran && reset;
  }
  return all;
}

bool Instance::Sleep() {
  bool all = true;
  for (const auto& rank : ranks_) all = rank->life()->Sleep() && all;
  return all;
}

bool Instance::WakeUp() {
  bool all = true;
  for (const auto& rank : ranks_) all = rank->life()->WakeUp() && all;
  return all;
}

bool Instance::asleep() const { return ranks_.front()->life()->sleep_state() == SleepState::kAsleep; }

EngineThread::Figures Instance::figures(std::uint32_t rank) const { return ranks_[rank]->life()->figures(); }

PublisherStats Instance::publisher_stats(std::uint32_t rank) const { return ranks_[rank]->life()->publisher().stats(); }

std::vector<EventSourceInfo> Instance::sources() const {
  std::vector<EventSourceInfo> sources;
  for (const auto& rank : ranks_) {
    if (auto source = rank->life()->publisher().source()) sources.push_back(*std::move(source));
  }
  return sources;
}

std::size_t Instance::num_requests() const {
  std::size_t requests = 0;
  for (const auto& rank : ranks_) requests += rank->life()->num_requests();
  return requests;
}

Status Instance::SetFaults(const FaultScript& script, std::optional<std::uint32_t> rank) {
  if (Status valid = script.Check(); !valid) return valid;
  const bool restarts =
      std::ranges::any_of(script.faults, [](const Fault& fault) { return fault.kind == FaultKind::kRestart; });
  if (restarts) {
    if (Status started = StartRestarter(); !started) return started;
  }
  const auto shared = script.faults.empty() ? nullptr : std::make_shared<const FaultScript>(script);
  for (std::uint32_t i = 0; i < num_ranks(); ++i) {
    if (!rank || *rank == i) ranks_[i]->SetFaults(shared);
  }
  return {};
}

const FaultCounters& Instance::fault_counters(std::uint32_t rank) const { return ranks_[rank]->fault_counters(); }

Result<std::size_t> Instance::Evict(std::uint32_t rank, std::string_view block, std::optional<std::uint32_t> group) {
  const Result<BlockHash> name = ParseBlockName(block, "block");
  if (!name) return tl::unexpected<Error>(name.error());
  const std::shared_ptr<RankLife> life = ranks_[rank]->life();
  std::size_t copies = 0;
  if (!life->Call([&](EngineCore&) { copies = life->Evict(*name, group); })) return NotRunning(rank);
  return copies;
}

Result<std::optional<RequestId>> Instance::Preempt(std::uint32_t rank) {
  const std::shared_ptr<RankLife> life = ranks_[rank]->life();
  std::optional<RequestId> preempted;
  if (!life->Call([&](EngineCore&) { preempted = life->Preempt(); })) return NotRunning(rank);
  return preempted;
}

Status Instance::Reset(std::uint32_t rank) {
  const std::shared_ptr<RankLife> life = ranks_[rank]->life();
  if (!life->Call([&](EngineCore&) { life->Reset(); })) return NotRunning(rank);
  return {};
}

Status Instance::Restart(std::uint32_t rank, const RestartOptions& options) {
  return ranks_[rank]->Restart(options, std::nullopt);
}

Status Instance::StartRestarter() {
  const std::lock_guard<std::mutex> lock(restarts_mutex_);
  if (restarter_.joinable()) return {};
  if (restarter_ends_) return MakeError(ErrorCode::kUnavailable, "the engine was stopped");
  try {
    restarter_ = std::thread([this] { RestartLoop(); });
  } catch (const std::system_error& error) {
    return MakeError(ErrorCode::kUnavailable, fmt::format("cannot start the thread for restarts: {}", error.what()));
  }
  return {};
}

void Instance::StopRestarter() {
  std::thread ending;
  {
    const std::lock_guard<std::mutex> lock(restarts_mutex_);
    restarter_ends_ = true;
    ending.swap(restarter_);
  }
  restarts_changed_.notify_all();
  if (ending.joinable()) ending.join();
}

void Instance::Enqueue(DueRestart due) {
  {
    const std::lock_guard<std::mutex> lock(restarts_mutex_);
    due_restarts_.push_back(due);
  }
  restarts_changed_.notify_one();
}

void Instance::RestartLoop() {
  std::unique_lock<std::mutex> lock(restarts_mutex_);
  for (;;) {
    restarts_changed_.wait(lock, [this] { return restarter_ends_ || !due_restarts_.empty(); });
    if (restarter_ends_) return;
    const DueRestart due = due_restarts_.front();
    due_restarts_.pop_front();
    lock.unlock();
    if (const Status restarted = due.rank->Restart(due.options, due.life); !restarted) {
      Log(config_.log, LogLevel::kError,
          fmt::format("data-parallel rank {}: cannot come back: {}", due.rank->index(), restarted.error().message));
    }
    lock.lock();
  }
}

void Instance::Shutdown(std::chrono::milliseconds deadline) {
  Close();
  StopRestarter();
  // Before the step threads, which its calls need.
  if (transfer_) transfer_->Stop();
  for (const auto& rank : ranks_) rank->Stop(deadline);
}

}  // namespace kvwire::engine
