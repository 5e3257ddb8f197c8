// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/stream_state.h"

#include <fmt/format.h>

namespace kvwire {

std::string StreamStatus::Reason() const {
  std::string text(reason);
  if (refused) text += fmt::format(": cannot resume from {}", refused->asked);
  if (refused && refused->newest) {
    text += fmt::format(", oldest={} newest={}", refused->oldest ? fmt::format("{}", *refused->oldest) : "none",
                        *refused->newest);
  }
  if (replay_silent) text += "; the replay does not answer";
  return text;
}

}  // namespace kvwire
