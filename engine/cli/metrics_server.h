// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/serve/http_server.h"
#include "kv_events/error.h"
#include "kv_events/subscribe/stream_figures.h"

namespace kvwire::engine {

// Answers GET /metrics with the figures of watched streams.
// Threads: of the owner; `figures` is called by many at once, until the server is destroyed.
class MetricsServer {
 public:
  using Figures = std::function<std::vector<StreamFigures>()>;

  // `address`: "PORT", ":PORT", "HOST:PORT" or "[IPV6]:PORT"; loopback unless it says a host, "*" for every interface.
  // Errors: name --metrics, the address and what is allowed, or why it cannot be had.
  static Result<std::unique_ptr<MetricsServer>> Create(const std::string& address, Figures figures);

  // "http://127.0.0.1:9100/metrics", with the real port.
  std::string url() const { return "http://" + http_->address() + "/metrics"; }

 private:
  MetricsServer() = default;

  std::unique_ptr<HttpServer> http_;
};

}  // namespace kvwire::engine
