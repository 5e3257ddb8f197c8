// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "kv_events/wire/frames.h"

namespace kvwire {

// What a live sequence number means.
enum class SequenceVerdict : std::uint8_t {
  kNext,       // follows what was applied
  kDuplicate,  // seen or applied before, e.g. by a replay that overtook the live stream
  kGap,        // numbers between the applied ones and this one are missing
  kRestart,    // below an earlier live number: the publisher began anew
};

// The two marks of one stream: the last number seen live and the next one to apply. A replay moves the second past the
// first; a buffered live message moves the first past the second.
//
// A value. A publisher that restarts and passes the old numbers before it is seen again looks like a gap here; telling
// the two apart takes more than numbers, and is EventStream's work.
class SequenceTracker {
 public:
  // `first`: the number of a publisher's first message.
  explicit SequenceTracker(SequenceNumber first = 0) noexcept : first_(first), next_(first) {}

  // Judges a live number; changes nothing.
  SequenceVerdict Judge(SequenceNumber number) const noexcept;

  // A message with this number came on the live stream.
  void SawLive(SequenceNumber number) noexcept { live_ = number; }

  // Everything below `next` was applied or given up.
  void AdvanceTo(SequenceNumber next) noexcept {
    next_ = next;
    started_ = true;
  }

  // As if `number` were the last one seen live.
  void RewindLive(std::optional<SequenceNumber> number) noexcept { live_ = number; }

  // Back to the beginning: nothing seen, nothing applied.
  void Reset() noexcept { *this = SequenceTracker(first_); }

  SequenceNumber first() const noexcept { return first_; }
  // The number to apply next.
  SequenceNumber next() const noexcept { return next_; }
  // Whether anything was applied or given up.
  bool started() const noexcept { return started_; }
  std::optional<SequenceNumber> live() const noexcept { return live_; }

 private:
  SequenceNumber first_;
  SequenceNumber next_;
  bool started_ = false;
  std::optional<SequenceNumber> live_;
};

}  // namespace kvwire
