// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace kvwire::engine {

// Runs tasks when their time has come, on a few threads of its own. A task may wait; those that are due wait for a
// thread then, in the order of their times.
//
// Threads: Post by any; Stop and the destructor by the owner.
// Errors: a task must not throw. Within a task CallerScope::Gone says that the timer is to stop.
class TaskTimer {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // REQUIRES: at least one thread.
  explicit TaskTimer(std::size_t num_threads);
  ~TaskTimer() { Stop(); }
  TaskTimer(const TaskTimer&) = delete;
  TaskTimer& operator=(const TaskTimer&) = delete;

  // Nothing after Stop.
  void Post(Time due, std::function<void()> task);

  // Lets what runs end, forgets the rest, joins. Idempotent.
  void Stop();

 private:
  void Loop();
  bool stopping() const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::multimap<Time, std::function<void()>> tasks_;  // guarded by mutex_, as the next
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvwire::engine
