// SPDX-License-Identifier: Apache-2.0
#include "engine/trace.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

using Json = nlohmann::json;

// A value as it goes into a message.
std::string Print(const Json& value) { return ShortText(value.dump(-1, ' ', false, Json::error_handler_t::replace)); }

tl::unexpected<Error> FieldError(std::uint64_t line, std::string_view field, std::string_view value,
                                 std::string_view expected) {
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("trace line {}: {} is {}, expected {}", line, field, value, expected));
}

// The field, or null if it is not there.
const Json* Find(const Json& object, const char* field) {
  const auto found = object.find(field);
  return found == object.end() ? nullptr : &*found;
}

Result<std::uint32_t> ReadLength(std::uint64_t line, const Json& object, const char* field) {
  const std::string expected = fmt::format("an integer from 1 to {}", kMaxTraceTokens);
  const Json* value = Find(object, field);
  if (value == nullptr) return FieldError(line, field, "missing", expected);
  if (!value->is_number_unsigned() || value->get<std::uint64_t>() < 1 ||
      value->get<std::uint64_t>() > kMaxTraceTokens) {
    return FieldError(line, field, Print(*value), expected);
  }
  return value->get<std::uint32_t>();
}

Result<double> ReadTimestamp(std::uint64_t line, const Json& object) {
  constexpr std::string_view kExpected = "milliseconds, 0 or more";
  const Json* value = Find(object, "timestamp");
  if (value == nullptr) return FieldError(line, "timestamp", "missing", kExpected);
  if (!value->is_number() || !std::isfinite(value->get<double>()) || value->get<double>() < 0) {
    return FieldError(line, "timestamp", Print(*value), kExpected);
  }
  return value->get<double>();
}

Result<std::vector<std::uint64_t>> ReadHashIds(std::uint64_t line, const Json& object, std::uint32_t input_length) {
  const std::uint32_t count = (input_length + kTraceChunk - 1) / kTraceChunk;
  const std::string expected =
      fmt::format("a list of {} ids, one for each {} tokens of input_length {}", count, kTraceChunk, input_length);
  const Json* value = Find(object, "hash_ids");
  if (value == nullptr) return FieldError(line, "hash_ids", "missing", expected);
  if (!value->is_array()) return FieldError(line, "hash_ids", Print(*value), expected);
  if (value->size() != count) {
    return FieldError(line, "hash_ids", fmt::format("a list of {}", value->size()), expected);
  }
  std::vector<std::uint64_t> ids;
  ids.reserve(count);
  for (const Json& id : *value) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= kMaxTraceId) {
      return FieldError(line, fmt::format("hash_ids[{}]", ids.size()), Print(id),
                        fmt::format("an integer from 0 to {}", kMaxTraceId - 1));
    }
    ids.push_back(id.get<std::uint64_t>());
  }
  return ids;
}

// The two tokens of a chunk's pair number `pair`: a Feistel network over the id's two 17-bit halves. It is a bijection
// for each pair number, which is what makes different ids differ everywhere.
std::array<TokenId, 2> TokenPair(std::uint64_t id, std::uint32_t pair) noexcept {
  constexpr std::uint32_t kMask = kTraceVocabulary - 1;
  std::uint32_t left = static_cast<std::uint32_t>(id >> 17) & kMask;
  std::uint32_t right = static_cast<std::uint32_t>(id) & kMask;
  for (std::uint32_t round = 0; round < 4; ++round) {
    std::uint32_t mixed = (right + (pair * 4 + round + 1) * 0x9e3779b9u) * 0x85ebca6bu;
    mixed = (mixed ^ (mixed >> 15)) * 0xc2b2ae35u;
    const std::uint32_t next = left ^ ((mixed >> 12) & kMask);
    left = right;
    right = next;
  }
  return {left, right};
}

}  // namespace

