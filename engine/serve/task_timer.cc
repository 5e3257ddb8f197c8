// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/task_timer.h"

#include <utility>

#include "engine/http/caller_scope.h"

namespace kvwire::engine {

TaskTimer::TaskTimer(std::size_t num_threads) {
  threads_.reserve(num_threads);
  for (std::size_t i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Loop(); });
}

void TaskTimer::Post(Time due, std::function<void()> task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return;
    tasks_.emplace(due, std::move(task));
  }
  changed_.notify_one();
}

void TaskTimer::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  tasks_.clear();
}

bool TaskTimer::stopping() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stopping_;
}

void TaskTimer::Loop() {
  const CallerScope scope([this] { return stopping(); });
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    if (tasks_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const Time due = tasks_.begin()->first;
    if (due > std::chrono::steady_clock::now()) {
      changed_.wait_until(lock, due);
      continue;
    }
    const std::function<void()> task = std::move(tasks_.begin()->second);
    tasks_.erase(tasks_.begin());
    // Whoever waited for this one's time waits for the next one's.
    changed_.notify_one();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace kvwire::engine
