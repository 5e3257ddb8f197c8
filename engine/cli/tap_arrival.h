// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "kv_events/clock.h"

namespace kvwire::engine {

// Whether anybody is at an address. The first look begins the wait.
// Threads: one thread at a time. Time is an argument.
class Arrival {
 public:
  static constexpr MonotonicNanos kPatience = 3'000'000'000;

  enum class Seen : bool { kNever, kConnected };

  explicit Arrival(std::string address) : address_(std::move(address)) {}

  // `seen`: whether a connection has ever been there. Returns what to say: once, after kPatience without one.
  std::optional<std::string> Look(Seen seen, MonotonicNanos now);

  // Looked for, and never there.
  bool missing() const noexcept { return first_look_ && !arrived_; }
  const std::string& address() const noexcept { return address_; }

 private:
  const std::string address_;
  std::optional<MonotonicNanos> first_look_;
  bool arrived_ = false;
  bool said_ = false;
};

}  // namespace kvwire::engine
