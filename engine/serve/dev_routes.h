// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/faults/fault_script.h"
#include "engine/http/json_fields.h"
#include "engine/http/tokenizer.h"
#include "engine/serve/event_log.h"
#include "engine/serve/http_server.h"
#include "engine/serve/instance.h"

namespace kvwire::engine {

// Truth and faults on request, for those who develop consumers: what the pool really holds, which blocks of a prompt
// are there, the latest events, a page that shows them, and ways to disturb the stream. Open only with --dev: whoever
// reaches these paths can read every prompt's hashes and break the stream. docs/serve.md has the list.
//
// Threads: Install by the owner; the handlers run on the server's threads.
// Ownership: instance, logs and tokenizer outlive it; it outlives the server's Stop.
class DevRoutes {
 public:
  // `logs`: one per rank, filled by InstanceConfig::observe_batch.
  // `adapters`: the names of those that requests may name.
  DevRoutes(Instance* instance, const std::deque<EventLog>* logs, const Tokenizer* tokenizer,
            std::vector<std::string> adapters)
      : instance_(instance), logs_(logs), tokenizer_(tokenizer), adapters_(std::move(adapters)) {}
  DevRoutes(const DevRoutes&) = delete;
  DevRoutes& operator=(const DevRoutes&) = delete;

  // REQUIRES: before the server's Start.
  void Install(HttpServer* server);

 private:
  using Answer = ApiResult<std::string> (DevRoutes::*)(const HttpRequest&);

  void Add(HttpServer* server, const char* method, const char* path, Answer answer);

  ApiResult<std::string> State(const HttpRequest& request);
  ApiResult<std::string> Lookup(const HttpRequest& request);
  ApiResult<std::string> Pool(const HttpRequest& request);
  ApiResult<std::string> Events(const HttpRequest& request);
  ApiResult<std::string> Faults(const HttpRequest& request);
  ApiResult<std::string> FaultCounts(const HttpRequest& request);

  std::optional<scheduler::LoraAdapter> ReadAdapter(FieldReader* reader) const;
  ApiResult<std::uint32_t> RankOf(const HttpRequest& request) const;

  Status ExecuteNow(const Fault& fault, std::uint32_t rank);

  Instance* const instance_;
  const std::deque<EventLog>* const logs_;
  const Tokenizer* const tokenizer_;
  const std::vector<std::string> adapters_;
};

}  // namespace kvwire::engine