Result<TraceRequest> ParseTraceLine(std::uint64_t line, std::string_view text) {
  const Json object = Json::parse(text, nullptr, false);
  if (!object.is_object()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("trace line {}: \"{}\" is not a JSON object", line, ShortText(text)));
  }
  TraceRequest request;
  request.line = line;
  const Result<double> timestamp = ReadTimestamp(line, object);
  if (!timestamp) return tl::unexpected<Error>(timestamp.error());
  request.timestamp_ms = *timestamp;
  const Result<std::uint32_t> input = ReadLength(line, object, "input_length");
  if (!input) return tl::unexpected<Error>(input.error());
  request.input_length = *input;
  const Result<std::uint32_t> output = ReadLength(line, object, "output_length");
  if (!output) return tl::unexpected<Error>(output.error());
  request.output_length = *output;
  Result<std::vector<std::uint64_t>> ids = ReadHashIds(line, object, request.input_length);
  if (!ids) return tl::unexpected<Error>(std::move(ids).error());
  request.hash_ids = *std::move(ids);
  return request;
}

void FillTraceTokens(std::uint64_t id, std::uint32_t first, std::span<TokenId> out) noexcept {
  std::size_t i = 0;
  if (first % 2 == 1 && !out.empty()) out[i++] = TokenPair(id, first / 2)[1];
  for (; i + 1 < out.size(); i += 2) {
    const std::array<TokenId, 2> pair = TokenPair(id, (first + static_cast<std::uint32_t>(i)) / 2);
    out[i] = pair[0];
    out[i + 1] = pair[1];
  }
  if (i < out.size()) out[i] = TokenPair(id, (first + static_cast<std::uint32_t>(i)) / 2)[0];
}

std::vector<TokenId> TracePromptTokens(const TraceRequest& request) {
  std::vector<TokenId> tokens(request.input_length);
  for (std::size_t i = 0; i < request.hash_ids.size(); ++i) {
    const std::size_t first = i * kTraceChunk;
    if (first >= tokens.size()) break;
    const std::size_t count = std::min<std::size_t>(kTraceChunk, tokens.size() - first);
    FillTraceTokens(request.hash_ids[i], 0, std::span(tokens).subspan(first, count));
  }
  return tokens;
}

Result<std::unique_ptr<TraceReader>> TraceReader::Open(const std::string& path) {
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown)) {
    return MakeError(ErrorCode::kUnavailable, fmt::format("cannot read the trace \"{}\": is a directory", path));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : -1;
  if (size < 0 || !file.seekg(0)) {
    return MakeError(ErrorCode::kUnavailable,
                     fmt::format("cannot read the trace \"{}\": {}", path, std::strerror(errno != 0 ? errno : EIO)));
  }
  return std::unique_ptr<TraceReader>(new TraceReader(path, std::move(file), static_cast<std::uint64_t>(size)));
}

Result<bool> TraceReader::ReadLine() {
  text_.clear();
  std::streambuf& buffer = *file_.rdbuf();
  for (int c = buffer.sbumpc(); c != std::char_traits<char>::eof(); c = buffer.sbumpc()) {
    ++read_;
    if (c == '\n') {
      ++line_;
      return true;
    }
    if (text_.size() == kMaxTraceLineBytes) {
      return MakeError(ErrorCode::kInvalidArgument, fmt::format("trace line {} of \"{}\" is longer than {} bytes",
                                                                line_ + 1, path_, kMaxTraceLineBytes));
    }
    text_.push_back(static_cast<char>(c));
  }
  if (!text_.empty()) ++line_;
  return !text_.empty();
}

Result<std::optional<TraceRequest>> TraceReader::Next() {
  while (!ended_) {
    Result<bool> line = ReadLine();
    if (!line) {
      ended_ = true;
      return tl::unexpected<Error>(std::move(line).error());
    }
    ended_ = !*line;
    if (ended_ || text_.find_first_not_of(" \t\r") == std::string::npos) continue;
    Result<TraceRequest> request = ParseTraceLine(line_, text_);
    if (!request) {
      ended_ = true;
      return tl::unexpected<Error>(std::move(request).error());
    }
    return std::optional<TraceRequest>(*std::move(request));
  }
  return std::optional<TraceRequest>();
}

double TraceReader::progress() const noexcept {
  return size_ == 0 ? 1.0 : static_cast<double>(read_) / static_cast<double>(size_);
}

}  // namespace kvwire::engine
