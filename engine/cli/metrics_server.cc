// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/metrics_server.h"

#include <charconv>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "engine/cli/stream_metrics.h"
#include "kv_events/clock.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

constexpr std::size_t kThreads = 8;
// A scraper asks at once and reads what it gets; whoever does not must not be in its way.
constexpr std::chrono::milliseconds kPatience{1000};

Result<HttpServer::Options> ParseOptions(const std::string& address) {
  HttpServer::Options options;
  options.max_threads = kThreads;
  options.head_time = kPatience;
  options.patience = kPatience;
  options.keep_alive = kPatience;
  const std::size_t colon = address.rfind(':');
  std::string_view port = address;
  if (colon != std::string::npos) {
    std::string host = address.substr(0, colon);
    port = std::string_view(address).substr(colon + 1);
    const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
    if (brackets) host = host.substr(1, host.size() - 2);
    if (!brackets && host.find(':') != std::string::npos) port = {};
    if (host == "*") {
      options.host.clear();
    } else if (!host.empty()) {
      options.host = std::move(host);
    }
  }
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), options.port);
  if (port.empty() || error != std::errc() || end != port.data() + port.size()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("--metrics \"{}\": that is no address; allowed: PORT, HOST:PORT or [IPV6]:PORT, the "
                                 "port 0 to 65535, the host * for every interface",
                                 ShortText(address)));
  }
  return options;
}

}  // namespace

Result<std::unique_ptr<MetricsServer>> MetricsServer::Create(const std::string& address, Figures figures) {
  auto options = ParseOptions(address);
  if (!options) return tl::unexpected<Error>(options.error());
  auto http = HttpServer::Create(*std::move(options));
  if (!http) {
    return MakeError(http.error().code, fmt::format("--metrics {}: {}", ShortText(address), http.error().message));
  }
  std::unique_ptr<MetricsServer> server(new MetricsServer);
  server->http_ = *std::move(http);
  server->http_->Handle("GET", "/metrics", [figures = std::move(figures)](const HttpRequest&) {
    HttpResponse response;
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = StreamMetricsText(figures(), SystemClock::Get().Now());
    return response;
  });
  const Status started = server->http_->Start();
  if (!started)
    return MakeError(started.error().code, fmt::format("--metrics {}: {}", address, started.error().message));
  return server;
}

}  // namespace kvwire::engine
