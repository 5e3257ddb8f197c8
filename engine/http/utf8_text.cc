// SPDX-License-Identifier: Apache-2.0
#include "engine/http/utf8_text.h"

#include <algorithm>
#include <array>

#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

// `part` and some continuation are a well-formed character, longer than `part`.
bool BeginsCharacter(std::string_view part) noexcept {
  // Of the bytes that may follow a lead byte, every lead byte takes 0x80 or 0xa0.
  for (const char next : {'\x80', '\xa0'}) {
    std::array<char, 4> character{next, '\x80', '\x80', '\x80'};
    std::copy(part.begin(), part.end(), character.begin());
    if (part.size() < character.size()) character[part.size()] = next;
    if (Utf8Length(std::string_view(character.data(), character.size())) > part.size()) return true;
  }
  return false;
}

}  // namespace

std::size_t WellFormedUtf8(std::string_view text) noexcept {
  std::size_t end = 0;
  while (end < text.size()) {
    const std::size_t length = Utf8Length(text.substr(end));
    if (length == 0) break;
    end += length;
  }
  return end;
}

std::string ReplaceIllFormedUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t good = WellFormedUtf8(text);
    out += text.substr(0, good);
    text.remove_prefix(good);
    if (text.empty()) break;
    out += kReplacementCharacter;
    text.remove_prefix(1);
  }
  return out;
}

std::size_t IncompleteUtf8Tail(std::string_view text) noexcept {
  for (std::size_t size = std::min<std::size_t>(3, text.size()); size > 0; --size) {
    if (BeginsCharacter(text.substr(text.size() - size))) return size;
  }
  return 0;
}

}  // namespace kvwire::engine
