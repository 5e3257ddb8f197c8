// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/instance.h"

#include <algorithm>
#include <array>
#include <future>
#include <system_error>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "engine/faults/fault_link.h"
#include "kv_events/clock.h"
#include "kv_events/publish/factory.h"
#include "kv_events/state_source.h"

namespace kvwire::engine {

using scheduler::RequestId;

namespace {

// How far a stream jumps when nothing else is asked for: less than what a consumer would take for a broken number.
constexpr SequenceNumber kRestartSkip = 3;
constexpr std::chrono::milliseconds kRestartDeadline(500);
// How long a replaced engine waits for its own addresses.
constexpr std::chrono::milliseconds kRebindTime(2000);
constexpr std::chrono::milliseconds kRebindLook(20);

tl::unexpected<Error> NotRunning(std::uint32_t rank) {
  return MakeError(ErrorCode::kUnavailable,
                   fmt::format("data-parallel rank {} is stopped, is being replaced, or has too many commands", rank));
}

}  // namespace

// A rank: its present life, and what outlasts lives.
class Instance::Rank {
 public:
  // What does not change from life to life.
  struct Surroundings {
    Instance* instance = nullptr;
    EgressThread* egress = nullptr;
    std::shared_ptr<ZmqContext> context;
    std::uint32_t index = 0;
  };

  explicit Rank(Surroundings surroundings) : surroundings_(std::move(surroundings)) {}

  // The first life, in two steps.
  Status Prepare();
  void Start();

  // Replaces the life; nothing happens if it is not the one with the number `only`.
  Status Restart(const RestartOptions& options, std::optional<std::uint64_t> only);
  void Stop(std::chrono::milliseconds deadline);
  void SetFaults(const std::shared_ptr<const FaultScript>& script);

  // Used while it lasts: a life that was replaced refuses everything.
  std::shared_ptr<Life> life() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return life_;
  }
  bool replacing() const noexcept { return replacing_.load(std::memory_order_relaxed); }

  const Surroundings& surroundings() const noexcept { return surroundings_; }
  FaultPlan& plan(FaultPlace place) noexcept { return plans_[static_cast<std::size_t>(place)]; }
  FaultCounters& counters() noexcept { return counters_; }

 private:
  Result<std::shared_ptr<Life>> Succeed(const Life& old, SequenceNumber first_number);

  const Surroundings surroundings_;
  std::array<FaultPlan, 3> plans_{FaultPlan(FaultPlace::kLink), FaultPlan(FaultPlace::kQueue),
                                  FaultPlan(FaultPlace::kEngine)};
  FaultCounters counters_;
  std::atomic<bool> replacing_{false};

  std::mutex replace_mutex_;  // held while a life ends
  bool stopped_ = false;      // guarded by replace_mutex_

  mutable std::mutex mutex_;
  std::shared_ptr<Life> life_;  // guarded by mutex_
};

// One life of a rank: the engine's thread, its publisher, and who waits for its requests.
class Instance::Life final : public EngineListener {
 public:
  Life(Rank* rank, std::uint64_t number) : rank_(rank), number_(number) {}
  ~Life() override { Stop(std::chrono::milliseconds(2000)); }

  // Binds the publisher and builds the core; the thread starts with Start.
  Status Prepare(const std::optional<PublisherSuccession>& succession);
  void Start();

  tl::expected<std::shared_ptr<OutputStream>, SubmitResult> Submit(scheduler::NewRequest request);
  void Abort(RequestId id);
  bool Call(const std::function<void(EngineCore&)>& call);
  bool Sleep();
  bool WakeUp();
  void Stop(std::chrono::milliseconds deadline);

  // On the step thread: single faults, counted.
  std::size_t Evict(const BlockHash& name);
  std::optional<RequestId> Preempt();
  bool Reset();

  void OnStep(EngineCore::StepResult&& step) override;
  void OnRefused(RequestId id, const Error& error) override;

