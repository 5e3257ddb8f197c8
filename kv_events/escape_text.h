// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvwire {

// How text that came from elsewhere (a payload, an argument, a file) goes into a message, a terminal or a file of
// lines: on one line, in valid UTF-8, and without power over the terminal.
// Threads: any.

// Bytes of the well-formed UTF-8 character at the beginning of `text`; 0 when there is none.
std::size_t Utf8Length(std::string_view text) noexcept;

// Control characters (C0, DEL, C1, line and paragraph separators, direction marks, byte order mark) and bytes that are
// no UTF-8 as \xNN, one per byte; the rest as it is. Escaped again it stays the same.
std::string EscapeText(std::string_view text);

// As EscapeText, for a field of a line whose fields end with a space: also spaces and backslashes. Different texts stay
// different.
std::string EscapeField(std::string_view text);

// As EscapeText; of a text above `limit` bytes only the beginning and "...".
std::string ShortText(std::string_view text, std::size_t limit = 60);

}  // namespace kvwire
