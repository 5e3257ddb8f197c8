// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/sequence_tracker.h"

namespace kvwire {

SequenceVerdict SequenceTracker::Judge(SequenceNumber number) const noexcept {
  // The transport keeps the order of one publisher, so a number below an earlier live one is another life.
  if (live_ && number < *live_) return SequenceVerdict::kRestart;
  if (live_ && number == *live_) return SequenceVerdict::kDuplicate;
  if (number > next_) return SequenceVerdict::kGap;
  if (number == next_) return SequenceVerdict::kNext;
  // Below the expected first number there is nothing that it could repeat.
  return started_ ? SequenceVerdict::kDuplicate : SequenceVerdict::kNext;
}

}  // namespace kvwire