  std::size_t num_requests() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return streams_.size();
  }
  std::uint64_t number() const noexcept { return number_; }
  bool asleep() const noexcept { return asleep_.load(std::memory_order_acquire); }
  EngineThread::Figures figures() const { return thread_->figures(); }
  const EventPublisher& publisher() const noexcept { return *publisher_; }
  // After Stop.
  SequenceNumber next_batch() const noexcept { return thread_->core().next_batch(); }

 private:
  void Deliver(EngineCore::StepResult step);
  void MeetFaults();
  void Meet(const Fault& fault);
  void PassTime(std::chrono::nanoseconds time);
  std::shared_ptr<OutputStream> Find(RequestId id);
  std::shared_ptr<OutputStream> Take(RequestId id);

  Rank* const rank_;
  const std::uint64_t number_;
  std::unique_ptr<EventPublisher> publisher_;
  std::unique_ptr<EngineCore> core_;  // until Start
  std::unique_ptr<EngineThread> thread_;
  std::atomic<bool> asleep_{false};

  // The step thread's.
  EngineCore* engine_ = nullptr;  // owned by thread_
  SequenceNumber met_ = 0;        // batches below have met the script's faults
  bool ended_ = false;            // by a restart that a script asked for

  mutable std::mutex mutex_;
  std::unordered_map<RequestId, std::shared_ptr<OutputStream>> streams_;  // guarded by mutex_

  std::mutex stop_mutex_;
  std::condition_variable stop_changed_;
  bool stopping_ = false;  // guarded by stop_mutex_
};

Status Instance::Life::Prepare(const std::optional<PublisherSuccession>& succession) {
  const Rank::Surroundings& around = rank_->surroundings();
  const InstanceConfig& config = around.instance->config_;
  SimulatedRunner::Options runner_options = config.runner;
  runner_options.num_blocks = config.scheduler.num_blocks;
  runner_options.block_size = config.scheduler.block_size;
  runner_options.groups = config.scheduler.groups;
  auto runner = SimulatedRunner::Create(runner_options);
  if (!runner) return tl::unexpected<Error>(std::move(runner).error());
  PublisherOptions publisher_options;
  publisher_options.data_parallel_rank = around.index;
  publisher_options.dp_size = config.data_parallel_size;
  publisher_options.runner = around.egress;
  publisher_options.context = around.context;
  publisher_options.log = config.log;
  publisher_options.succession = succession;
  publisher_options.decorate_publish = [rank = rank_](FrameLink* socket) {
    return std::make_unique<FaultLink>(socket, &rank->plan(FaultPlace::kLink), &rank->counters(), &SystemClock::Get());
  };
  publisher_options.refuse_batch = [rank = rank_](SequenceNumber number) {
    if (rank->plan(FaultPlace::kQueue).Decide(number).empty()) return false;
    rank->counters().Count(FaultKind::kOverflow);
    return true;
  };
  auto publisher = CreateEventPublisher(config.events, publisher_options);
  if (!publisher) return tl::unexpected<Error>(std::move(publisher).error());
  publisher_ = *std::move(publisher);

  EngineConfig engine;
  engine.scheduler = config.scheduler;
  engine.scheduler.enable_kv_cache_events = config.events.enable_kv_cache_events;
  engine.scheduler.removals = config.events.kvwire.removals;
  engine.scheduler.log = config.log;
  engine.time_model = config.time_model;
  engine.first_batch = succession ? succession->first_number : config.events.kvwire.first_seq;
  engine.sleep = [this](std::chrono::nanoseconds time) { PassTime(time); };
  if (config.observe_batch) {
    engine.observe_batch = [&observe = config.observe_batch, rank = around.index](
                               std::uint64_t number, const KVEventBatch& batch) { observe(rank, number, batch); };
  }
  met_ = engine.first_batch;
  auto core = EngineCore::Create(std::move(engine), around.instance->hasher_, *std::move(runner), publisher_.get());
  if (!core) return tl::unexpected<Error>(std::move(core).error());
  core_ = *std::move(core);
  return {};
}

void Instance::Life::Start() {
  EngineThread::Options options;
  options.max_requests = rank_->surroundings().instance->config_.max_requests;
  options.listener = this;
  engine_ = core_.get();
  thread_ = std::make_unique<EngineThread>(std::move(core_), options);
}

