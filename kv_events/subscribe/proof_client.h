// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kv_events/clock.h"
#include "kv_events/subscribe/applied_payloads.h"
#include "kv_events/subscribe/dealer_ask.h"

namespace kvwire {

// Asks a replay for one message that came live, and says whether it has the same bytes: then live messages and answers
// are of one publisher.
//
// Threads: one thread at a time. Time is an argument.
// Bounds: one request; what its answer has in front of the message is read up to kMost messages, what comes after it
// is not read.
class ProofClient {
 public:
  // REQUIRES: factory is callable. `idle`: how long an answer may pause.
  ProofClient(ReplayLinkFactory factory, MonotonicNanos idle) : ask_(std::move(factory)), idle_(idle) {}

  void Start(const AppliedPayloads::Entry& heard, MonotonicNanos now);
  void Stop() noexcept { ask_.Stop(); }

  enum class Outcome : std::uint8_t {
    kNothing,  // call again later
    kSame,
    kDiffers,
    kGone,    // the answer has later messages, and not this one
    kAbsent,  // it has neither
    kSilent,  // there is none
  };
  // One step; after anything but kNothing the client is idle. REQUIRES: active().
  Outcome Poll(MonotonicNanos now);

  bool active() const noexcept { return ask_.active(); }
  // What was asked for last.
  const AppliedPayloads::Entry& heard() const noexcept { return heard_; }
  FrameLink* link() const noexcept { return ask_.link(); }

 private:
  static constexpr std::size_t kMost = 64;

  Outcome Judge(const InFrames& frames);

  DealerAsk ask_;
  const MonotonicNanos idle_;
  AppliedPayloads::Entry heard_;
  std::size_t messages_ = 0;
};

}  // namespace kvwire
