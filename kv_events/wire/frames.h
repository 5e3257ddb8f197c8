// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv_events/config.h"

namespace kvwire {

// Frames around the payload. Live: topic | sequence | payload. Replay request: empty | start. Replay answer, per batch:
// empty | topic | sequence | payload, or without the topic; end mark: kEndOfReplay with an empty payload.
// Source: docs/protocol.md, "Messages".

using SequenceNumber = std::uint64_t;

// Marks the end of a replay; never the number of a batch.
inline constexpr SequenceNumber kEndOfReplay = ~SequenceNumber{0};

using SequenceFrame = std::array<std::uint8_t, 8>;

SequenceFrame EncodeSequence(SequenceNumber number) noexcept;

// Nothing unless the frame has 8 bytes.
std::optional<SequenceNumber> DecodeSequence(std::span<const std::uint8_t> frame) noexcept;

// The start of a replay request: a big-endian integer of 0 to 8 bytes, or longer with leading zeros; larger values
// saturate at kEndOfReplay, and so does every name of wire/extensions.h that fits. Nothing for more than 16 bytes.
std::optional<SequenceNumber> DecodeReplayStart(std::span<const std::uint8_t> frame) noexcept;

using FrameView = std::span<const std::uint8_t>;

// A live message; views into its frames.
struct LiveMessage {
  FrameView topic;
  SequenceNumber sequence = 0;
  FrameView payload;
};
// Nothing unless there are three frames and the second is a sequence.
std::optional<LiveMessage> ParseLiveMessage(std::span<const FrameView> frames) noexcept;

// A replay answer as a DEALER sees it, the empty delimiter first; either layout, told apart by the frame count. The end
// mark is kEndOfReplay or, as no batch has an empty payload, any message with one.
struct ReplayMessage {
  std::optional<FrameView> topic;  // absent in the legacy layout
  SequenceNumber sequence = 0;
  FrameView payload;
  bool end = false;
};
// Nothing unless there are three or four frames, the first is empty and the last but one a sequence.
std::optional<ReplayMessage> ParseReplayMessage(std::span<const FrameView> frames) noexcept;

}  // namespace kvwire
