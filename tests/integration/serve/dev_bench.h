// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "engine/serve/dev_routes.h"
#include "engine/serve/event_log.h"
#include "kv_events/subscribe/held_blocks.h"
#include "kv_events/wire/decoder.h"
#include "tests/integration/serve/server_bench.h"

namespace kvwire::test {

inline constexpr const char* kPrompt = "a prompt of 23 letters.";  // five full blocks of four

// A server as with --dev: the developer's paths on a port of their own, beside those of the bench, of one engine.
class DevBench {
 public:
  explicit DevBench(std::uint32_t ranks = 1) : DevBench(SmallInstance(ranks)) {}
  explicit DevBench(engine::InstanceConfig config)
      : logs_(config.data_parallel_size), bench_(Observed(std::move(config), &logs_)) {
    auto server = engine::HttpServer::Create({});
    REQUIRE_MESSAGE(server.has_value(), server.error().message);
    http_ = *std::move(server);
    routes_.Install(http_.get());
    REQUIRE(http_->Start().has_value());
  }
  ~DevBench() { http_->Stop(); }

  httplib::Result Get(const std::string& path) const { return Client()->Get(path); }
  httplib::Result Post(const std::string& path, const std::string& body) const {
    return Client()->Post(path, body, "application/json");
  }

  // The answer to a request that must be fine.
  nlohmann::json Ask(const std::string& path) const { return Parsed(Get(path)); }
  nlohmann::json Tell(const std::string& path, const nlohmann::json& body) const {
    return Parsed(Post(path, body.dump()));
  }

  // The error of one that must not be, with status 400.
  static nlohmann::json Refusal(const httplib::Result& result) {
    nlohmann::json error = ErrorOf(result);
    CHECK(error["code"] == 400);
    CHECK(error["type"] == "BadRequestError");
    return error;
  }
  nlohmann::json RefusedFault(const nlohmann::json& body) const { return Refusal(Post("/dev/faults", body.dump())); }

  void Complete(const std::string& prompt, std::uint32_t rank = 0) const {
    const auto result = bench_.Post("/v1/completions", {{"prompt", prompt}, {"max_tokens", 4}},
                                    {{"X-data-parallel-rank", std::to_string(rank)}});
    REQUIRE(result);
    REQUIRE_MESSAGE(result->status == 200, result->body);
  }

  // What a rank's stream says up to and with message `number`; nothing if that does not come in time.
  std::optional<HeldBlocks> HeldAt(std::uint64_t number, std::uint32_t rank = 0) const {
    std::optional<HeldBlocks> held;
    Eventually([&] {
      const auto dealer = ConnectTo(context_, LinkKind::kDealer, *bench_.instance().sources().at(rank).replay_endpoint);
      REQUIRE(test::Ask(dealer.get(), 0) == SendResult::kSent);
      HeldBlocks blocks;
      bool complete = false;
      for (const Replayed& message : ReadReplay(dealer.get())) {
        if (message.end || message.number > number) continue;
        const auto decoded = DecodeBatch(message.payload);
        REQUIRE(decoded.has_value());
        CHECK(blocks.Apply(decoded->batch) == 0);
        complete = message.number == number;
      }
      if (complete) held = std::move(blocks);
      return complete;
    });
    return held;
  }

  engine::Instance& instance() const { return bench_.instance(); }

 private:
  static engine::InstanceConfig Observed(engine::InstanceConfig config, std::deque<engine::EventLog>* logs) {
    config.observe_batch = [logs](std::uint32_t rank, std::uint64_t number, const KVEventBatch& batch) {
      (*logs)[rank].Record(number, batch);
    };
    return config;
  }
  static nlohmann::json Parsed(const httplib::Result& result) {
    REQUIRE(result);
    CAPTURE(result->body);
    REQUIRE(result->status == 200);
    CHECK(result->get_header_value("Content-Type") == "application/json");
    nlohmann::json body = nlohmann::json::parse(result->body, nullptr, false);
    REQUIRE(body.is_object());
    return body;
  }
  std::unique_ptr<httplib::Client> Client() const {
    auto client = std::make_unique<httplib::Client>("127.0.0.1", http_->port());
    client->set_read_timeout(std::chrono::seconds(20));
    return client;
  }

  const std::shared_ptr<ZmqContext> context_ = ZmqContext::Create();
  std::deque<engine::EventLog> logs_;
  ServerBench bench_;
  const engine::ByteTokenizer tokenizer_;
  engine::DevRoutes routes_{&bench_.instance(), &logs_, &tokenizer_, {"tuned", "other"}};
  std::unique_ptr<engine::HttpServer> http_;
};

inline std::vector<std::string> Lines(const HeldBlocks& held) {
  std::vector<std::string> lines;
  held.Dump([&lines](std::string_view line) { lines.emplace_back(line); });
  return lines;
}

inline bool Contains(const nlohmann::json& text, std::string_view part) {
  return text.get<std::string>().find(part) != std::string::npos;
}

inline std::size_t Letters(const nlohmann::json& pool, std::string_view which) {
  const std::string blocks = pool["blocks"];
  return static_cast<std::size_t>(std::count_if(
      blocks.begin(), blocks.end(), [which](char letter) { return which.find(letter) != std::string_view::npos; }));
}

}  // namespace kvwire::test
