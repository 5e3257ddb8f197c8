// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kv_events/clock.h"

namespace kvwire {

// One heartbeat of a run of them: its time follows from its place, so that it can be made again bit for bit.
struct Heartbeat {
  double run_start = 0;  // Unix seconds
  double interval = 0;   // seconds
  std::uint64_t index = 0;

  double ts() const { return run_start + static_cast<double>(index) * interval; }
  Heartbeat After(std::uint64_t more) const { return {run_start, interval, index + more}; }
  // Whether it is the one `count` after `first`.
  bool Follows(const Heartbeat& first, std::uint64_t count) const { return *this == first.After(count); }

  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};

// When heartbeats are due, and which. They keep to a grid that begins with the first one of a silence, so that a late
// look does not move those that follow; where the wall clock has gone elsewhere a new run begins.
// Threads: one.
class HeartbeatTimer {
 public:
  static constexpr MonotonicNanos kNever = std::numeric_limits<MonotonicNanos>::max();

  // 0: none are ever due.
  explicit HeartbeatTimer(std::int64_t interval_ms) : interval_(interval_ms * 1'000'000) {}

  // A batch was sent, or the stream began.
  void Restart(MonotonicNanos now) {
    running_ = false;
    due_ = interval_ == 0 ? kNever : now + interval_;
  }

  MonotonicNanos due() const { return due_; }

  // The heartbeat that is due now.
  Heartbeat Next(double wall_seconds) const {
    const double interval = static_cast<double>(interval_) * 1e-9;
    const Heartbeat next = last_.After(1);
    if (running_ && std::abs(next.ts() - wall_seconds) <= interval / 2) return next;
    return {wall_seconds, interval, 0};
  }

  void Sent(const Heartbeat& heartbeat, MonotonicNanos now) {
    due_ = (heartbeat.index == 0 ? now : due_) + interval_;
    if (due_ <= now) due_ = now + interval_;
    last_ = heartbeat;
    running_ = true;
  }

 private:
  const MonotonicNanos interval_;
  MonotonicNanos due_ = kNever;
  bool running_ = false;
  Heartbeat last_;
};

}  // namespace kvwire
