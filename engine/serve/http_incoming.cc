// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/http_incoming.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

// Whether one of the field's values, a list, is this one.
bool Has(const HttpFields& fields, std::string_view name, std::string_view value) {
  const std::string list = LowerCase(FieldOf(fields, name).value_or("")) + ",";
  for (std::size_t begin = 0, end = 0; (end = list.find(',', begin)) != std::string::npos; begin = end + 1) {
    std::string_view one = std::string_view(list).substr(begin, end - begin);
    one.remove_prefix(std::min(one.find_first_not_of(" \t"), one.size()));
    if (one.substr(0, one.find_last_not_of(" \t") + 1) == value) return true;
  }
  return false;
}

}  // namespace

IncomingRequest::IncomingRequest(HttpConnection* connection, std::chrono::milliseconds head_time)
    : connection_(connection) {
  ReadHead(head_time);
  if (!fault_) JudgeHead();
  if (fault_) return;
  connection_->OnHeadRead();
  body_.emplace(framing_, [this](char* data, std::size_t size) { return connection_->Read(data, size); });
}

void IncomingRequest::Refuse(int status, std::string message) {
  fault_ = BadRequest(std::move(message));
  fault_->status = status;
}

void IncomingRequest::ReadHead(std::chrono::milliseconds head_time) {
  HttpHeadParser parser = HttpHeadParser::OfMessage();
  auto state = HttpHeadParser::State::kMore;
  while (state == HttpHeadParser::State::kMore) {
    char byte = 0;
    if (connection_->Read(&byte, 1) == 1) {
      state = parser.Take(byte);
      continue;
    }
    switch (connection_->end()) {
      case HttpConnection::End::kTime:
        return Refuse(408, fmt::format("the request's line and headers did not come within {} ms", head_time.count()));
      case HttpConnection::End::kBytes:
        return Refuse(
            431, fmt::format("the request's line and headers are longer than {} bytes", HttpConnection::kMaxHeadBytes));
      case HttpConnection::End::kClosed:
        return Refuse(400, "the request ends within its line and headers");
    }
  }
  head_ = parser.head();
  if (state == HttpHeadParser::State::kFaulty) {
    Refuse(400, fmt::format("the request is no well-formed HTTP/1.1 request: {}", parser.fault()));
  }
}

void IncomingRequest::JudgeHead() {
  const std::string& line = head_.start_line;
  is_http_1_0_ = line.ends_with(" HTTP/1.0");
  // A method and a target before the version, with one blank between two of them.
  const std::size_t blank = line.find(' ');
  const bool is_whole = (is_http_1_0_ || line.ends_with(" HTTP/1.1")) && std::ranges::count(line, ' ') == 2 &&
                        blank != 0 && line[blank + 1] != ' ';
  if (!is_whole || line.find('\t') != std::string::npos) {
    return Refuse(
        400, fmt::format("the request is no well-formed HTTP/1.1 request: its first line is \"{}\"", ShortText(line)));
  }
  auto framing = FramingOf(head_.fields);
  if (!framing) {
    fault_ = std::move(framing).error();
    return;
  }
  framing_ = framing->value_or(HttpFraming{});
  if (is_http_1_0_ && framing_.kind == HttpFraming::Kind::kChunked) {
    return Refuse(400, "Transfer-Encoding is \"chunked\" in a request of HTTP/1.0, expected a Content-Length");
  }
  asks_first_ = !is_http_1_0_ && has_body() && Has(head_.fields, "expect", "100-continue");
}

std::string IncomingRequest::HeadForParser() const {
  if (fault_) {
    // The response to HEAD has no body.
    const bool is_head = head_.start_line.starts_with("HEAD ");
    return fmt::format("{} / HTTP/1.1\r\nConnection: close\r\n\r\n", is_head ? "HEAD" : "GET");
  }
  std::string head = head_.start_line + "\r\n";
  if (Has(head_.fields, "connection", "close")) {
    head += "Connection: close\r\n";
  } else if (is_http_1_0_ && Has(head_.fields, "connection", "keep-alive")) {
    head += "Connection: Keep-Alive\r\n";
  }
  if (const auto packing = Packing()) head += fmt::format("Content-Encoding: {}\r\n", *packing);
  return head + "\r\n";
}

HttpRequest::Fields IncomingRequest::Fields() const {
  HttpRequest::Fields fields;
  for (const auto& [name, values] : head_.fields) {
    std::vector<std::string_view> distinct;
    for (const std::string& value : values) {
      if (std::ranges::find(distinct, value) == distinct.end()) distinct.push_back(value);
    }
    fields.emplace(name, fmt::format("{}", fmt::join(distinct, ", ")));
  }
  return fields;
}

bool IncomingRequest::has_body() const noexcept {
  return framing_.kind == HttpFraming::Kind::kChunked || framing_.length > 0;
}

bool IncomingRequest::IsLongerThan(std::size_t bytes) const noexcept {
  return framing_.kind == HttpFraming::Kind::kLength && framing_.length > bytes;
}

std::optional<std::string> IncomingRequest::Packing() const {
  std::string packing = LowerCase(FieldOf(head_.fields, "content-encoding").value_or(""));
  if (packing.empty() || packing == "identity") return std::nullopt;
  return packing;
}

ssize_t IncomingRequest::ReadBody(char* data, std::size_t size) {
  constexpr std::string_view kGoOn = "HTTP/1.1 100 Continue\r\n\r\n";
  if (std::exchange(asks_first_, false) && !connection_->HasInput() &&
      connection_->Write(kGoOn.data(), kGoOn.size()) < 0) {
    return -1;
  }
  return body_ ? body_->Read(data, size) : -1;
}

ApiError IncomingRequest::BodyFault() const {
  switch (connection_->end()) {
    case HttpConnection::End::kTime: {
      ApiError error = BadRequest("the request's body did not come in time");
      error.status = 408;
      return error;
    }
    case HttpConnection::End::kBytes:
      return PayloadTooLarge(fmt::format("the request is longer than {} bytes", HttpConnection::kMaxRequestBytes));
    case HttpConnection::End::kClosed:
      break;
  }
  return BadRequest("the request's body is not complete and well-formed");
}

}  // namespace kvwire::engine
