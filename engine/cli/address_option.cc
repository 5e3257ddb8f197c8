// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/address_option.h"

#include <fmt/format.h>

namespace kvwire::engine {

Result<Endpoint> ParseAddress(const std::string& text, std::string_view flag) {
  Result<Endpoint> endpoint = Endpoint::Parse(text, flag);
  if (endpoint && endpoint->scheme == Endpoint::Scheme::kInproc) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{}: \"{}\": nobody outside this process can reach it; allowed: tcp://HOST:PORT or "
                                 "ipc://PATH",
                                 flag, text));
  }
  if (!endpoint && text.find(',') != std::string::npos) {
    return MakeError(endpoint.error().code, endpoint.error().message +
                                                "; a replay address behind a comma is written in full: "
                                                "tcp://HOST:PORT,tcp://HOST:PORT");
  }
  return endpoint;
}

}  // namespace kvwire::engine
