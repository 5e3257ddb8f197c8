// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include <tl/expected.hpp>

namespace kvwire::engine {

// A POST to a server over HTTP/1.1, on a connection of its own.
struct HttpCall {
  std::string host;  // name or address, an IPv6 address without brackets
  std::uint16_t port = 80;
  std::string path;
  std::string body;
  std::string content_type = "application/json";
  std::chrono::milliseconds connect_timeout{2000};
  std::chrono::milliseconds reply_timeout{30000};  // from the connection to the end of the reply
  std::size_t max_reply_bytes = std::size_t{32} << 20;
};

struct HttpReply {
  int status = 0;
  std::string body;
};

// The final reply, complete, whatever its status.
//
// Threads: any. Waiting also ends soon after CallerScope::Gone.
// Errors: what went wrong, without the address; also a reply that is packed, or is no HTTP/1.1.
// Bounds: those of the call; the reply's heads 64 KiB, its chunks' lengths and their like as much again as the body.
// Looking up the host's name takes what the resolver takes.
tl::expected<HttpReply, std::string> Call(const HttpCall& call);

}  // namespace kvwire::engine
