// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/worker_pool.h"

#include <system_error>
#include <utility>

namespace kvwire::engine {

bool WorkerPool::Submit(std::function<void()> job) {
  Threads left;
  bool taken = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    left.swap(left_);
    if (!stopping_) {
      // A thread counts as idle from its making on, and one that was woken for an earlier job still does.
      bool has_thread = idle_ > jobs_.size();
      if (!has_thread && threads_.size() < options_.max_threads) {
        const auto self = threads_.emplace(threads_.end());
        try {
          *self = std::thread([this, self] { Loop(self); });
          ++idle_;
          has_thread = true;
        } catch (const std::system_error&) {
          threads_.erase(self);
        }
      }
      taken = has_thread || (!threads_.empty() && jobs_.size() < options_.max_waiting + idle_);
      if (taken) jobs_.push_back(std::move(job));
    }
  }
  if (taken) changed_.notify_one();
  for (std::thread& thread : left) thread.join();
  return taken;
}

bool WorkerPool::has_waiting() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return jobs_.size() > idle_;
}

void WorkerPool::Loop(Threads::iterator self) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait_for(lock, options_.idle, [this] { return stopping_ || !jobs_.empty(); });
    --idle_;
    if (jobs_.empty()) break;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
    ++idle_;
  }
  left_.splice(left_.end(), threads_, self);
  if (stopping_) changed_.notify_all();
}

void WorkerPool::Stop() {
  std::unique_lock<std::mutex> lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
  // A thread that ends moves itself to the list of those that left.
  while (true) {
    changed_.wait(lock, [this] { return !left_.empty() || threads_.empty(); });
    if (left_.empty()) return;
    Threads left;
    left.swap(left_);
    lock.unlock();
    for (std::thread& thread : left) thread.join();
    lock.lock();
  }
}

}  // namespace kvwire::engine