tl::expected<std::shared_ptr<OutputStream>, SubmitResult> Instance::Life::Submit(scheduler::NewRequest request) {
  auto stream = std::make_shared<OutputStream>();
  const RequestId id = request.id;
  {
    // Before its first token can come.
    const std::lock_guard<std::mutex> lock(mutex_);
    streams_.emplace(id, stream);
  }
  const SubmitResult result = thread_->Add(std::move(request));
  if (result == SubmitResult::kAccepted) return stream;
  Take(id);
  return tl::unexpected(result);
}

void Instance::Life::Abort(RequestId id) {
  if (Take(id)) thread_->Abort(id);
}

bool Instance::Life::Call(const std::function<void(EngineCore&)>& call) {
  std::promise<bool> done;
  std::future<bool> ran = done.get_future();
  const SubmitResult submitted = thread_->Call([&](EngineCore* core) {
    if (core != nullptr) call(*core);
    done.set_value(core != nullptr);
  });
  return submitted == SubmitResult::kAccepted && ran.get();
}

bool Instance::Life::Sleep() {
  bool reset = false;
  const bool ran = Call([&](EngineCore& core) {
    core.set_asleep(true);
    asleep_.store(true, std::memory_order_release);
    reset = core.ResetPrefixCache(scheduler::ResetMode::kPreemptRunning);
  });
  return ran && reset;
}

bool Instance::Life::WakeUp() {
  return Call([this](EngineCore& core) {
    core.set_asleep(ended_);
    asleep_.store(false, std::memory_order_release);
  });
}

void Instance::Life::Stop(std::chrono::milliseconds deadline) {
  {
    const std::lock_guard<std::mutex> lock(stop_mutex_);
    stopping_ = true;
  }
  stop_changed_.notify_all();
  if (thread_) {
    thread_->Stop(deadline);
  } else if (publisher_) {
    publisher_->Close(deadline);
  }
}

// The model's time, cut short when the engine is to end: then this step is the last one.
void Instance::Life::PassTime(std::chrono::nanoseconds time) {
  std::unique_lock<std::mutex> lock(stop_mutex_);
  if (stop_changed_.wait_for(lock, time, [this] { return stopping_; })) engine_->set_asleep(true);
}

void Instance::Life::OnStep(EngineCore::StepResult&& step) {
  Deliver(std::move(step));
  MeetFaults();
}

void Instance::Life::Deliver(EngineCore::StepResult step) {
  std::vector<Delivery> deliveries;
  deliveries.reserve(step.sampled.size() + step.finished.size());
  for (const scheduler::SampledToken& token : step.sampled) {
    if (auto stream = Find(token.id)) deliveries.push_back({std::move(stream), {{token.token}, {}, {}}});
  }
  for (scheduler::FinishedRequest& finished : step.finished) {
    const RequestId id = finished.id;
    if (auto stream = Take(id)) deliveries.push_back({std::move(stream), {{}, std::move(finished), {}}});
  }
  if (deliveries.empty()) return;
  EgressThread* const egress = rank_->surroundings().egress;
  egress->Deliver(std::move(deliveries));
  egress->Wake();
}

void Instance::Life::OnRefused(RequestId id, const Error& error) {
  auto stream = Take(id);
  if (!stream) return;
  std::vector<Delivery> deliveries;
  deliveries.push_back({std::move(stream), {{}, {}, error}});
  EgressThread* const egress = rank_->surroundings().egress;
  egress->Deliver(std::move(deliveries));
  egress->Wake();
}

// Every batch once, in order: those of steps and calls, then those that the faults themselves made.
void Instance::Life::MeetFaults() {
  FaultPlan& plan = rank_->plan(FaultPlace::kEngine);
  const SequenceNumber own = engine_->next_batch();
  for (; met_ < engine_->next_batch() && !ended_; ++met_) {
    for (const Fault* fault : met_ < own ? plan.Decide(met_) : plan.DecideAt(met_)) {
      Meet(*fault);
      if (ended_) break;
    }
  }
}

