// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/state_notes.h"

#include <algorithm>

#include <fmt/format.h>

namespace kvwire {

std::optional<std::string> StateNotes::Look(const StreamStatus& status, MonotonicNanos now) {
  if (!first_look_) first_look_ = changed_at_ = now;
  if (seen_ && seen_->state != status.state) {
    if (now - changed_at_ >= kQuiet) pause_ = kShortestPause;
    changed_at_ = now;
    ++unsaid_;
  }
  const bool first = !seen_;
  seen_ = status;
  // The state that a stream begins with is news only when it stays.
  const bool waits = !said_ && unsaid_ == 0 && now - *first_look_ < kFirstWord;
  if (first || waits || now < next_line_at_) return std::nullopt;
  if (said_ && said_->state == status.state) {
    unsaid_ = 0;
    return std::nullopt;
  }
  std::string line = fmt::format("{}: {}", ToString(status.state), status.Reason());
  if (unsaid_ > 1) line += fmt::format(" (after {} changes)", unsaid_);
  said_ = status;
  unsaid_ = 0;
  next_line_at_ = now + pause_;
  pause_ = std::min(pause_ * 2, kLongestPause);
  return line;
}

}  // namespace kvwire
