// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "kv_events/event_publisher.h"
#include "kv_events/publish/counter.h"

namespace kvwire {

// What the publishing thread wants of the step thread: StateWants, whose counts only rise.
//
// Threads: wants by any; the rest by the publishing thread.
class StateRequests {
 public:
  // `on_change` may be empty; it must not block.
  explicit StateRequests(std::function<void()> on_change) : on_change_(std::move(on_change)) {}

  void AskResync() noexcept { Raise(&resyncs_, resyncs_.value() + 1); }
  // The number of the walk that was asked for.
  std::uint64_t AskWalk() noexcept {
    Raise(&walks_, walks_.value() + 1);
    return walks_.value();
  }
  // Of all walks together; fewer than before changes nothing.
  void AllowChunks(std::uint64_t chunks) noexcept { Raise(&chunks_, chunks); }

  // Tells of what changed since the last call.
  void Notify() {
    if (!std::exchange(changed_, false) || !on_change_) return;
    on_change_();
  }

  StateWants wants() const noexcept { return {resyncs_.value(), walks_.value(), chunks_.value()}; }

 private:
  void Raise(Counter* counter, std::uint64_t value) noexcept {
    if (value <= counter->value()) return;
    counter->Set(value);
    changed_ = true;
  }

  const std::function<void()> on_change_;
  Counter resyncs_;
  Counter walks_;
  Counter chunks_;
  bool changed_ = false;
};

}  // namespace kvwire
