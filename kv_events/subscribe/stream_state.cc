// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/stream_state.h"

#include <fmt/format.h>

namespace kvwire {

std::string StreamStatus::Reason() const {
  if (!refused) return std::string(reason);
  std::string text = fmt::format("{}: cannot resume from {}", reason, refused->asked);
  if (refused->newest) {
    text += fmt::format(", oldest={} newest={}", refused->oldest ? fmt::format("{}", *refused->oldest) : "none",
                        *refused->newest);
  }
  return text;
}

}  // namespace kvwire
