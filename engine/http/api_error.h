// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <tl/expected.hpp>

namespace kvwire::engine {

// Why an HTTP request is not answered as asked. A value.
struct ApiError {
  int status = 400;                  // of the HTTP response; also the "code" of its body
  std::string message;               // names the field, the value and what is allowed
  std::string type;                  // the class of error by name, e.g. "BadRequestError"
  std::optional<std::string> param;  // the field at fault

  friend bool operator==(const ApiError&, const ApiError&) = default;
};

template <class T>
using ApiResult = tl::expected<T, ApiError>;

// Each with the status and the type that its name says.
ApiError BadRequest(std::string param, std::string message);
ApiError BadRequest(std::string message);                   // no field is at fault
ApiError NotFound(std::string message);                     // no such path
ApiError NotFound(std::string param, std::string message);  // e.g. no such model
ApiError MethodNotAllowed(std::string message);
ApiError PayloadTooLarge(std::string message);
ApiError TooManyRequests(std::string message);
ApiError InternalError(std::string message);
ApiError Unavailable(std::string message);

// The body of an error response: {"error":{"message","type","param","code"}}, code a number, as vLLM has it; the openai
// Python client takes it for text. Bytes of the message that are no UTF-8 become U+FFFD.
std::string ToJson(const ApiError& error);

}  // namespace kvwire::engine
