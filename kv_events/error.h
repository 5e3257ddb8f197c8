// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include <tl/expected.hpp>

namespace kvwire {

// What the caller can do about a failure to build or configure something.
enum class ErrorCode {
  kInvalidArgument,  // a value is not allowed; the message names the field, the value and what is allowed
  kAddressInUse,     // a socket could not be bound because somebody else holds the address
  kUnavailable,      // the environment refused (file, socket, memory); trying again may help
  kUnsupported,      // the value is known but this build does not offer it
};

// An explained failure. A value: copyable and comparable.
struct Error {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string message;

  friend bool operator==(const Error&, const Error&) = default;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = tl::expected<void, Error>;

inline tl::unexpected<Error> MakeError(ErrorCode code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}

}  // namespace kvwire
