// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace kvwire::test {

// Ends the process, naming the call, when its scope lasts longer than the limit. For calls that must not block: where
// they do, nothing else of the test would come to its end.
class Watchdog {
 public:
  explicit Watchdog(std::string call, std::chrono::milliseconds limit = std::chrono::seconds(5))
      : call_(std::move(call)), limit_(limit), thread_([this] { Watch(); }) {}
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void Watch() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (changed_.wait_for(lock, limit_, [this] { return over_; })) return;
    std::fprintf(stderr, "%s did not return within %lld ms\n", call_.c_str(), static_cast<long long>(limit_.count()));
    std::abort();
  }

  const std::string call_;
  const std::chrono::milliseconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace kvwire::test
