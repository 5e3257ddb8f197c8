// SPDX-License-Identifier: Apache-2.0
#include "kv_events/escape_text.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include <fmt/format.h>

namespace kvwire {

namespace {

bool IsBetween(char c, std::uint8_t low, std::uint8_t high) {
  const auto byte = static_cast<std::uint8_t>(c);
  return byte >= low && byte <= high;
}

// Characters without ink that end a line or turn the direction of what follows: U+200E, U+200F, U+2028 to U+202E,
// U+2066 to U+2069, U+FEFF.
bool IsLayoutControl(std::string_view character) {
  if (character.size() != 3) return false;
  const std::string_view head = character.substr(0, 2);
  const char last = character[2];
  return (head == "\xe2\x80" && (IsBetween(last, 0x8e, 0x8f) || IsBetween(last, 0xa8, 0xae))) ||
         (head == "\xe2\x81" && IsBetween(last, 0xa6, 0xa9)) || character == "\xef\xbb\xbf";
}

// `also` lists further characters to escape.
std::string Escape(std::string_view text, std::string_view also) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = Utf8Length(text);
    const bool control = (length == 1 && (IsBetween(text[0], 0x00, 0x1f) || text[0] == '\x7f')) ||
                         (length == 2 && text[0] == '\xc2' && IsBetween(text[1], 0x80, 0x9f));
    const std::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
    text.remove_prefix(character.size());
    if (length != 0 && !control && !IsLayoutControl(character) && also.find(character) == std::string_view::npos) {
      out += character;
      continue;
    }
    for (const char c : character) fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<std::uint8_t>(c));
  }
  return out;
}

}  // namespace

std::size_t Utf8Length(std::string_view text) noexcept {
  if (text.empty()) return 0;
  const auto lead = static_cast<std::uint8_t>(text[0]);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() < length) return 0;
  // Overlong forms, surrogates and what lies above U+10FFFF show in the first two bytes.
  const std::uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const std::uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (!IsBetween(text[1], low, high)) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (!IsBetween(text[i], 0x80, 0xbf)) return 0;
  }
  return length;
}

std::string EscapeText(std::string_view text) { return Escape(text, ""); }

std::string EscapeField(std::string_view text) { return Escape(text, " \\"); }

std::string ShortText(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return EscapeText(text);
  std::size_t end = limit;
  while (end > 0 && limit - end < 3 && IsBetween(text[end], 0x80, 0xbf)) --end;
  return EscapeText(text.substr(0, end)) + "...";
}

}  // namespace kvwire
