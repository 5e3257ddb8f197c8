// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include <tl/expected.hpp>

namespace kvwire::engine {

enum class HttpMethod : std::uint8_t { kGet, kPost };

// A request to a server over HTTP/1.1, on a connection of its own.
struct HttpCall {
  HttpMethod method = HttpMethod::kPost;
  std::string host;  // name or address, an IPv6 address without brackets
  std::uint16_t port = 80;
  std::string path;  // with the query, if any
  std::string body;  // of kPost, as the next
  std::string content_type = "application/json";
  std::chrono::milliseconds connect_timeout{2000};  // to look up the name and to connect
  std::chrono::milliseconds reply_timeout{30000};   // all of it, from the look-up to the end of the reply
  std::size_t max_reply_bytes = std::size_t{32} << 20;
};

struct HttpReply {
  int status = 0;
  std::string body;
};

// The final reply, complete, whatever its status. Follows no redirect, and asks no proxy.
//
// Threads: any. Waiting also ends soon after CallerScope::Gone.
// Errors: what went wrong, without the address; also a reply that is packed, or is no HTTP/1.1.
// Bounds: those of the call; the reply's heads and trailers 64 KiB, its chunks' lengths and their like as much again as
// the body. A look-up that is given up ends by itself, on a thread that nobody waits for.
tl::expected<HttpReply, std::string> Call(const HttpCall& call);

}  // namespace kvwire::engine
