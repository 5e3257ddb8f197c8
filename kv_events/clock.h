// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace kvwire {

// A point on the monotonic clock, in nanoseconds from an unspecified start.
using MonotonicNanos = std::int64_t;

// Time as an argument: loops take `now`, batches take a wall time, and only the owner of a thread reads a clock.
// Threads: const methods may be called from any thread.
class Clock {
 public:
  virtual ~Clock() = default;

  // Unix seconds.
  virtual double WallSeconds() const noexcept = 0;
  virtual MonotonicNanos Now() const noexcept = 0;
};

// The machine's clocks.
class SystemClock final : public Clock {
 public:
  double WallSeconds() const noexcept override {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  }
  MonotonicNanos Now() const noexcept override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  // One shared instance; it has no state.
  static const SystemClock& Get() noexcept {
    static const SystemClock clock;
    return clock;
  }
};

}  // namespace kvwire
