// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>

#include "kv_events/clock.h"

namespace kvwire {

// How long to wait before something that should be rare is done again: not at all the first time, then `first`, twice
// as long each time, up to `longest`; from the beginning after `quiet` without a call.
// A value. Time is an argument.
class BackOff {
 public:
  constexpr BackOff(MonotonicNanos first, MonotonicNanos longest, MonotonicNanos quiet) noexcept
      : first_(first), longest_(longest), quiet_(quiet) {}

  MonotonicNanos Next(MonotonicNanos now) noexcept {
    const bool again = last_ && now - *last_ < quiet_;
    pause_ = !again ? 0 : pause_ == 0 ? first_ : std::min(2 * pause_, longest_);
    last_ = now;
    return pause_;
  }

 private:
  MonotonicNanos first_;
  MonotonicNanos longest_;
  MonotonicNanos quiet_;
  MonotonicNanos pause_ = 0;
  std::optional<MonotonicNanos> last_;
};

}  // namespace kvwire
