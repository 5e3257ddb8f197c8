// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/http/api_error.h"

namespace kvwire::engine {

// A message's fields by name in lower case; the values in the order they came, without the blanks around them.
using HttpFields = std::map<std::string, std::vector<std::string>, std::less<>>;

// All values of the name, joined by ", "; nothing when it did not come.
std::optional<std::string> FieldOf(const HttpFields& fields, std::string_view name_in_lower_case);

// What an HTTP message begins with.
struct HttpHead {
  std::string start_line;
  HttpFields fields;
};

// Reads a head byte by byte, strictly: lines end with CRLF, no line goes on in the next one, a name is a token right
// before its colon, and no control characters but the tab.
//
// Errors: known at the first byte, or line, that is wrong.
// Bounds: the caller's, who counts the bytes.
class HttpHeadParser {
 public:
  enum class State { kMore, kComplete, kFaulty };

  // The head of a message, or the fields after a body in chunks.
  static HttpHeadParser OfMessage() { return HttpHeadParser(Part::kStartLine); }
  static HttpHeadParser OfTrailer() { return HttpHeadParser(Part::kFields); }

  // REQUIRES: kMore until now.
  State Take(char byte);

  const HttpHead& head() const noexcept { return head_; }
  // Why it is kFaulty.
  const std::string& fault() const noexcept { return fault_; }

 private:
  enum class Part { kStartLine, kFields };

  explicit HttpHeadParser(Part part) : part_(part) {}

  State TakeLine();
  State Refuse(std::string fault);

  Part part_;
  std::string line_;
  HttpHead head_;
  std::string fault_;
};

// How long a body is.
struct HttpFraming {
  enum class Kind { kLength, kChunked, kUntilEnd };

  Kind kind = Kind::kLength;
  std::uint64_t length = 0;  // of kLength
};

// What the fields say; nothing when they say nothing.
// Errors: 400 for several lengths or one that is none, a length and a Transfer-Encoding, "chunked" that is not the last
// coding or comes twice; 501 for any other coding. The message names the field and its value.
ApiResult<std::optional<HttpFraming>> FramingOf(const HttpFields& fields);

// Of ASCII letters.
std::string LowerCase(std::string_view text);

}  // namespace kvwire::engine
