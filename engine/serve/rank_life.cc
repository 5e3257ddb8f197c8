// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/rank_life.h"

#include <future>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/faults/fault_link.h"
#include "engine/simulated_runner.h"
#include "kv_events/clock.h"

namespace kvwire::engine {

using scheduler::RequestId;

namespace {

// A model runner whose steps somebody sees before they run.
class WatchedRunner final : public scheduler::ModelRunner {
 public:
  using Watch = std::function<void(const scheduler::SchedulerOutput& step)>;

  WatchedRunner(std::unique_ptr<scheduler::ModelRunner> inner, Watch watch)
      : inner_(std::move(inner)), watch_(std::move(watch)) {}

  scheduler::RunnerOutput Run(const scheduler::SchedulerOutput& step) override {
    watch_(step);
    return inner_->Run(step);
  }
  void Close() override { inner_->Close(); }

 private:
  const std::unique_ptr<scheduler::ModelRunner> inner_;
  const Watch watch_;
};

}  // namespace

Status RankLife::Prepare(const std::optional<PublisherSuccession>& succession) {
  const InstanceConfig& config = *around_.config;
  SimulatedRunner::Options runner_options = config.runner;
  runner_options.Fit(config.scheduler);
  if (runner_options.disk_blocks > 0) runner_options.disk_dir += fmt::format("/rank-{}", around_.index);
  runner_options.log = config.log;
  auto runner = SimulatedRunner::Create(runner_options);
  if (!runner) return tl::unexpected<Error>(std::move(runner).error());
  memory_ = runner->get();
  PublisherOptions publisher_options;
  publisher_options.data_parallel_rank = around_.index;
  publisher_options.dp_size = config.data_parallel_size;
  publisher_options.runner = around_.egress;
  publisher_options.context = around_.context;
  publisher_options.log = config.log;
  publisher_options.succession = succession;
  publisher_options.on_state_wanted = [this] {
    if (EngineThread* const thread = nudged_.load(std::memory_order_acquire)) thread->Nudge();
  };
  publisher_options.decorate_publish = [faults = faults_](FrameLink* socket) {
    return std::make_unique<FaultLink>(socket, &faults->plan(FaultPlace::kLink), &faults->counters,
                                       &SystemClock::Get());
  };
  publisher_options.refuse_batch = [faults = faults_](SequenceNumber number) {
    if (faults->plan(FaultPlace::kQueue).Decide(number).empty()) return false;
    faults->counters.Count(FaultKind::kOverflow);
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
    engine.observe_batch = [&observe = config.observe_batch, rank = around_.index](
                               std::uint64_t number, const KVEventBatch& batch) { observe(rank, number, batch); };
  }
  met_ = engine.first_batch;
  auto watched = std::make_unique<WatchedRunner>(*std::move(runner), [this](const scheduler::SchedulerOutput& step) {
    NoteHits(step);
    BeginReceptions(step);
  });
  auto core = EngineCore::Create(std::move(engine), *around_.hasher, std::move(watched), publisher_.get());
  if (!core) return tl::unexpected<Error>(std::move(core).error());
  core_ = *std::move(core);
  return {};
}

void RankLife::Start(SleepState state) {
  EngineThread::Options options;
  options.max_requests = around_.config->max_requests;
  options.listener = this;
  engine_ = core_.get();
  engine_->set_asleep(state == SleepState::kAsleep);
  asleep_.store(state == SleepState::kAsleep, std::memory_order_release);
  thread_ = std::make_unique<EngineThread>(std::move(core_), options);
  nudged_.store(thread_.get(), std::memory_order_release);
  // What was wanted in between.
  thread_->Nudge();
}

tl::expected<std::shared_ptr<OutputStream>, SubmitResult> RankLife::Submit(scheduler::NewRequest request,
                                                                           std::optional<KVTransferParams> source) {
  auto stream = std::make_shared<OutputStream>();
  const RequestId id = request.id;
  {
    // Before its first token can come.
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.emplace(id, Waiting{stream, std::nullopt, false, std::move(source)});
  }
  const SubmitResult result = thread_->Add(std::move(request));
  if (result == SubmitResult::kAccepted) return stream;
  // Who comes again still finds what is held for him.
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_.erase(id);
  return tl::unexpected(result);
}

void RankLife::Abort(RequestId id) {
  if (Take(id)) thread_->Abort(id);
}

bool RankLife::Call(const std::function<void(EngineCore&)>& call) {
  std::promise<bool> done;
  std::future<bool> ran = done.get_future();
  const SubmitResult submitted = thread_->Call([&](EngineCore* core) {
    if (core != nullptr) call(*core);
    done.set_value(core != nullptr);
  });
  return submitted == SubmitResult::kAccepted && ran.get();
}

bool RankLife::Sleep() {
  bool reset = false;
  const bool ran = Call([&](EngineCore& core) {
    core.set_asleep(true);
    asleep_.store(true, std::memory_order_release);
    reset = core.ResetPrefixCache(scheduler::ResetMode::kPreemptRunning);
  });
  return ran && reset;
}

bool RankLife::WakeUp() {
  return Call([this](EngineCore& core) {
    core.set_asleep(ended_);
    asleep_.store(false, std::memory_order_release);
  });
}

void RankLife::Stop(std::chrono::milliseconds deadline) {
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
void RankLife::PassTime(std::chrono::nanoseconds time) {
  std::unique_lock<std::mutex> lock(stop_mutex_);
  if (stop_changed_.wait_for(lock, time, [this] { return stopping_; })) engine_->set_asleep(true);
}

void RankLife::OnStep(EngineCore::StepResult&& step) {
  Deliver(std::move(step));
  MeetFaults();
}

// The first step of a request begins behind what the cache had.
void RankLife::NoteHits(const scheduler::SchedulerOutput& step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const scheduler::ScheduledRequest& part : step.requests) {
    const auto found = waiting_.find(part.id);
    if (found == waiting_.end() || found->second.cached_tokens) continue;
    found->second.cached_tokens = part.num_computed_tokens;
  }
}

void RankLife::Deliver(EngineCore::StepResult step) {
  std::vector<Delivery> deliveries;
  deliveries.reserve(step.sampled.size() + step.finished.size());
  for (const scheduler::SampledToken& token : step.sampled) {
    if (auto delivery = DeliveryOf(token)) deliveries.push_back(*std::move(delivery));
  }
  for (scheduler::FinishedRequest& finished : step.finished) {
    const RequestId id = finished.id;
    auto stream = Take(id);
    HoldFor(finished, stream != nullptr);
    if (stream) deliveries.push_back({std::move(stream), {{}, std::move(finished), {}}});
  }
  if (deliveries.empty()) return;
  EgressThread* const egress = around_.egress;
  egress->Deliver(std::move(deliveries));
  egress->Wake();
}

void RankLife::OnRefused(RequestId id, const Error& error) {
  auto stream = Take(id);
  if (!stream) return;
  std::vector<Delivery> deliveries;
  deliveries.push_back({std::move(stream), {{}, {}, error}});
  EgressThread* const egress = around_.egress;
  egress->Deliver(std::move(deliveries));
  egress->Wake();
}

// Every batch once, in order: those of steps and calls, then those that the faults themselves made.
void RankLife::MeetFaults() {
  FaultPlan& plan = faults_->plan(FaultPlace::kEngine);
  const SequenceNumber own = engine_->next_batch();
  for (; met_ < engine_->next_batch() && !ended_; ++met_) {
    for (const Fault* fault : met_ < own ? plan.Decide(met_) : plan.DecideAt(met_)) {
      Meet(*fault);
      if (ended_) break;
    }
  }
}

void RankLife::Meet(const Fault& fault) {
  switch (fault.kind) {
    case FaultKind::kEvict:
      Evict(fault.block, fault.group);
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
      around_.ask_restart(number_, RestartOptions{fault.first_number});
      break;
    case FaultKind::kDrop:
    case FaultKind::kDuplicate:
    case FaultKind::kDelay:
    case FaultKind::kUndecodable:
    case FaultKind::kOverflow:
      break;  // not of this place
  }
}

std::size_t RankLife::Evict(const BlockHash& name, std::optional<std::uint32_t> group) {
  std::vector<std::pair<BlockHash, std::uint32_t>> blocks;
  engine_->scheduler().pool().Walk([&](const ResidentBlock& block) {
    const bool named = name.size() == sizeof(std::uint64_t) ? block.hash.Low64() == name.Low64() : block.hash == name;
    if (named && group.value_or(block.group) == block.group) blocks.emplace_back(block.hash, block.group);
  });
  std::size_t copies = 0;
  for (const auto& [hash, of_group] : blocks) copies += engine_->EvictHash(hash, of_group);
  if (copies > 0) faults_->counters.Count(FaultKind::kEvict);
  return copies;
}

std::optional<RequestId> RankLife::Preempt() {
  const std::optional<RequestId> preempted = engine_->PreemptNewest();
  if (preempted) faults_->counters.Count(FaultKind::kPreempt);
  return preempted;
}

bool RankLife::Reset() {
  if (!engine_->ResetPrefixCache(scheduler::ResetMode::kPreemptRunning)) return false;
  faults_->counters.Count(FaultKind::kReset);
  return true;
}

std::optional<Delivery> RankLife::DeliveryOf(const scheduler::SampledToken& token) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = waiting_.find(token.id);
  if (found == waiting_.end()) return std::nullopt;
  Waiting& waiting = found->second;
  Delivery delivery{waiting.stream, {{token.token}, {}, {}}};
  if (!std::exchange(waiting.has_token, true)) delivery.chunk.cached_tokens = waiting.cached_tokens;
  return delivery;
}

std::shared_ptr<OutputStream> RankLife::Take(RequestId id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return nullptr;
  auto stream = std::move(found->second.stream);
  // Nobody will fetch what is held for it.
  if (found->second.source) around_.transfer->Release(*std::move(found->second.source));
  waiting_.erase(found);
  return stream;
}

}  // namespace kvwire::engine
