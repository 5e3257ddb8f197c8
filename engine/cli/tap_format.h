// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include <nlohmann/json.hpp>

#include "kv_events/subscribe/stream_checker.h"
#include "kv_events/subscribe/stream_sink.h"

namespace kvwire::engine {

// Keys stay in the order in which they were written.
using Json = nlohmann::ordered_json;

// A line per event: number, time, rank, event; at most `max_lines` of them. Then a line per rejected event. Texts from
// the payload are escaped.
std::string BatchAsText(const StreamMessage& message, const DecodedBatch& batch, std::size_t max_lines);

// The whole batch with the wire's names; hashes in hexadecimal.
Json BatchAsJson(const StreamMessage& message, const DecodedBatch& batch);

Json ViolationAsJson(const Violation& violation);

// One line; bytes that are not UTF-8 are replaced, and control characters are escaped, also those that JSON lets pass.
std::string JsonLine(const Json& value);

}  // namespace kvwire::engine
