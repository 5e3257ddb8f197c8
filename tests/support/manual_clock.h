// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>

#include "kv_events/clock.h"

namespace kvwire::test {

// A clock that stands still until the test moves it.
// Threads: any.
class ManualClock final : public Clock {
 public:
  double WallSeconds() const noexcept override { return 1700000000.0 + static_cast<double>(now_.load()) * 1e-9; }
  MonotonicNanos Now() const noexcept override { return now_.load(); }

  void Advance(std::chrono::nanoseconds step) noexcept { now_.fetch_add(step.count()); }

 private:
  std::atomic<MonotonicNanos> now_{0};
};

}  // namespace kvwire::test
