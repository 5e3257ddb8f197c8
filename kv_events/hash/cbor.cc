// SPDX-License-Identifier: Apache-2.0
#include "kv_events/hash/cbor.h"

#include <array>
#include <bit>
#include <cstring>

namespace kvwire {

namespace {

// How a token is written that is not its own head: the head, how far the token is shifted so that its payload follows
// the head, and the bytes of both. By the place of the token's highest bit.
struct TokenForm {
  std::uint8_t head;
  std::uint8_t shift;
  std::uint8_t size;
};
constexpr std::array<TokenForm, 32> kTokenForms = [] {
  std::array<TokenForm, 32> forms{};
  for (std::size_t bit = 0; bit < forms.size(); ++bit) {
    forms[bit] = bit < 8 ? TokenForm{0x18, 48, 2} : bit < 16 ? TokenForm{0x19, 40, 3} : TokenForm{0x1a, 24, 5};
  }
  return forms;
}();

constexpr std::size_t kMaxTokenBytes = 5;
constexpr std::size_t kTokenSlack = 3;  // bytes that WriteCborToken touches behind a token of kMaxTokenBytes

// Writes one token in its shortest form, as one word; returns the end. Without a branch on the width, which for real
// vocabularies is a coin toss, but for the 24 tokens that are their own heads.
std::uint8_t* WriteCborToken(std::uint8_t* out, std::uint32_t value) {
  if (value < 24) {
    *out = static_cast<std::uint8_t>(value);
    return out + 1;
  }
  const TokenForm form = kTokenForms[static_cast<std::size_t>(31 ^ std::countl_zero(value | 1))];
  std::uint64_t word = std::uint64_t{form.head} << 56 | std::uint64_t{value} << form.shift;
  if constexpr (std::endian::native == std::endian::little) word = __builtin_bswap64(word);
  std::memcpy(out, &word, sizeof word);
  return out + form.size;
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
  std::uint8_t* const start = buffer_.Reserve(kMaxTokenBytes * tokens.size() + kTokenSlack);
  std::uint8_t* out = start;
  for (const TokenId token : tokens) out = WriteCborToken(out, token);
  buffer_.Advance(static_cast<std::size_t>(out - start));
}

}  // namespace kvwire
