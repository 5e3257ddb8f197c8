// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <httplib.h>
#include <nlohmann/json.hpp>

#include "engine/http/tokenizer.h"
#include "engine/serve/egress_thread.h"
#include "engine/serve/http_server.h"
#include "engine/serve/instance.h"
#include "engine/serve/routes.h"
#include "tests/support/stream_support.h"

namespace kvwire::test {

// Two ports of its own for each rank's events, letters for tokens, blocks of four.
engine::InstanceConfig SmallInstance(std::uint32_t ranks = 1);

// An event as it came over the wire.
struct SeenEvent {
  enum class Kind { kStored, kRemoved, kCleared };

  Kind kind = Kind::kCleared;
  std::size_t blocks = 0;
  bool has_parent = false;
  SequenceNumber batch = 0;
  std::int64_t rank = -1;

  friend bool operator==(const SeenEvent&, const SeenEvent&) = default;
};

// A BlockStored as it came over the wire, as a value.
struct SeenStore {
  std::vector<BlockHash> block_hashes;
  std::optional<BlockHash> parent_block_hash;
  std::vector<TokenId> token_ids;
  std::optional<std::int64_t> lora_id;
  std::optional<std::string> lora_name;
  std::vector<ExtraKeys> extra_keys;
  std::optional<std::uint32_t> group_idx;

  friend bool operator==(const SeenStore&, const SeenStore&) = default;
};

// A server in this process, on a port of its own.
class ServerBench {
 public:
  explicit ServerBench(engine::InstanceConfig config = SmallInstance(), engine::RoutesConfig routes = {},
                       engine::HttpServer::Options http = {});
  ~ServerBench();

  // A client of its own connection; waits ten seconds at most.
  std::unique_ptr<httplib::Client> Client() const;

  httplib::Result Post(const std::string& path, const nlohmann::json& body, const httplib::Headers& headers = {}) const;
  httplib::Result Get(const std::string& path) const;

  // The value of a figure of rank 0 in /metrics; -1 when there is none.
  double Metric(const std::string& name) const;

  // Every event of a rank's stream so far, in order; replayed.
  std::vector<SeenEvent> Events(std::uint32_t rank = 0) const;
  // The same of BlockStored, with all that they say.
  std::vector<SeenStore> Stores(std::uint32_t rank = 0) const;
  // How many of them are AllBlocksCleared.
  std::size_t Clears(std::uint32_t rank = 0) const;

  engine::Instance& instance() const { return *instance_; }
  engine::HttpServer& http() const { return *http_; }
  engine::Routes& routes() const { return *routes_; }

 private:
  std::vector<Replayed> Replay(std::uint32_t rank) const;

  const std::shared_ptr<ZmqContext> context_ = ZmqContext::Create();
  const engine::ByteTokenizer tokenizer_;
  std::unique_ptr<engine::EgressThread> egress_;
  std::unique_ptr<engine::Instance> instance_;
  std::unique_ptr<engine::Routes> routes_;
  std::unique_ptr<engine::HttpServer> http_;
};

// The error object of a response: {"error": {...}} with all four fields; fails the test for anything else.
nlohmann::json ErrorOf(const httplib::Result& result);

}  // namespace kvwire::test
