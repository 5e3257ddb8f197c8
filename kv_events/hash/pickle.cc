// SPDX-License-Identifier: Apache-2.0
#include "kv_events/hash/pickle.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvwire {

// Frames. Whatever is written opens a frame if none is open, with room for its head. Before each object, not within
// one, a frame that has reached kFrameTarget is closed. A string or bytes of at least kFrameTarget closes the open
// frame and stands between frames, with its opcode and length but without its memo. A frame that is closed with fewer
// than kFrameMin bytes loses its head.

namespace {

constexpr std::size_t kFrameTarget = 65536;
constexpr std::size_t kFrameMin = 4;
constexpr std::size_t kFrameHead = 9;
constexpr std::size_t kMaxPickledToken = 7;

constexpr std::uint8_t kProto = 0x80;
constexpr std::uint8_t kFrame = 0x95;
constexpr std::uint8_t kStop = '.';
constexpr std::uint8_t kMark = '(';
constexpr std::uint8_t kNone = 'N';
constexpr std::uint8_t kEmptyTuple = ')';
constexpr std::uint8_t kTuple = 't';
constexpr std::uint8_t kTuple1 = 0x85;  // kTuple2 and kTuple3 follow
constexpr std::uint8_t kMemoize = 0x94;
constexpr std::uint8_t kShortText = 0x8c;
constexpr std::uint8_t kText = 'X';
constexpr std::uint8_t kShortBytes = 'C';
constexpr std::uint8_t kBytes = 'B';
constexpr std::uint8_t kInt1 = 'K';
constexpr std::uint8_t kInt2 = 'M';
constexpr std::uint8_t kInt4 = 'J';
constexpr std::uint8_t kLong1 = 0x8a;

void StoreLittle(std::uint8_t* out, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::uint8_t>(value >> (8 * i));
}

void StoreLittle32(std::uint8_t* out, std::uint32_t value) {
  if constexpr (std::endian::native == std::endian::big) value = __builtin_bswap32(value);
  std::memcpy(out, &value, sizeof value);
}

// Writes one token; touches kMaxPickledToken bytes at most, returns the end. Without a branch on the width of what fits
// an int32, which for real vocabularies is a coin toss.
std::uint8_t* WritePickledToken(std::uint8_t* out, TokenId value) {
  if (value > kMaxTokenId) {
    *out = kLong1;
    out[1] = 5;
    StoreLittle32(out + 2, value);
    out[6] = 0;
    return out + 7;
  }
  static constexpr std::uint8_t kOpcode[] = {kInt1, kInt2, kInt4};
  static constexpr std::uint8_t kSize[] = {2, 3, 5};
  const unsigned width = unsigned{value > 0xff} + unsigned{value > 0xffff};
  *out = kOpcode[width];
  StoreLittle32(out + 1, value);
  return out + kSize[width];
}

}  // namespace

void PickleWriter::Clear() {
  buffer_.Clear();
  frame_ = kNoFrame;
  static constexpr std::uint8_t kHead[] = {kProto, 5};
  buffer_.Append(kHead, sizeof kHead);
}

void PickleWriter::Stop() {
  Opcode(kStop);
  CommitFrame();
}

std::uint8_t* PickleWriter::Room(std::size_t bytes) {
  if (frame_ == kNoFrame) {
    frame_ = buffer_.size();
    buffer_.Reserve(kFrameHead);
    buffer_.Advance(kFrameHead);
  }
  return buffer_.Reserve(bytes);
}

void PickleWriter::Opcode(std::uint8_t opcode) {
  *Room(1) = opcode;
  buffer_.Advance(1);
}

std::size_t PickleWriter::FrameSize() const noexcept {
  return frame_ == kNoFrame ? 0 : buffer_.size() - frame_ - kFrameHead;
}

void PickleWriter::BeginObject() {
  if (FrameSize() >= kFrameTarget) CommitFrame();
}

void PickleWriter::CommitFrame() {
  if (frame_ == kNoFrame) return;
  const std::size_t size = FrameSize();
  std::uint8_t* const head = buffer_.data() + frame_;
  if (size >= kFrameMin) {
    *head = kFrame;
    StoreLittle(head + 1, size, 8);
  } else {
    std::memmove(head, head + kFrameHead, size);
    buffer_.Truncate(frame_ + size);
  }
  frame_ = kNoFrame;
}

void PickleWriter::BeginTuple(std::size_t elements) {
  BeginObject();
  if (elements > 3) Opcode(kMark);
}

void PickleWriter::EndTuple(std::size_t elements) {
  if (elements == 0) return Opcode(kEmptyTuple);
  Opcode(elements > 3 ? kTuple : static_cast<std::uint8_t>(kTuple1 + elements - 1));
  Opcode(kMemoize);
}

void PickleWriter::Integer(std::int64_t value) {
  BeginObject();
  if (value >= 0 && value <= kMaxTokenId) {
    std::uint8_t* const out = Room(kMaxPickledToken);
    buffer_.Advance(static_cast<std::size_t>(WritePickledToken(out, static_cast<TokenId>(value)) - out));
    return;
  }
  if (value >= std::numeric_limits<std::int32_t>::min() && value < 0) {
    std::uint8_t* const out = Room(5);
    *out = kInt4;
    StoreLittle32(out + 1, static_cast<std::uint32_t>(value));
    buffer_.Advance(5);
    return;
  }
  // The shortest two's complement; its top bit is the sign.
  const auto bits = static_cast<std::uint64_t>(value < 0 ? ~value : value);
  const auto size = static_cast<std::size_t>(std::bit_width(bits)) / 8 + 1;
  std::uint8_t* const out = Room(2 + size);
  *out = kLong1;
  out[1] = static_cast<std::uint8_t>(size);
  StoreLittle(out + 2, static_cast<std::uint64_t>(value), size);
  buffer_.Advance(2 + size);
}

void PickleWriter::Sized(std::uint8_t short_opcode, std::uint8_t long_opcode, const void* data, std::size_t size) {
  BeginObject();
  const bool unframed = size >= kFrameTarget;
  if (unframed) CommitFrame();
  const std::size_t head = size <= 0xff ? 2 : 5;
  std::uint8_t* const out = unframed ? buffer_.Reserve(head) : Room(head);
  *out = size <= 0xff ? short_opcode : long_opcode;
  StoreLittle(out + 1, size, head - 1);
  buffer_.Advance(head);
  buffer_.Append(data, size);
  Opcode(kMemoize);
}

void PickleWriter::Text(std::string_view text) { Sized(kShortText, kText, text.data(), text.size()); }

void PickleWriter::Bytes(std::span<const std::uint8_t> bytes) {
  Sized(kShortBytes, kBytes, bytes.data(), bytes.size());
}

void PickleWriter::None() {
  BeginObject();
  Opcode(kNone);
}

void PickleWriter::Tokens(std::span<const TokenId> tokens) {
  BeginTuple(tokens.size());
  for (std::span<const TokenId> rest = tokens; !rest.empty();) {
    BeginObject();
    // As many as cannot fill the frame, whatever their width, or one.
    const std::size_t count = std::clamp<std::size_t>((kFrameTarget - FrameSize()) / kMaxPickledToken, 1, rest.size());
    std::uint8_t* const start = Room(kMaxPickledToken * count);
    std::uint8_t* out = start;
    for (const TokenId token : rest.first(count)) out = WritePickledToken(out, token);
    buffer_.Advance(static_cast<std::size_t>(out - start));
    rest = rest.subspan(count);
  }
  EndTuple(tokens.size());
}

}  // namespace kvwire
