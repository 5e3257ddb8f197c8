// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace kvwire {

// Writes msgpack through a raw pointer, each value in its shortest form, non-negative integers as unsigned.
// Bounds: the caller provides the room; a value takes at most kMaxHead bytes besides its content, and Tokens() may
// store up to kSlack bytes past the last one it keeps.
class MsgpackWriter {
 public:
  static constexpr std::size_t kMaxHead = 9;
  static constexpr std::size_t kSlack = 8;

  explicit MsgpackWriter(std::uint8_t* at) : at_(at) {}

  std::uint8_t* at() const { return at_; }

  void Nil() { *at_++ = 0xc0; }
  void Bool(bool value) { *at_++ = value ? 0xc3 : 0xc2; }
  void Raw(const void* bytes, std::size_t size) {
    if (size != 0) std::memcpy(at_, bytes, size);
    at_ += size;
  }

  void Uint(std::uint64_t value) {
    if (value < 0x80) {
      *at_++ = static_cast<std::uint8_t>(value);
    } else if (value <= 0xff) {
      *at_++ = 0xcc;
      *at_++ = static_cast<std::uint8_t>(value);
    } else if (value <= 0xffff) {
      Tagged<std::uint16_t>(0xcd, value);
    } else if (value <= 0xffffffff) {
      Tagged<std::uint32_t>(0xce, value);
    } else {
      Tagged<std::uint64_t>(0xcf, value);
    }
  }

  void Int(std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    if (value >= 0) {
      Uint(bits);
    } else if (value >= -32) {
      *at_++ = static_cast<std::uint8_t>(bits);
    } else if (value >= -0x80) {
      *at_++ = 0xd0;
      *at_++ = static_cast<std::uint8_t>(bits);
    } else if (value >= -0x8000) {
      Tagged<std::uint16_t>(0xd1, bits);
    } else if (value >= -std::int64_t{0x80000000}) {
      Tagged<std::uint32_t>(0xd2, bits);
    } else {
      Tagged<std::uint64_t>(0xd3, bits);
    }
  }

  // Nine bytes, whatever the value.
  void WideUint(std::uint64_t value) { Tagged<std::uint64_t>(0xcf, value); }
  void WideInt(std::int64_t value) {
    Tagged<std::uint64_t>(value < 0 ? std::uint8_t{0xd3} : std::uint8_t{0xcf}, static_cast<std::uint64_t>(value));
  }

  void Float64(double value) { Tagged<std::uint64_t>(0xcb, std::bit_cast<std::uint64_t>(value)); }

  void Str(std::string_view text) {
    if (text.size() < 32) {
      *at_++ = static_cast<std::uint8_t>(0xa0 | text.size());
    } else {
      Length(text.size(), 0xd9);
    }
    Raw(text.data(), text.size());
  }

  void Bin(std::span<const std::uint8_t> bytes) {
    Length(bytes.size(), 0xc4);
    Raw(bytes.data(), bytes.size());
  }

  void Array(std::size_t count) { Container(count, 0x90, 0xdc); }
  void Map(std::size_t count) { Container(count, 0x80, 0xde); }

  // An array of integers below 2^32.
  void Tokens(std::span<const std::uint32_t> tokens) {
    Array(tokens.size());
    // Token widths follow no pattern a branch predictor could learn, so the width is arithmetic: head and big-endian
    // value are put at the top of one word, eight bytes are stored, and only the length decides where the next goes.
    static constexpr std::uint64_t kHead[4] = {0, std::uint64_t{0xcc} << 56, std::uint64_t{0xcd} << 56,
                                               std::uint64_t{0xce} << 56};
    static constexpr std::uint8_t kShift[4] = {56, 48, 40, 24};
    static constexpr std::uint8_t kLength[4] = {1, 2, 3, 5};
    std::uint8_t* at = at_;
    for (const std::uint32_t token : tokens) {
      const unsigned width = static_cast<unsigned>(token > 0x7f) + static_cast<unsigned>(token > 0xff) +
                             static_cast<unsigned>(token > 0xffff);
      StoreBigEndian(at, kHead[width] | std::uint64_t{token} << kShift[width]);
      at += kLength[width];
    }
    at_ = at;
  }

 private:
  template <class Word>
  static void StoreBigEndian(std::uint8_t* at, Word word) {
    if constexpr (std::endian::native == std::endian::little) {
      if constexpr (sizeof(Word) == 8) word = __builtin_bswap64(word);
      if constexpr (sizeof(Word) == 4) word = __builtin_bswap32(word);
      if constexpr (sizeof(Word) == 2) word = __builtin_bswap16(word);
    }
    std::memcpy(at, &word, sizeof(word));
  }

  template <class Word>
  void Tagged(std::uint8_t head, std::uint64_t value) {
    *at_++ = head;
    StoreBigEndian(at_, static_cast<Word>(value));
    at_ += sizeof(Word);
  }

  // Length of a str (first head 0xd9) or a bin (0xc4): one, two or four bytes.
  void Length(std::size_t size, std::uint8_t first_head) {
    if (size <= 0xff) {
      *at_++ = first_head;
      *at_++ = static_cast<std::uint8_t>(size);
    } else if (size <= 0xffff) {
      Tagged<std::uint16_t>(static_cast<std::uint8_t>(first_head + 1), size);
    } else {
      Tagged<std::uint32_t>(static_cast<std::uint8_t>(first_head + 2), size);
    }
  }

  void Container(std::size_t count, std::uint8_t small, std::uint8_t wide) {
    if (count < 16) {
      *at_++ = static_cast<std::uint8_t>(small | count);
    } else if (count <= 0xffff) {
      Tagged<std::uint16_t>(wide, count);
    } else {
      Tagged<std::uint32_t>(static_cast<std::uint8_t>(wide + 1), count);
    }
  }

  std::uint8_t* at_;
};

}  // namespace kvwire
