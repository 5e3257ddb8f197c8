// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvwire::engine {

// What stands for bytes that are no text: U+FFFD in UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

// Bytes of the longest beginning of `text` that is well-formed UTF-8; its size when all of it is.
std::size_t WellFormedUtf8(std::string_view text) noexcept;

// `text` with every byte that belongs to no well-formed character replaced by U+FFFD.
std::string ReplaceIllFormedUtf8(std::string_view text);

// Bytes at the end of `text` that are the beginning of a character and not all of it: 0 to 3.
std::size_t IncompleteUtf8Tail(std::string_view text) noexcept;

}  // namespace kvwire::engine
