// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/faults/fault_plan.h"
#include "kv_events/clock.h"
#include "kv_events/transport/frame_link.h"

namespace kvwire::engine {

// A publishing socket with the faults of FaultPlace::kLink: looks at the number of a live message and drops, repeats,
// spoils or delays it. Whoever sends is told kSent, as the network would let it believe. The order stays: behind a
// delayed message everything waits. A dropped message meets no other fault.
//
// Threads: one thread. Ownership: borrows link, plan, counters and clock.
// Errors: a message that was delayed, and that the link then refuses, is lost.
// Bounds: kMaxHeldMessages and kMaxHeldBytes of payload wait at most; beyond, TrySend says kWouldBlock. What waits
//   leaves with the first TrySend or TryReceive after its time, and at once when the link is destroyed.
class FaultLink final : public FrameLink {
 public:
  static constexpr std::size_t kMaxHeldMessages = 10'000;
  static constexpr std::size_t kMaxHeldBytes = std::size_t{64} << 20;

  FaultLink(FrameLink* inner, FaultPlan* plan, FaultCounters* counters, const Clock* clock);
  ~FaultLink() override;

  SendResult TrySend(std::span<const OutFrame> frames) noexcept override;
  std::optional<InFrames> TryReceive() override;
  PeerCounts peers() noexcept override { return inner_->peers(); }
  std::string endpoint() const override { return inner_->endpoint(); }

  // Messages that wait.
  std::size_t held() const noexcept { return held_.size(); }
  // When the next one leaves.
  std::optional<MonotonicNanos> due() const noexcept;

 private:
  struct Effect {
    bool drop = false;
    bool duplicate = false;
    bool undecodable = false;
    std::uint32_t delay_ms = 0;  // the longest
  };
  struct Held {
    std::vector<SharedBytes> frames;
    std::size_t bytes = 0;
    MonotonicNanos due = 0;
  };

  Effect EffectOn(std::span<const OutFrame> frames) noexcept;
  SendResult SendOrHold(std::span<const OutFrame> frames, const Effect& effect);
  void Hold(std::span<const OutFrame> frames, MonotonicNanos due);
  void Flush(MonotonicNanos now) noexcept;
  void Count(const Effect& effect) noexcept;

  FrameLink* const inner_;
  FaultPlan* const plan_;
  FaultCounters* const counters_;
  const Clock* const clock_;
  const SharedBytes undecodable_;
  std::deque<Held> held_;  // in the order of sending
  std::size_t held_bytes_ = 0;
};

}  // namespace kvwire::engine
