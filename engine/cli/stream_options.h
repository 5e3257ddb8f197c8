// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "engine/cli/stream_source.h"
#include "kv_events/error.h"
#include "kv_events/transport/curve_keys.h"

namespace kvwire::engine {

// Which streams a command watches.
struct StreamOptions {
  std::vector<std::string> endpoints;  // empty, and no file: kDefaultEndpoint
  std::string replay_endpoint;
  std::string topic;
  std::string file;
  std::int64_t dp_size = 1;                  // ranks of each instance that does not say how many it has
  double dns_interval = 30;                  // seconds, as the next
  double link_heartbeat = 5;                 // 0: none
  std::shared_ptr<const CurveClient> curve;  // null: publishers are open

  static constexpr const char* kDefaultEndpoint = "tcp://localhost:5557";
};

void AddStreamOptions(CLI::App& command, StreamOptions* options);

// --dp-size, of the commands that watch instances.
void AddDpSize(CLI::App& command, std::int64_t* dp_size);

// LinkOptions::heartbeat.
std::chrono::milliseconds LinkHeartbeat(const StreamOptions& options);

// What --endpoint says when it is all there is and names one stream: its address, its replay endpoint and its rank, if
// they are said.
struct OneEndpoint {
  std::string endpoint;
  std::string replay_endpoint;
  std::optional<std::int64_t> rank = std::nullopt;
};
std::optional<OneEndpoint> OnlyEndpoint(const StreamOptions& options);

// Errors: name the flag, the value and what is allowed.
Result<std::vector<std::unique_ptr<StreamSource>>> MakeSources(const StreamOptions& options);

}  // namespace kvwire::engine
