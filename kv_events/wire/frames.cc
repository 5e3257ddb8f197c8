// SPDX-License-Identifier: Apache-2.0
#include "kv_events/wire/frames.h"

namespace kvwire {

namespace {

constexpr std::size_t kMaxStartBytes = 16;

}  // namespace

SequenceFrame EncodeSequence(SequenceNumber number) noexcept {
  SequenceFrame frame;
  for (std::size_t i = frame.size(); i-- > 0; number >>= 8) frame[i] = static_cast<std::uint8_t>(number);
  return frame;
}

std::optional<SequenceNumber> DecodeSequence(std::span<const std::uint8_t> frame) noexcept {
  if (frame.size() != sizeof(SequenceNumber)) return std::nullopt;
  SequenceNumber number = 0;
  for (const std::uint8_t byte : frame) number = number << 8 | byte;
  return number;
}

std::optional<SequenceNumber> DecodeReplayStart(std::span<const std::uint8_t> frame) noexcept {
  if (frame.size() > kMaxStartBytes) return std::nullopt;
  SequenceNumber number = 0;
  for (const std::uint8_t byte : frame) {
    if (number >> 56 != 0) return kEndOfReplay;
    number = number << 8 | byte;
  }
  return number;
}

std::optional<LiveMessage> ParseLiveMessage(std::span<const FrameView> frames) noexcept {
  if (frames.size() != 3) return std::nullopt;
  const std::optional<SequenceNumber> sequence = DecodeSequence(frames[1]);
  if (!sequence) return std::nullopt;
  return LiveMessage{frames[0], *sequence, frames[2]};
}

std::optional<ReplayMessage> ParseReplayMessage(std::span<const FrameView> frames) noexcept {
  if (frames.size() != 3 && frames.size() != 4) return std::nullopt;
  if (!frames[0].empty()) return std::nullopt;
  ReplayMessage message;
  if (frames.size() == 4) message.topic = frames[1];
  const std::optional<SequenceNumber> sequence = DecodeSequence(frames[frames.size() - 2]);
  if (!sequence) return std::nullopt;
  message.sequence = *sequence;
  message.payload = frames[frames.size() - 1];
  message.end = message.sequence == kEndOfReplay || message.payload.empty();
  return message;
}

}  // namespace kvwire
