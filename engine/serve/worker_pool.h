// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace kvwire::engine {

// Threads that are made when there is a job for them, and leave when there was none for a while.
//
// Threads: Submit and has_waiting by any; Stop and the destructor by the owner.
// Errors: a job must not throw.
// Bounds: max_threads jobs run, max_waiting wait.
class WorkerPool {
 public:
  struct Options {
    std::size_t max_threads = 256;
    std::size_t max_waiting = 256;
    std::chrono::milliseconds idle{10000};  // until a thread without a job leaves
  };

  explicit WorkerPool(Options options) : options_(options) {}
  ~WorkerPool() { Stop(); }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // False when the job was not taken: all bounds are reached, no thread can be made, or the pool was stopped.
  [[nodiscard]] bool Submit(std::function<void()> job);

  // Whether a job waits for a thread.
  bool has_waiting() const;

  // Runs what waits, then joins. Idempotent.
  void Stop();

 private:
  using Threads = std::list<std::thread>;

  void Loop(Threads::iterator self);

  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;  // guarded by mutex_, as the next four
  Threads threads_;
  Threads left_;  // to be joined
  std::size_t idle_ = 0;
  bool stopping_ = false;
};

}  // namespace kvwire::engine