void Instance::Life::Meet(const Fault& fault) {
  switch (fault.kind) {
    case FaultKind::kEvict:
      Evict(fault.block);
      break;
    case FaultKind::kPreempt:
      Preempt();
      break;
    case FaultKind::kReset:
      Reset();
      break;
    case FaultKind::kRestart:
      // No step more; the rest is not this thread's to do.
      ended_ = true;
      engine_->set_asleep(true);
      rank_->surroundings().instance->Enqueue({rank_, number_, RestartOptions{fault.first_number}});
      break;
    case FaultKind::kDrop:
    case FaultKind::kDuplicate:
    case FaultKind::kDelay:
    case FaultKind::kUndecodable:
    case FaultKind::kOverflow:
      break;  // not of this place
  }
}

std::size_t Instance::Life::Evict(const BlockHash& name) {
  std::vector<std::pair<BlockHash, std::uint32_t>> blocks;
  engine_->scheduler().pool().Walk([&](const ResidentBlock& block) {
    const bool named = name.size() == sizeof(std::uint64_t) ? block.hash.Low64() == name.Low64() : block.hash == name;
    if (named) blocks.emplace_back(block.hash, block.group);
  });
  std::size_t copies = 0;
  for (const auto& [hash, group] : blocks) copies += engine_->EvictHash(hash, group);
  if (copies > 0) rank_->counters().Count(FaultKind::kEvict);
  return copies;
}

std::optional<RequestId> Instance::Life::Preempt() {
  const std::optional<RequestId> preempted = engine_->PreemptNewest();
  if (preempted) rank_->counters().Count(FaultKind::kPreempt);
  return preempted;
}

bool Instance::Life::Reset() {
  if (!engine_->ResetPrefixCache(scheduler::ResetMode::kPreemptRunning)) return false;
  rank_->counters().Count(FaultKind::kReset);
  return true;
}

std::shared_ptr<OutputStream> Instance::Life::Find(RequestId id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = streams_.find(id);
  return found == streams_.end() ? nullptr : found->second;
}

std::shared_ptr<OutputStream> Instance::Life::Take(RequestId id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = streams_.find(id);
  if (found == streams_.end()) return nullptr;
  auto stream = std::move(found->second);
  streams_.erase(found);
  return stream;
}

Status Instance::Rank::Prepare() {
  auto first = std::make_shared<Life>(this, 0);
  if (Status prepared = first->Prepare(std::nullopt); !prepared) return prepared;
  const std::lock_guard<std::mutex> lock(mutex_);
  life_ = std::move(first);
  return {};
}

void Instance::Rank::Start() { life()->Start(); }

Status Instance::Rank::Restart(const RestartOptions& options, std::optional<std::uint64_t> only) {
  if (options.first_number.value_or(0) > FaultScript::kMaxNumber) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("first_number: {}; allowed: 0 to {}", *options.first_number, FaultScript::kMaxNumber));
  }
  const std::lock_guard<std::mutex> replace_lock(replace_mutex_);
  if (stopped_) return MakeError(ErrorCode::kUnavailable, "the engine was stopped");
  const std::shared_ptr<Life> old = life();
  if (only && *only != old->number()) return {};
  replacing_.store(true, std::memory_order_relaxed);
  old->Stop(kRestartDeadline);
  const SequenceNumber past = std::min(old->next_batch() + kRestartSkip, FaultScript::kMaxNumber);
  const SequenceNumber first_number = options.first_number.value_or(past);
  Result<std::shared_ptr<Life>> made = Succeed(*old, first_number);
  if (!made) return tl::unexpected<Error>(std::move(made).error());
  (*made)->Start();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    life_ = *std::move(made);
  }
  replacing_.store(false, std::memory_order_relaxed);
  counters_.Count(FaultKind::kRestart);
  Log(surroundings_.instance->config_.log, LogLevel::kWarning,
      fmt::format("data-parallel rank {}: restarted on purpose; numbers begin with {}", surroundings_.index,
                  first_number));
  return {};
}

// The addresses become free when the connections of the old life are gone.
Result<std::shared_ptr<Instance::Life>> Instance::Rank::Succeed(const Life& old, SequenceNumber first_number) {
  const PublisherSuccession succession{old.publisher().source(), first_number};
  const auto give_up = std::chrono::steady_clock::now() + kRebindTime;
  for (;;) {
    auto next = std::make_shared<Life>(this, old.number() + 1);
    const Status prepared = next->Prepare(succession);
    if (prepared) return next;
    if (prepared.error().code != ErrorCode::kAddressInUse || std::chrono::steady_clock::now() >= give_up) {
      return tl::unexpected<Error>(prepared.error());
    }
    std::this_thread::sleep_for(kRebindLook);
  }
}

