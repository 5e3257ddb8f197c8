// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/replay_request.h"

#include <algorithm>
#include <string_view>

namespace kvwire {

namespace {

constexpr std::string_view kPrefix = "KVW1";

// Up to eight bytes are a number, whatever they are.
bool IsName(FrameView frame) {
  return frame.size() > sizeof(SequenceNumber) && std::equal(kPrefix.begin(), kPrefix.end(), frame.begin());
}

}  // namespace

std::optional<ReplayRequest> ParseReplayRequest(const InFrames& frames, KnownNames names) noexcept {
  const bool delimited = frames.size() == 3 && frames[1].empty();
  if (!delimited && frames.size() != 2) return std::nullopt;
  const FrameView asked = frames.back();
  ReplayRequest request;
  if (names == KnownNames::kExtensions && IsName(asked)) {
    request.extension = ParseExtensionRequest(asked);
    return request.extension ? std::optional(request) : std::nullopt;
  }
  const std::optional<SequenceNumber> start = DecodeReplayStart(asked);
  if (!start) return std::nullopt;
  request.start = *start;
  return request;
}

}  // namespace kvwire
