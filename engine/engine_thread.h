// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <variant>

#include "engine/engine_core.h"

namespace kvwire::engine {

// What an engine tells about its requests. Called on the step thread: it must not block, nor stop the engine.
class EngineListener {
 public:
  virtual ~EngineListener() = default;

  // A step has ended: what it drew and which requests it finished.
  virtual void OnStep(EngineCore::StepResult&& step) = 0;
  // Not admitted, or still unfinished when the engine stopped.
  virtual void OnRefused(scheduler::RequestId id, const Error& error) = 0;
};

// What became of a command.
enum class SubmitResult : std::uint8_t {
  kAccepted,  // the step thread will see it before its next step
  kFull,      // a bound is reached; try again later
  kStopped,   // the engine is stopping
};

// An engine core on a step thread of its own. Commands go through one bounded inbox, which the thread empties between
// steps and waits on when the engine has no work. Without steps it goes on with what the publisher wants of the state,
// a piece between two looks at the inbox.
//
// Threads: Add, Abort, Call, ResetPrefixCache, Nudge and figures by any thread; Stop and the destructor by the owner.
// Ownership: owns the core; the listener outlives it.
// Bounds: max_requests requests, queued or unfinished; max_commands other commands. An Abort is always taken.
class EngineThread {
 public:
  struct Options {
    std::size_t max_requests = 1024;
    std::size_t max_commands = 1024;
    EngineListener* listener = nullptr;  // may be null
  };

  // REQUIRES: core is not null.
  EngineThread(std::unique_ptr<EngineCore> core, Options options);
  // Stops with a deadline of two seconds.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  [[nodiscard]] SubmitResult Add(scheduler::NewRequest request);
  // A request that is not known, or no longer, is passed over.
  SubmitResult Abort(scheduler::RequestId id);
  // Runs `call` on the step thread, between two steps; with null when the engine stopped before.
  [[nodiscard]] SubmitResult Call(std::function<void(EngineCore*)> call);
  // `done` is called on the step thread with the outcome; with false when the engine stopped before.
  [[nodiscard]] SubmitResult ResetPrefixCache(scheduler::ResetMode mode, std::function<void(bool)> done);

  // What the publisher wants of the state has changed. Does not wait for the step.
  void Nudge();

  // As they were after the last step or command.
  struct Figures {
    scheduler::SchedulerStats stats;
    std::size_t running = 0;
    std::size_t waiting = 0;      // those that receive included, the inbox not
    std::size_t receiving = 0;    // of them
    std::size_t kept_blocks = 0;  // held for other engines
    double cache_usage = 0;       // blocks held by requests, of all
    std::size_t free_blocks = 0;
    bool asleep = false;
  };
  Figures figures() const;

  // Lets the step in flight end, refuses what is unfinished, publishes what is recorded, closes the publisher within
  // the deadline and joins. Idempotent.
  void Stop(std::chrono::milliseconds deadline);

  // After Stop: the core, for its figures.
  const EngineCore& core() const noexcept { return *core_; }

 private:
  struct AbortCommand {
    scheduler::RequestId id = 0;
  };
  struct ResetCommand {
    scheduler::ResetMode mode = scheduler::ResetMode::kFailWhileRunning;
    std::function<void(bool)> done;
  };
  using CallCommand = std::function<void(EngineCore*)>;
  using Command = std::variant<scheduler::NewRequest, AbortCommand, ResetCommand, CallCommand>;

  SubmitResult Submit(Command command);
  void Close(scheduler::RequestId id);
  void Loop();
  void AwaitWork(std::unique_lock<std::mutex>* lock);
  bool TakeCommands(std::deque<Command>* commands);
  void Execute(Command command);
  void RefuseRemaining(std::deque<Command> commands);
  void Refuse(scheduler::RequestId id, const Error& error);
  void TakeFigures();

  const std::unique_ptr<EngineCore> core_;
  const Options options_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Command> inbox_;  // guarded by mutex_, as the next five
  std::size_t num_requests_ = 0;
  std::size_t num_commands_ = 0;  // in the inbox, requests not counted
  bool nudged_ = false;
  bool stopping_ = false;
  std::chrono::milliseconds deadline_{2000};

  mutable std::mutex figures_mutex_;
  Figures figures_;  // guarded by figures_mutex_

  std::unordered_set<scheduler::RequestId> unfinished_;  // the step thread's
  std::thread thread_;
};

}  // namespace kvwire::engine