void Instance::Rank::Stop(std::chrono::milliseconds deadline) {
  const std::lock_guard<std::mutex> lock(replace_mutex_);
  stopped_ = true;
  if (const std::shared_ptr<Life> last = life()) last->Stop(deadline);
}

void Instance::Rank::SetFaults(const std::shared_ptr<const FaultScript>& script) {
  for (FaultPlan& plan : plans_) plan.Set(script);
}

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
  for (std::uint32_t rank = 0; rank < instance->config_.data_parallel_size; ++rank) {
    instance->ranks_.push_back(std::make_unique<Rank>(Rank::Surroundings{instance.get(), egress, context, rank}));
    const Status prepared = instance->ranks_.back()->Prepare();
    if (!prepared) return tl::unexpected<Error>(prepared.error());
  }
  for (const auto& rank : instance->ranks_) rank->Start();
  return instance;
}

tl::expected<Admission, SubmitResult> Instance::Submit(scheduler::NewRequest request,
                                                       std::optional<std::uint32_t> rank) {
  if (closed_.load(std::memory_order_relaxed)) return tl::unexpected(SubmitResult::kStopped);
  if (config_.scheduler.enable_prefix_caching) {
    BlockHasher hasher = hasher_;
    request.identity = IdentifyPrompt(request, config_.scheduler.block_size, &hasher);
  }
  request.id = next_id_.fetch_add(1, std::memory_order_relaxed);
  if (!rank) {
    const std::uint32_t first = next_rank_.fetch_add(1, std::memory_order_relaxed);
    std::size_t fewest = SIZE_MAX;
    for (std::uint32_t i = 0; i < num_ranks(); ++i) {
      const std::uint32_t candidate = (first + i) % num_ranks();
      const Rank& one = *ranks_[candidate];
      const std::size_t load = one.replacing() ? SIZE_MAX : one.life()->num_requests();
      if (rank && load >= fewest) continue;
      fewest = load;
      rank = candidate;
    }
  }
  Admission admission;
  admission.rank = *rank;
  admission.id = request.id;
  auto stream = ranks_[*rank]->life()->Submit(std::move(request));
  if (!stream) return tl::unexpected(stream.error());
  admission.output = *std::move(stream);
  return admission;
}

void Instance::Abort(const Admission& admission) { ranks_[admission.rank]->life()->Abort(admission.id); }

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

bool Instance::asleep() const { return ranks_.front()->life()->asleep(); }

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

const FaultCounters& Instance::fault_counters(std::uint32_t rank) const { return ranks_[rank]->counters(); }

Result<std::size_t> Instance::Evict(std::uint32_t rank, std::string_view block) {
  const Result<BlockHash> name = ParseBlockName(block, "block");
  if (!name) return tl::unexpected<Error>(name.error());
  const std::shared_ptr<Life> life = ranks_[rank]->life();
  std::size_t copies = 0;
  if (!life->Call([&](EngineCore&) { copies = life->Evict(*name); })) return NotRunning(rank);
  return copies;
}

Result<std::optional<RequestId>> Instance::Preempt(std::uint32_t rank) {
  const std::shared_ptr<Life> life = ranks_[rank]->life();
  std::optional<RequestId> preempted;
  if (!life->Call([&](EngineCore&) { preempted = life->Preempt(); })) return NotRunning(rank);
  return preempted;
}

Status Instance::Reset(std::uint32_t rank) {
  const std::shared_ptr<Life> life = ranks_[rank]->life();
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
          fmt::format("data-parallel rank {}: cannot come back: {}", due.rank->surroundings().index,
                      restarted.error().message));
    }
    lock.lock();
  }
}

void Instance::Shutdown(std::chrono::milliseconds deadline) {
  Close();
  StopRestarter();
  for (const auto& rank : ranks_) rank->Stop(deadline);
}

}  // namespace kvwire::engine
