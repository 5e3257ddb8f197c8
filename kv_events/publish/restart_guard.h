// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>

#include "kv_events/clock.h"

namespace kvwire {

// A consumer that cannot tell a publisher's life from the one before is healed by a stream that begins again when it
// subscribes. Says when that is due: soon after the start, at most once a second, with none forgotten.
// Threads: one.
class RestartGuard {
 public:
  static constexpr MonotonicNanos kSecond = 1'000'000'000;

  // 0: never.
  explicit RestartGuard(std::int64_t seconds) : length_(seconds * kSecond) {}

  void Start(MonotonicNanos now) { end_ = now + length_; }

  void NoteSubscription(MonotonicNanos now) {
    if (now < end_) wanted_ = true;
  }

  // Whether the stream is to begin again now; then it is so once.
  bool Take(MonotonicNanos now) {
    if (!wanted_ || (last_ && now - *last_ < kSecond)) return false;
    last_ = now;
    wanted_ = false;
    return true;
  }

 private:
  const MonotonicNanos length_;
  MonotonicNanos end_ = 0;
  bool wanted_ = false;
  std::optional<MonotonicNanos> last_;
};

}  // namespace kvwire
