// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/serve/http_message.h"
#include "kv_events/error.h"

namespace kvwire::engine {

// An HTTP/1.1 server. httplib reads the requests and writes the responses; sockets, threads and time limits are here.
// A request is handled on the thread of its connection.
//
// Threads: Handle, Start, StopAccepting and Stop by the owner; handlers run on many threads at once, so what they use
// outlives Stop.
// Errors: what a client does wrong is answered with an OpenAI error object: the faults of an IncomingRequest, 404 for
// an unknown path, 405 for a method that the path does not have, 413, 415 for a body that is packed in an unknown way;
// 500 for an exception of a handler. Bounds: max_threads connections are served; as many wait for their turn, and more
// are closed at once. While some wait, connections that have no request are closed. A body is kMaxBodyBytes at most,
// unpacked; the other bounds of a request are those of HttpConnection.
class HttpServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";  // name or address; empty: every interface
    std::uint16_t port = 0;          // 0: the system chooses
    std::size_t max_threads = 256;
    std::chrono::milliseconds head_time{10000};  // from a request's first byte to the end of its line and headers
    std::chrono::milliseconds patience{30000};   // with a client that is silent within a request, or does not read
    std::chrono::milliseconds keep_alive{5000};  // between two requests
  };

  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  // Binds and listens; connections wait until Start. Nobody else can listen there.
  // Errors: the message names the address; kAddressInUse when it is taken, else kInvalidArgument for a host that is no
  // address of this machine, or kUnavailable.
  static Result<std::unique_ptr<HttpServer>> Create(Options options);
  // Stop.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Answers the method, "GET" or "POST", at exactly this path. HEAD is answered like GET. REQUIRES: before Start.
  void Handle(const std::string& method, const std::string& path, Handler handler);

  // What is added to the answer 404 for a path that begins like this: "there is no path \"...\" REASON".
  // REQUIRES: before Start.
  void ExplainMissing(const std::string& prefix, const std::string& reason);

  Status Start();

  // "127.0.0.1:8000" or "[::1]:8000", with the real port.
  std::string address() const;
  std::uint16_t port() const;

  // Requests that are being answered.
  std::size_t num_active() const;

  // Refuses new connections, closes idle ones and every other after its response.
  void StopAccepting();

  // Ends what is running and joins. Idempotent.
  void Stop();

 private:
  class Impl;

  explicit HttpServer(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvwire::engine
