// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_thread.h"

#include <utility>

namespace kvwire::engine {

using scheduler::NewRequest;
using scheduler::RequestId;

EngineThread::EngineThread(std::unique_ptr<EngineCore> core, Options options)
    : core_(std::move(core)), options_(options) {
  TakeFigures();
  thread_ = std::thread([this] { Loop(); });
}

EngineThread::~EngineThread() { Stop(std::chrono::milliseconds(2000)); }

SubmitResult EngineThread::Add(NewRequest request) { return Submit(Command(std::move(request))); }

SubmitResult EngineThread::Abort(RequestId id) { return Submit(Command(AbortCommand{id})); }

SubmitResult EngineThread::ResetPrefixCache(scheduler::ResetMode mode, std::function<void(bool)> done) {
  return Submit(Command(ResetCommand{mode, std::move(done)}));
}

SubmitResult EngineThread::Call(std::function<void(EngineCore*)> call) { return Submit(Command(std::move(call))); }

SubmitResult EngineThread::Submit(Command command) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return SubmitResult::kStopped;
    const bool adds = std::holds_alternative<NewRequest>(command);
    // There are no more aborts than requests, if their senders are sane; losing one would leave a request behind.
    if (!std::holds_alternative<AbortCommand>(command)) {
      std::size_t& count = adds ? num_requests_ : num_commands_;
      if (count >= (adds ? options_.max_requests : options_.max_commands)) return SubmitResult::kFull;
      ++count;
    }
    inbox_.push_back(std::move(command));
  }
  changed_.notify_one();
  return SubmitResult::kAccepted;
}

void EngineThread::Stop(std::chrono::milliseconds deadline) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!stopping_) deadline_ = deadline;
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void EngineThread::Loop() {
  std::deque<Command> commands;
  while (TakeCommands(&commands)) {
    for (Command& command : commands) Execute(std::move(command));
    commands.clear();
    if (core_->has_work()) {
      EngineCore::StepResult result = core_->Step();
      TakeFigures();
      for (const scheduler::FinishedRequest& finished : result.finished) Close(finished.id);
      if (options_.listener != nullptr) options_.listener->OnStep(std::move(result));
    } else {
      if (core_->HasStateWork()) core_->DoStateWork();
      TakeFigures();
    }
  }
  RefuseRemaining(std::move(commands));
  std::chrono::milliseconds deadline;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    deadline = deadline_;
  }
  core_->Shutdown(deadline);
}

void EngineThread::Nudge() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    nudged_ = true;
  }
  changed_.notify_one();
}

// Returns at once when there is something to do. For room in the publisher's queue it waits a moment at a time.
void EngineThread::AwaitWork(std::unique_lock<std::mutex>* lock) {
  constexpr std::chrono::milliseconds kMoment{1};
  const auto called = [this] { return stopping_ || nudged_ || !inbox_.empty(); };
  if (core_->has_work()) return;
  if (!core_->HasStateWork()) {
    changed_.wait(*lock, called);
  } else if (core_->StateWorkWaits()) {
    changed_.wait_for(*lock, kMoment, called);
  }
}

// Swaps the inbox out, waiting for a command when there is nothing else to do. False once the engine shall stop.
bool EngineThread::TakeCommands(std::deque<Command>* commands) {
  std::unique_lock<std::mutex> lock(mutex_);
  AwaitWork(&lock);
  nudged_ = false;
  commands->swap(inbox_);
  num_commands_ = 0;
  return !stopping_;
}

void EngineThread::Execute(Command command) {
  if (auto* request = std::get_if<NewRequest>(&command)) {
    const RequestId id = request->id;
    const Status added = core_->Add(std::move(*request));
    if (added) {
      unfinished_.insert(id);
      return;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      --num_requests_;
    }
    Refuse(id, added.error());
  } else if (const auto* abort = std::get_if<AbortCommand>(&command)) {
    if (core_->Abort(abort->id)) Close(abort->id);
  } else if (auto* reset = std::get_if<ResetCommand>(&command)) {
    const bool done = core_->ResetPrefixCache(reset->mode);
    TakeFigures();
    if (reset->done) reset->done(done);
  } else if (auto* call = std::get_if<CallCommand>(&command)) {
    (*call)(core_.get());
  }
}

// The request is no longer unfinished: its place is free.
void EngineThread::Close(RequestId id) {
  if (unfinished_.erase(id) == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  --num_requests_;
}

void EngineThread::RefuseRemaining(std::deque<Command> commands) {
  const Error error{ErrorCode::kUnavailable, "the engine was stopped"};
  for (const RequestId id : unfinished_) {
    core_->Abort(id);
    Refuse(id, error);
  }
  unfinished_.clear();
  for (Command& command : commands) {
    if (const auto* request = std::get_if<NewRequest>(&command)) Refuse(request->id, error);
    const auto* reset = std::get_if<ResetCommand>(&command);
    if (reset != nullptr && reset->done) reset->done(false);
    if (const auto* call = std::get_if<CallCommand>(&command)) (*call)(nullptr);
  }
}

void EngineThread::Refuse(RequestId id, const Error& error) {
  if (options_.listener != nullptr) options_.listener->OnRefused(id, error);
}

void EngineThread::TakeFigures() {
  const scheduler::Scheduler& scheduler = core_->scheduler();
  Figures figures;
  figures.stats = scheduler.stats();
  figures.running = scheduler.num_running();
  figures.receiving = scheduler.num_receiving();
  figures.waiting = scheduler.num_waiting() + figures.receiving;
  figures.kept_blocks = scheduler.num_kept_blocks();
  figures.free_blocks = scheduler.pool().num_free();
  // The null block is nobody's.
  const double usable = scheduler.pool().num_blocks() - 1;
  figures.cache_usage = 1 - static_cast<double>(figures.free_blocks) / usable;
  figures.asleep = core_->asleep();
  const std::lock_guard<std::mutex> lock(figures_mutex_);
  figures_ = figures;
}

EngineThread::Figures EngineThread::figures() const {
  const std::lock_guard<std::mutex> lock(figures_mutex_);
  return figures_;
}

}  // namespace kvwire::engine
