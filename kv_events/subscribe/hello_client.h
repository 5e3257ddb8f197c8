// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kv_events/clock.h"
#include "kv_events/subscribe/dealer_ask.h"
#include "kv_events/wire/extensions.h"

namespace kvwire {

// Asks a publisher who it is. A ROUTER that does not know the question answers with the end mark of a replay.
// Threads: one thread at a time. Time is an argument.
// Source: docs/protocol.md, "State".
class HelloClient {
 public:
  // REQUIRES: factory is callable. `idle`: how long an answer may take.
  HelloClient(ReplayLinkFactory factory, MonotonicNanos idle) : ask_(std::move(factory)), idle_(idle) {}

  void Start(MonotonicNanos now);
  void Stop() noexcept { ask_.Stop(); }

  enum class Outcome : std::uint8_t {
    kNothing,  // call again later
    kHello,    // *hello is set
    kOther,    // an answer, and not of a kvwire publisher
    kSilent,
  };
  // One step; after anything but kNothing the client is idle. REQUIRES: active().
  Outcome Poll(MonotonicNanos now, Hello* hello);

  bool active() const noexcept { return ask_.active(); }
  bool reached() const noexcept { return ask_.reached(); }
  FrameLink* link() const noexcept { return ask_.link(); }

 private:
  DealerAsk ask_;
  const MonotonicNanos idle_;
};

}  // namespace kvwire
