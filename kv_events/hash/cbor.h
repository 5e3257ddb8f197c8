// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kv_events/events.h"
#include "kv_events/hash/byte_buffer.h"

namespace kvwire {

// The part of canonical CBOR (RFC 8949, definite lengths, shortest integers) that block identities are made of.
// Ownership: appends to a buffer of its own; Clear() keeps the memory.
class CborWriter {
 public:
  void Clear() noexcept { buffer_.Clear(); }
  std::span<const std::uint8_t> bytes() const noexcept { return buffer_.bytes(); }
  // Room for so many bytes behind bytes(), not part of them; valid until more is written.
  std::uint8_t* Behind(std::size_t count) { return buffer_.Reserve(count); }

  void Array(std::size_t elements) { Head(kArrayMajor, elements); }
  void Integer(std::int64_t value);
  void Text(std::string_view text);
  void Bytes(std::span<const std::uint8_t> bytes);
  void Null();

  // An array of unsigned integers.
  void Tokens(std::span<const TokenId> tokens);

 private:
  static constexpr std::uint8_t kUnsignedMajor = 0;
  static constexpr std::uint8_t kNegativeMajor = 1;
  static constexpr std::uint8_t kBytesMajor = 2;
  static constexpr std::uint8_t kTextMajor = 3;
  static constexpr std::uint8_t kArrayMajor = 4;

  static constexpr std::size_t kMaxHead = 9;

  void Head(std::uint8_t major, std::uint64_t value) {
    if (value >= 24) return LongHead(major, value);
    *buffer_.Reserve(1) = static_cast<std::uint8_t>(major << 5 | value);
    buffer_.Advance(1);
  }
  void LongHead(std::uint8_t major, std::uint64_t value);

  ByteBuffer buffer_;
};

}  // namespace kvwire
