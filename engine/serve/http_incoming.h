// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include <sys/types.h>

#include "engine/http/api_error.h"
#include "engine/http/http_body_reader.h"
#include "engine/http/http_head.h"
#include "engine/serve/http_connection.h"
#include "engine/serve/http_message.h"

namespace kvwire::engine {

// A request while it comes in: its head is read and judged at once, its body when somebody wants it.
//
// Threads: that of its connection. Ownership: the connection outlives it.
// Errors: 400 for a head that is no HTTP or does not say for certain where the body ends, 408 for one that takes too
// long, 431 for one that is too long, 501 for a Transfer-Encoding other than chunked.
// Bounds: the connection's; the head's time is `head_time`.
class IncomingRequest {
 public:
  // Reads the head. REQUIRES: AwaitRequest was true.
  IncomingRequest(HttpConnection* connection, std::chrono::milliseconds head_time);

  // Why it cannot be answered; then nobody knows where the next one begins.
  const std::optional<ApiError>& fault() const noexcept { return fault_; }

  // The head for a parser of requests: the first line as it came, of the fields those that it needs. That of some other
  // request where there is a fault.
  std::string HeadForParser() const;

  // The fields for a handler.
  HttpRequest::Fields Fields() const;

  bool is_http_1_0() const noexcept { return is_http_1_0_; }
  bool has_body() const noexcept;
  // The body says to be longer than that.
  bool IsLongerThan(std::size_t bytes) const noexcept;
  // The Content-Encoding if the body is packed, in lower case.
  std::optional<std::string> Packing() const;

  // Some bytes of the body, after telling a client that asks first to go on; 0 at its end, -1 when there is no end or
  // it is broken, which BodyFault explains.
  ssize_t ReadBody(char* data, std::size_t size);
  ApiError BodyFault() const;

 private:
  void ReadHead(std::chrono::milliseconds head_time);
  void JudgeHead();
  void Refuse(int status, std::string message);

  HttpConnection* const connection_;
  HttpHead head_;
  std::optional<ApiError> fault_;
  bool is_http_1_0_ = false;
  bool asks_first_ = false;
  HttpFraming framing_;
  std::optional<HttpBodyReader> body_;
};

}  // namespace kvwire::engine
