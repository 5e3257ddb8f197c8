// SPDX-License-Identifier: Apache-2.0
#include "engine/http/utf8_text.h"

#include <cstdint>
#include <string>

#include <doctest/doctest.h>

#include "kv_events/escape_text.h"

namespace kvwire::engine {
namespace {

// A character of Unicode in UTF-8.
std::string Utf8(std::uint32_t c) {
  const auto tail = [c](int shift) { return static_cast<char>(0x80 | ((c >> shift) & 0x3f)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xc0 | (c >> 6)), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xe0 | (c >> 12)), tail(6), tail(0)};
  return {static_cast<char>(0xf0 | (c >> 18)), tail(12), tail(6), tail(0)};
}

TEST_CASE("every proper beginning of a character is incomplete, and no whole character is") {
  for (std::uint32_t c = 0; c <= 0x10ffff; c += 7) {
    if (c >= 0xd800 && c <= 0xdfff) continue;
    const std::string text = Utf8(c);
    REQUIRE(WellFormedUtf8(text) == text.size());
    REQUIRE(IncompleteUtf8Tail("x" + text) == 0);
    for (std::size_t size = 1; size < text.size(); ++size) {
      REQUIRE(IncompleteUtf8Tail("x" + text.substr(0, size)) == size);
    }
  }
}

TEST_CASE("bytes that no character begins with are not incomplete") {
  for (const char* text :
       {"", "\x80", "\xff", "\xc0", "\xc1", "\xf5", "\xe0\x80", "\xed\xa0", "\xf0\x80", "\xf4\x90"}) {
    CHECK(IncompleteUtf8Tail(text) == 0);
  }
}

TEST_CASE("each byte of no character is replaced by itself") {
  CHECK(ReplaceIllFormedUtf8("") == "");
  CHECK(ReplaceIllFormedUtf8("a\xc3\xa9z") == "a\xc3\xa9z");
  CHECK(ReplaceIllFormedUtf8("a\xe2\x82z\xff") == "a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd");
}

}  // namespace
}  // namespace kvwire::engine
