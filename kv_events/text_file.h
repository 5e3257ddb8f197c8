// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "kv_events/error.h"

namespace kvwire {

// All of a file.
// Errors: name the file; kUnavailable why it cannot be read, kInvalidArgument when it has more than max_bytes.
Result<std::string> ReadTextFile(const std::string& path, std::size_t max_bytes);

// The first line of `text`, without its end; it is taken from the text. REQUIRES: the text is not empty.
std::string_view TakeLine(std::string_view* text) noexcept;

}  // namespace kvwire
