// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kv_events/clock.h"
#include "kv_events/subscribe/stream_state.h"

namespace kvwire {

// Says how a stream's state changes, in lines for a log: a change at once, unless lines came before it. Between two
// lines there is a pause that doubles with each line, up to kLongestPause, and is the shortest again after a time
// without a change. What changed in a pause is said at its end, as one line, if the state is another one then.
//
// Threads: one thread at a time. Time is an argument.
class StateNotes {
 public:
  static constexpr MonotonicNanos kFirstWord = 3'000'000'000;  // until a state that stays the first one is said
  static constexpr MonotonicNanos kShortestPause = 1'000'000'000;
  static constexpr MonotonicNanos kLongestPause = 600'000'000'000;
  static constexpr MonotonicNanos kQuiet = 600'000'000'000;

  // The line to be said now, without the stream's name.
  std::optional<std::string> Look(const StreamStatus& status, MonotonicNanos now);

 private:
  std::optional<MonotonicNanos> first_look_;
  std::optional<StreamStatus> seen_;  // by the latest look
  std::optional<StreamStatus> said_;
  MonotonicNanos changed_at_ = 0;
  MonotonicNanos next_line_at_ = 0;
  MonotonicNanos pause_ = kShortestPause;
  std::uint64_t unsaid_ = 0;
};

}  // namespace kvwire
