// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/tap_arrival.h"

#include <optional>
#include <string>

#include <doctest/doctest.h>

namespace kvwire::engine {
namespace {

using Seen = Arrival::Seen;
constexpr MonotonicNanos kStart = 7;
constexpr MonotonicNanos kLate = kStart + Arrival::kPatience;

TEST_CASE("nobody at an address is said once, after a while without a connection") {
  Arrival arrival("tcp://host:1");
  CHECK_FALSE(arrival.missing());  // nobody looked
  CHECK(arrival.Look(Seen::kNever, kStart) == std::nullopt);
  CHECK(arrival.missing());
  CHECK(arrival.Look(Seen::kNever, kLate - 1) == std::nullopt);
  CHECK(arrival.Look(Seen::kNever, kLate) == "no publisher at tcp://host:1 yet");
  CHECK(arrival.Look(Seen::kNever, 10 * kLate) == std::nullopt);
  CHECK(arrival.missing());
  CHECK(arrival.Look(Seen::kConnected, 11 * kLate) == std::nullopt);
  CHECK_FALSE(arrival.missing());
}

TEST_CASE("an address where somebody was is not missing, also when nobody is there any more") {
  Arrival arrival("tcp://host:1");
  CHECK(arrival.Look(Seen::kConnected, kStart) == std::nullopt);
  CHECK(arrival.Look(Seen::kNever, kLate) == std::nullopt);
  CHECK_FALSE(arrival.missing());
}

}  // namespace
}  // namespace kvwire::engine
