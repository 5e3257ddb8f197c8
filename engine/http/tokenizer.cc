// SPDX-License-Identifier: Apache-2.0
#include "engine/http/tokenizer.h"

#include <algorithm>
#include <cstdint>

#include "engine/http/utf8_text.h"

namespace kvwire::engine {

namespace {

constexpr TokenId kLastByte = 0xff;

}  // namespace

Result<std::vector<TokenId>> ByteTokenizer::Encode(std::string_view text) const {
  std::vector<TokenId> tokens(text.size());
  std::ranges::transform(text, tokens.begin(), [](char c) { return static_cast<std::uint8_t>(c); });
  return tokens;
}

Result<std::string> ByteTokenizer::Decode(std::span<const TokenId> tokens) const {
  std::string text;
  std::string bytes;  // between two tokens that are no bytes
  for (const TokenId token : tokens) {
    if (token <= kLastByte) {
      bytes.push_back(static_cast<char>(token));
      continue;
    }
    text += ReplaceIllFormedUtf8(bytes);
    text += kReplacementCharacter;
    bytes.clear();
  }
  text += ReplaceIllFormedUtf8(bytes);
  return text;
}

std::size_t ByteTokenizer::SettledTokens(std::span<const TokenId> tokens) const noexcept {
  std::size_t size = 0;  // of the bytes at the end, at most three
  while (size < std::min<std::size_t>(3, tokens.size()) && tokens[tokens.size() - 1 - size] <= kLastByte) ++size;
  std::string tail;
  for (const TokenId token : tokens.last(size)) tail.push_back(static_cast<char>(token));
  return tokens.size() - IncompleteUtf8Tail(tail);
}

}  // namespace kvwire::engine
