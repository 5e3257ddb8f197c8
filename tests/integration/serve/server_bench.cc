// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/serve/server_bench.h"

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <utility>
#include <variant>

#include <doctest/doctest.h>

#include "kv_events/wire/decoder.h"
#include "tests/support/own_loopback.h"

namespace kvwire::test {

engine::InstanceConfig SmallInstance(std::uint32_t ranks) {
  engine::InstanceConfig config;
  config.scheduler.num_blocks = 100;
  config.scheduler.block_size = 4;
  config.scheduler.max_model_len = 1000;
  config.runner.first_output_token = 'a';
  config.runner.num_output_tokens = 26;
  config.data_parallel_size = ranks;
  config.events.enable_kv_cache_events = true;
  config.events.endpoint = "tcp://" + OwnLoopback() + ":0";
  config.events.replay_endpoint = "tcp://" + OwnLoopback() + ":0";
  config.events.topic = "kv-events";
  config.events.kvwire.mode = SocketMode::kBind;
  return config;
}

ServerBench::ServerBench(engine::InstanceConfig config, engine::RoutesConfig routes, engine::HttpServer::Options http) {
  auto server = engine::HttpServer::Create(std::move(http));
  REQUIRE_MESSAGE(server.has_value(), server.error().message);
  http_ = *std::move(server);
  if (config.kv_transfer) config.kv_transfer->port = http_->port();
  auto egress = engine::EgressThread::Create();
  REQUIRE(egress.has_value());
  egress_ = *std::move(egress);
  auto instance = engine::Instance::Create(std::move(config), egress_.get(), context_);
  REQUIRE_MESSAGE(instance.has_value(), instance.error().message);
  instance_ = *std::move(instance);
  if (routes.models.empty()) routes.models = {"sim"};
  routes.version = "1.2.3";
  routes_ = std::make_unique<engine::Routes>(std::move(routes), instance_.get(), &tokenizer_);
  routes_->Install(http_.get());
  REQUIRE(http_->Start().has_value());
}

ServerBench::~ServerBench() {
  // A handler may wait for a step that never ends by itself.
  instance_->Shutdown(std::chrono::milliseconds(1000));
  http_->Stop();
}

std::unique_ptr<httplib::Client> ServerBench::Client() const {
  auto client = std::make_unique<httplib::Client>("127.0.0.1", http_->port());
  client->set_read_timeout(std::chrono::seconds(60));
  return client;
}

httplib::Result ServerBench::Post(const std::string& path, const nlohmann::json& body,
                                  const httplib::Headers& headers) const {
  return Client()->Post(path, headers, body.is_null() ? std::string() : body.dump(), "application/json");
}

httplib::Result ServerBench::Get(const std::string& path) const { return Client()->Get(path); }

double ServerBench::Metric(const std::string& name) const {
  const httplib::Result result = Get("/metrics");
  REQUIRE(result);
  std::istringstream lines(result->body);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + "{engine=\"0\"")) return std::strtod(line.substr(line.rfind(' ') + 1).c_str(), nullptr);
  }
  return -1;
}

// Of every message of a rank's stream so far.
std::vector<Replayed> ServerBench::Replay(std::uint32_t rank) const {
  const auto dealer = ConnectTo(context_, LinkKind::kDealer, *instance_->sources().at(rank).replay_endpoint);
  REQUIRE(Ask(dealer.get(), 0) == SendResult::kSent);
  std::vector<Replayed> messages = ReadReplay(dealer.get());
  std::erase_if(messages, [](const Replayed& message) { return message.end; });
  return messages;
}

std::vector<SeenStore> ServerBench::Stores(std::uint32_t rank) const {
  std::vector<SeenStore> stores;
  for (const Replayed& message : Replay(rank)) {
    const auto decoded = DecodeBatch(message.payload);
    REQUIRE(decoded.has_value());
    for (std::size_t i = 0; i < decoded->batch.size(); ++i) {
      const auto event = decoded->batch.at(i);
      const auto* stored = std::get_if<BlockStored>(&event);
      if (stored == nullptr) continue;
      SeenStore seen;
      seen.block_hashes.assign(stored->block_hashes.begin(), stored->block_hashes.end());
      seen.parent_block_hash = stored->parent_block_hash;
      seen.token_ids.assign(stored->token_ids.begin(), stored->token_ids.end());
      seen.lora_id = stored->lora_id;
      if (stored->lora_name) seen.lora_name = *stored->lora_name;
      seen.extra_keys.assign(stored->extra_keys.per_block.begin(), stored->extra_keys.per_block.end());
      seen.group_idx = stored->group_idx;
      stores.push_back(std::move(seen));
    }
  }
  return stores;
}

std::vector<SeenEvent> ServerBench::Events(std::uint32_t rank) const {
  std::vector<SeenEvent> events;
  for (const Replayed& message : Replay(rank)) {
    const auto decoded = DecodeBatch(message.payload);
    REQUIRE(decoded.has_value());
    for (std::size_t i = 0; i < decoded->batch.size(); ++i) {
      SeenEvent seen;
      seen.batch = message.number;
      seen.rank = RankOf(message.payload).value_or(-1);
      const auto event = decoded->batch.at(i);
      if (const auto* stored = std::get_if<BlockStored>(&event)) {
        seen.kind = SeenEvent::Kind::kStored;
        seen.blocks = stored->block_hashes.size();
        seen.has_parent = stored->parent_block_hash.has_value();
      } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
        seen.kind = SeenEvent::Kind::kRemoved;
        seen.blocks = removed->block_hashes.size();
      }
      events.push_back(seen);
    }
  }
  return events;
}

std::size_t ServerBench::Clears(std::uint32_t rank) const {
  std::size_t clears = 0;
  for (const SeenEvent& event : Events(rank)) clears += event.kind == SeenEvent::Kind::kCleared ? 1 : 0;
  return clears;
}

nlohmann::json ErrorOf(const httplib::Result& result) {
  REQUIRE(result);
  CAPTURE(result->body);
  CHECK(result->get_header_value("Content-Type") == "application/json");
  const nlohmann::json body = nlohmann::json::parse(result->body, nullptr, false);
  REQUIRE(body.is_object());
  REQUIRE(body.contains("error"));
  const nlohmann::json& error = body["error"];
  CHECK(error["message"].is_string());
  CHECK(error["type"].is_string());
  CHECK(error.contains("param"));
  CHECK(error["code"] == result->status);
  return error;
}

}  // namespace kvwire::test
