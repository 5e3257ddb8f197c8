// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/tap_arrival.h"

#include <fmt/format.h>

namespace kvwire::engine {

std::optional<std::string> Arrival::Look(Seen seen, MonotonicNanos now) {
  if (!first_look_) first_look_ = now;
  arrived_ = arrived_ || seen == Seen::kConnected;
  if (arrived_ || said_ || now - *first_look_ < kPatience) return std::nullopt;
  said_ = true;
  return fmt::format("no publisher at {} yet", address_);
}

}  // namespace kvwire::engine
