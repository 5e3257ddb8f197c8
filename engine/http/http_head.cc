// SPDX-License-Identifier: Apache-2.0
#include "engine/http/http_head.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

bool IsTokenByte(char c) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         kOthers.find(c) != std::string_view::npos;
}

bool IsControl(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == '\x7f'; }

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t";
  const std::size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

}  // namespace

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return lower;
}

std::optional<std::string> FieldOf(const HttpFields& fields, std::string_view name_in_lower_case) {
  const auto found = fields.find(name_in_lower_case);
  if (found == fields.end()) return std::nullopt;
  return fmt::format("{}", fmt::join(found->second, ", "));
}

HttpHeadParser::State HttpHeadParser::Take(char byte) {
  const bool after_return = line_.ends_with('\r');
  if (byte == '\n' && after_return) {
    line_.pop_back();
    const State state = TakeLine();
    line_.clear();
    return state;
  }
  if (after_return || (IsControl(byte) && byte != '\r')) {
    const char wrong = after_return ? '\r' : byte;
    return Refuse(fmt::format("a line of its head has the byte 0x{:02x}, expected text and CRLF",
                              static_cast<unsigned char>(wrong)));
  }
  line_ += byte;
  return State::kMore;
}

HttpHeadParser::State HttpHeadParser::TakeLine() {
  if (part_ == Part::kStartLine) {
    part_ = Part::kFields;
    head_.start_line = line_;
    return line_.empty() ? Refuse("its first line is empty") : State::kMore;
  }
  if (line_.empty()) return State::kComplete;
  const std::size_t colon = std::min(line_.find(':'), line_.size());
  const std::string_view name = std::string_view(line_).substr(0, colon);
  if (colon == line_.size() || name.empty() || !std::ranges::all_of(name, IsTokenByte)) {
    return Refuse(fmt::format("a line of its head is \"{}\", expected a name, a colon right after it, and a value",
                              ShortText(line_)));
  }
  const std::string_view value = Trim(std::string_view(line_).substr(colon + 1));
  head_.fields[LowerCase(name)].emplace_back(value);
  return State::kMore;
}

HttpHeadParser::State HttpHeadParser::Refuse(std::string fault) {
  fault_ = std::move(fault);
  return State::kFaulty;
}

namespace {

ApiResult<std::optional<HttpFraming>> Wrong(int status, std::string message) {
  ApiError error = BadRequest(std::move(message));
  error.status = status;
  return tl::unexpected<ApiError>(std::move(error));
}

ApiResult<std::optional<HttpFraming>> FramingOfCodings(const std::string& value) {
  std::string_view rest = value;
  std::size_t chunked = 0;
  std::string other;
  std::string last;
  while (true) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    last = LowerCase(Trim(rest.substr(0, comma)));
    if (last == "chunked") {
      ++chunked;
    } else if (other.empty()) {
      other = last;
    }
    if (comma == rest.size()) break;
    rest.remove_prefix(comma + 1);
  }
  const std::string named = fmt::format("Transfer-Encoding is \"{}\", expected chunked", ShortText(value));
  if (chunked > 1 || !std::ranges::all_of(last, IsTokenByte) || last.empty() || other.starts_with("chunked") ||
      (chunked == 1 && last != "chunked")) {
    return Wrong(400, named);
  }
  if (chunked != 1 || !other.empty()) return Wrong(501, named);
  return HttpFraming{HttpFraming::Kind::kChunked, 0};
}

}  // namespace

ApiResult<std::optional<HttpFraming>> FramingOf(const HttpFields& fields) {
  const std::optional<std::string> coding = FieldOf(fields, "transfer-encoding");
  const std::optional<std::string> length = FieldOf(fields, "content-length");
  if (coding) {
    if (!length) return FramingOfCodings(*coding);
    return Wrong(400, fmt::format("Transfer-Encoding is \"{}\" and Content-Length \"{}\", expected one of them",
                                  ShortText(*coding), ShortText(*length)));
  }
  if (!length) return std::nullopt;
  const std::string& digits = *length;
  if (digits.empty() || !std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; })) {
    return Wrong(400, fmt::format("Content-Length is \"{}\", expected a number of bytes", ShortText(digits)));
  }
  HttpFraming framing;
  // More than fits is more than any bound.
  if (std::from_chars(digits.data(), digits.data() + digits.size(), framing.length).ec != std::errc()) {
    framing.length = std::numeric_limits<std::uint64_t>::max();
  }
  return framing;
}

}  // namespace kvwire::engine
