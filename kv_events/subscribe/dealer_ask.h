// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kv_events/clock.h"
#include "kv_events/transport/frame_link.h"

namespace kvwire {

// Makes a DEALER connected to the replay endpoint; null when that fails now, and it is tried again soon. Each request
// gets a new one, so that an answer never mixes with what is left of an earlier one.
using ReplayLinkFactory = std::function<std::unique_ptr<FrameLink>()>;

// One request, [empty, body], on a DEALER of its own, and the messages that answer it.
// Threads: one thread at a time. Time is an argument.
class DealerAsk {
 public:
  // REQUIRES: factory is callable.
  explicit DealerAsk(ReplayLinkFactory factory) : factory_(std::move(factory)) {}

  // Drops an earlier request. The new one is sent at once, or by a later Poll.
  void Start(std::vector<std::uint8_t> body, MonotonicNanos idle, MonotonicNanos now);
  void Stop() noexcept;

  // The next message of the answer, if one is there.
  std::optional<InFrames> Poll(MonotonicNanos now);

  bool active() const noexcept { return active_; }
  // Whether nothing came for `idle`.
  bool Silent(MonotonicNanos now) const noexcept { return now >= idle_until_; }
  // Whether any link was ever connected, as far as the links tell (FrameLink::peers), or brought anything.
  bool reached() const noexcept { return reached_; }
  // To wait on; null without a request.
  FrameLink* link() const noexcept { return link_.get(); }

 private:
  void TrySend(MonotonicNanos now);

  const ReplayLinkFactory factory_;
  std::unique_ptr<FrameLink> link_;
  MonotonicNanos next_try_ = 0;  // to make the link
  std::vector<std::uint8_t> body_;
  MonotonicNanos idle_ = 0;
  MonotonicNanos idle_until_ = 0;
  bool active_ = false;
  bool sent_ = false;
  bool reached_ = false;
};

}  // namespace kvwire
