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

  virtual void OnFinished(scheduler::FinishedRequest&& request) = 0;
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
// steps and waits on when the engine has no work.
//
// Threads: Add, Abort and ResetPrefixCache by any thread; Stop and the destructor by the owner.
// Ownership: owns the core; the listener outlives it.
// Bounds: max_requests requests, queued or unfinished; max_commands other commands.
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
  [[nodiscard]] SubmitResult Abort(scheduler::RequestId id);
  // `done` is called on the step thread with the outcome; with false when the engine stopped before.
  [[nodiscard]] SubmitResult ResetPrefixCache(scheduler::ResetMode mode, std::function<void(bool)> done);

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
  using Command = std::variant<scheduler::NewRequest, AbortCommand, ResetCommand>;

  SubmitResult Submit(Command command);
  void Close(scheduler::RequestId id);
  void Loop();
  bool TakeCommands(std::deque<Command>* commands);
  void Execute(Command command);
  void RefuseRemaining(std::deque<Command> commands);
  void Refuse(scheduler::RequestId id, const Error& error);

  const std::unique_ptr<EngineCore> core_;
  const Options options_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Command> inbox_;  // guarded by mutex_, as the next four
  std::size_t num_requests_ = 0;
  std::size_t num_commands_ = 0;  // in the inbox, requests not counted
  bool stopping_ = false;
  std::chrono::milliseconds deadline_{2000};

  std::unordered_set<scheduler::RequestId> unfinished_;  // the step thread's
  std::thread thread_;
};

}  // namespace kvwire::engine
