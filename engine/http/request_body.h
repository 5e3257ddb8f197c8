// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

#include <nlohmann/json.hpp>

#include "engine/http/api_error.h"

namespace kvwire::engine {

// Bounds of a request's body. kMaxBodyValues is what keeps a small text from becoming a large tree.
inline constexpr std::size_t kMaxBodyBytes = std::size_t{32} << 20;
inline constexpr std::size_t kMaxBodyValues = std::size_t{1} << 22;
inline constexpr std::size_t kMaxBodyDepth = 32;

// The JSON object that a request's body is.
// Errors: status 413 above kMaxBodyBytes; 400 for what is no UTF-8, no JSON or no object, for a key that an object has
// twice, a number that no double holds, more than kMaxBodyValues values, or objects and lists nested deeper than
// kMaxBodyDepth. The message says where; `name` is what it calls the text.
ApiResult<nlohmann::json> ParseBody(std::string_view body, std::string_view name = "the body");

}  // namespace kvwire::engine
