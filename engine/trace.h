// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv_events/error.h"
#include "kv_events/events.h"

namespace kvwire::engine {

// One line of a request trace. A value.
struct TraceRequest {
  std::uint64_t line = 0;               // counted from 1
  double timestamp_ms = 0;              // since the start of the trace
  std::uint32_t input_length = 0;       // prompt tokens
  std::uint32_t output_length = 0;      // tokens to draw
  std::vector<std::uint64_t> hash_ids;  // one for each kTraceChunk prompt tokens, the last may cover fewer

  friend bool operator==(const TraceRequest&, const TraceRequest&) = default;
};

// Prompt tokens that one hash id stands for.
inline constexpr std::uint32_t kTraceChunk = 512;

// Prompt tokens of a trace are below this; a runner that draws outside never repeats a prompt's block.
inline constexpr TokenId kTraceVocabulary = 1u << 17;

// Ids at or above this are refused.
inline constexpr std::uint64_t kMaxTraceId = std::uint64_t{1} << 34;

// Bounds of one request, so that a broken trace cannot ask for absurd memory.
inline constexpr std::uint32_t kMaxTraceTokens = 1u << 24;
inline constexpr std::size_t kMaxTraceLineBytes = std::size_t{1} << 20;

// Reads a line in the format of the traces published with Mooncake: a JSON object with timestamp (milliseconds),
// input_length, output_length and hash_ids; other keys are ignored.
// Errors: kInvalidArgument names line, field and value.
Result<TraceRequest> ParseTraceLine(std::uint64_t line, std::string_view text);

// The tokens [first, first + out.size()) of the chunk that `id` names. The same id gives the same tokens, and of two
// different ids every aligned pair of tokens differs, so all their blocks of two or more tokens do.
// REQUIRES: id < kMaxTraceId, first + out.size() <= kTraceChunk.
void FillTraceTokens(std::uint64_t id, std::uint32_t first, std::span<TokenId> out) noexcept;

// All tokens of a request's prompt.
std::vector<TokenId> TracePromptTokens(const TraceRequest& request);

// Reads a trace file line by line; blank lines are skipped.
// Threads: one thread at a time.
// Bounds: memory for one line of at most kMaxTraceLineBytes.
class TraceReader {
 public:
  static Result<std::unique_ptr<TraceReader>> Open(const std::string& path);

  // The next request; nothing at the end. After an error the reader is at its end.
  Result<std::optional<TraceRequest>> Next();

  // Share of the file that was read, 0 to 1.
  double progress() const noexcept;

 private:
  TraceReader(std::string path, std::ifstream file, std::uint64_t size)
      : path_(std::move(path)), file_(std::move(file)), size_(size) {}

  Result<bool> ReadLine();

  const std::string path_;
  std::ifstream file_;
  const std::uint64_t size_;
  std::uint64_t read_ = 0;
  std::uint64_t line_ = 0;
  std::string text_;
  bool ended_ = false;
};

}  // namespace kvwire::engine
