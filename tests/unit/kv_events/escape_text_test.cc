// SPDX-License-Identifier: Apache-2.0
#include "kv_events/escape_text.h"

#include <string>

#include <doctest/doctest.h>

namespace kvwire {
namespace {

TEST_CASE("control characters and bytes that are no UTF-8 are escaped, the rest is kept") {
  CHECK(EscapeText("") == "");
  CHECK(EscapeText("GPU 0, \"x\" \\ y") == "GPU 0, \"x\" \\ y");
  CHECK(EscapeText("h\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80") == "h\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80");
  CHECK(EscapeText(std::string("a\0b", 3)) == "a\\x00b");
  CHECK(EscapeText("\x1b[31m\r\n\t\x7f") == "\\x1b[31m\\x0d\\x0a\\x09\\x7f");
  // C1: U+009B begins a terminal's commands as ESC [ does; U+00A0 is no control character.
  CHECK(EscapeText("\xc2\x9b\xc2\x80\xc2\xa0") == "\\xc2\\x9b\\xc2\\x80\xc2\xa0");
  CHECK(EscapeText("\xff\x80z") == "\\xff\\x80z");
  CHECK(EscapeText("\xc0\xaf") == "\\xc0\\xaf");
  CHECK(EscapeText("\xed\xa0\x80") == "\\xed\\xa0\\x80");
  CHECK(EscapeText("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");
  CHECK(EscapeText("\xe4\xb8") == "\\xe4\\xb8");
}

TEST_CASE("an escaped text escapes to itself") {
  const std::string once = EscapeText("\x1b\xff\n");
  CHECK(EscapeText(once) == once);
}

TEST_CASE("a field keeps no space, and different texts stay different") {
  CHECK(EscapeField("CPU pinned") == "CPU\\x20pinned");
  CHECK(EscapeField("a\\x20b") == "a\\x5cx20b");
  CHECK(EscapeField("\n") != EscapeField("\\x0a"));
  CHECK(EscapeField("GPU") == "GPU");
}

TEST_CASE("a long text is cut between characters before it is escaped") {
  CHECK(ShortText("short") == "short");
  CHECK(ShortText(std::string(61, '9')) == std::string(60, '9') + "...");
  CHECK(ShortText("abc\xc3\xa9z", 4) == "abc...");
  CHECK(ShortText("ab\n\n", 3) == "ab\\x0a...");
  CHECK(ShortText(std::string(100, '\x80'), 5).ends_with("\\x80..."));
}

TEST_CASE("the length of a character is that of well-formed UTF-8 only") {
  CHECK(Utf8Length("") == 0);
  CHECK(Utf8Length("ab") == 1);
  CHECK(Utf8Length("\xc3\xa9") == 2);
  CHECK(Utf8Length("\xe0\xa0\x80") == 3);
  CHECK(Utf8Length("\xe0\x9f\x80") == 0);
  CHECK(Utf8Length("\xf0\x90\x80\x80z") == 4);
  CHECK(Utf8Length("\xf0\x8f\x80\x80") == 0);
  CHECK(Utf8Length("\xf5\x80\x80\x80") == 0);
  CHECK(Utf8Length("\xc3") == 0);
}

TEST_CASE("characters that end a line or turn its direction are escaped, their neighbours are not") {
  for (const char* hidden :
       {"\u200e", "\u200f", "\u2028", "\u2029", "\u202a", "\u202e", "\u2066", "\u2069", "\ufeff"}) {
    const std::string escaped = EscapeText(std::string("a") + hidden + "b");
    CAPTURE(escaped);
    CHECK(escaped.size() == 14);
    CHECK(escaped.find("\\x") == 1);
  }
  for (const char* shown : {"\u2010", "\u2027", "\u202f", "\u2065", "\u206a", "\ufefe", "\u4e2d"}) {
    CHECK(EscapeText(shown) == shown);
  }
}

}  // namespace
}  // namespace kvwire
