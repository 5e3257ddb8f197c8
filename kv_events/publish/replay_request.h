// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "kv_events/transport/frame_link.h"
#include "kv_events/wire/extensions.h"
#include "kv_events/wire/frames.h"

namespace kvwire {

// A request as a ROUTER sees it: a start of replay, or a name of wire/extensions.h.
struct ReplayRequest {
  std::optional<ExtensionRequest> extension;  // nothing: a start
  SequenceNumber start = 0;
};

// Which names a ROUTER knows. Without them a name is a start above every number.
enum class KnownNames : std::uint8_t { kNone, kExtensions };

// Nothing if the frames, the identity first, are no request. A DEALER that leaves out the empty frame is understood.
// Source: docs/protocol.md, "Replay" and "State".
std::optional<ReplayRequest> ParseReplayRequest(const InFrames& frames, KnownNames names) noexcept;

}  // namespace kvwire
