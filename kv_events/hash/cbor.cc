// SPDX-License-Identifier: Apache-2.0
#include "kv_events/hash/cbor.h"

#include <bit>
#include <cstring>

namespace kvwire {

namespace {

constexpr std::size_t kMaxToken = 5;

// Writes one token in its shortest form; touches kMaxToken bytes, returns the end. Without a branch on the width, which
// for real vocabularies is a coin toss.
std::uint8_t* WriteToken(std::uint8_t* out, std::uint32_t value) {
  const unsigned width = unsigned{value > 23} + unsigned{value > 0xff} + unsigned{value > 0xffff};
  const unsigned payload = (1u << width) >> 1;  // 0, 1, 2 or 4 bytes
  *out = static_cast<std::uint8_t>(width == 0 ? value : 0x17u + width);
  // The payload's bytes go to the upper end, so that they come first in big-endian order.
  auto bytes = static_cast<std::uint32_t>(std::uint64_t{value} << (32 - 8 * payload));
  if constexpr (std::endian::native == std::endian::little) bytes = __builtin_bswap32(bytes);
  std::memcpy(out + 1, &bytes, sizeof bytes);
  return out + 1 + payload;
}

}  // namespace

void CborWriter::LongHead(std::uint8_t major, std::uint64_t value) {
  std::uint8_t* const out = buffer_.Reserve(kMaxHead);
  const unsigned log2 = unsigned{value > 0xff} + unsigned{value > 0xffff} + unsigned{value > 0xffffffff};
  const unsigned payload = 1u << log2;
  *out = static_cast<std::uint8_t>(major << 5 | (24 + log2));
  for (unsigned i = 0; i < payload; ++i) out[1 + i] = static_cast<std::uint8_t>(value >> (8 * (payload - 1 - i)));
  buffer_.Advance(1 + payload);
}

void CborWriter::Integer(std::int64_t value) {
  if (value >= 0) {
    Head(kUnsignedMajor, static_cast<std::uint64_t>(value));
  } else {
    Head(kNegativeMajor, static_cast<std::uint64_t>(-(value + 1)));
  }
}

void CborWriter::Text(std::string_view text) {
  Head(kTextMajor, text.size());
  buffer_.Append(text.data(), text.size());
}

void CborWriter::Bytes(std::span<const std::uint8_t> bytes) {
  Head(kBytesMajor, bytes.size());
  buffer_.Append(bytes.data(), bytes.size());
}

void CborWriter::Null() {
  *buffer_.Reserve(1) = 0xf6;
  buffer_.Advance(1);
}

void CborWriter::Tokens(std::span<const TokenId> tokens) {
  Array(tokens.size());
  std::uint8_t* const start = buffer_.Reserve(kMaxToken * tokens.size());
  std::uint8_t* out = start;
  for (const TokenId token : tokens) out = WriteToken(out, token);
  buffer_.Advance(static_cast<std::size_t>(out - start));
}

}  // namespace kvwire
