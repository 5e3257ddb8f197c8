// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kv_events/clock.h"
#include "kv_events/subscribe/dealer_ask.h"
#include "kv_events/subscribe/replay_gate.h"
#include "kv_events/transport/frame_link.h"
#include "kv_events/wire/frames.h"

namespace kvwire {

// Bounds of one recovery.
struct ReplayLimits {
  MonotonicNanos attempt_idle = 2'000'000'000;  // an attempt without a message for so long has failed
  int max_attempts = 3;
  MonotonicNanos total = 120'000'000'000;
};

// Asks a publisher's ROUTER for old messages: [empty, start] on a DEALER, answered in either layout, message by
// message. A silent or malformed answer ends the attempt; the next one resumes where the answer stopped.
//
// Threads: one thread at a time. Time is an argument.
// Bounds: ReplayLimits.
// Source: docs/protocol.md, "Replay".
class ReplayClient {
 public:
  // REQUIRES: factory is callable. `place` outlives the client; whoever owns it leaves it.
  ReplayClient(ReplayLinkFactory factory, const ReplayLimits& limits, ReplayGate::Place* place);

  // Begins to ask from `start`, once the place is entered: Poll sends the request, and time counts from then on.
  void Start(SequenceNumber start);

  // Asks anew from `start`, within the time that is left: at once when the attempt brought something (`start` is above
  // where it began), else after a pause, as another one of the attempts. False when those are used up: nothing is
  // changed then. REQUIRES: active().
  bool TryResume(SequenceNumber start, MonotonicNanos now);

  // Drops the request, if there is one.
  void Stop() noexcept;

  enum class Outcome : std::uint8_t {
    kNothing,  // call again later
    kMessage,  // *frames is a data message
    kEnd,      // the answer is complete
    kFailed,   // attempts or time are used up
  };

  // One step. `resume` is where a new attempt would start. After kEnd and kFailed the client is idle.
  // REQUIRES: active().
  Outcome Poll(SequenceNumber resume, MonotonicNanos now, InFrames* frames);

  bool active() const noexcept { return active_; }
  // Whether the last message was the first of its answer.
  bool at_first() const noexcept { return messages_ == 1; }
  std::uint64_t attempts() const noexcept { return total_attempts_; }
  std::uint64_t malformed() const noexcept { return malformed_; }
  // Whether the last attempt brought nothing.
  bool silent() const noexcept { return silent_; }
  // Whether any link was ever connected, as far as the links tell (FrameLink::peers), or brought anything.
  bool reached() const noexcept { return ask_.reached(); }

  // The link of the current attempt, to wait on; null between attempts.
  FrameLink* link() const noexcept { return ask_.link(); }

 private:
  void Open(SequenceNumber start, MonotonicNanos now);
  Outcome FailAttempt(SequenceNumber resume, MonotonicNanos now);

  DealerAsk ask_;
  const ReplayLimits limits_;
  ReplayGate::Place* const place_;
  bool active_ = false;
  bool opened_ = false;
  SequenceNumber start_ = 0;
  int attempt_ = 0;
  SequenceNumber attempt_start_ = 0;
  std::optional<MonotonicNanos> resume_at_;  // the next attempt, after one that brought nothing
  std::uint64_t messages_ = 0;               // of the present answer
  bool silent_ = false;
  MonotonicNanos give_up_at_ = 0;
  std::uint64_t total_attempts_ = 0;
  std::uint64_t malformed_ = 0;
};

}  // namespace kvwire
