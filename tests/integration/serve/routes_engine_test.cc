// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "engine/serve/routes.h"
#include "tests/integration/serve/routes_client.h"
#include "tests/integration/serve/server_bench.h"
#include "tests/support/own_loopback.h"
#include "tests/support/watchdog.h"

namespace kvwire::test {
namespace {

using nlohmann::json;

TEST_CASE("A9: reset, sleep and wake of an idle and of a busy engine reach the wire at once") {
  for (const bool busy : {false, true}) {
    CAPTURE(busy);
    ServerBench bench(busy ? SlowInstance(std::chrono::milliseconds(1)) : SmallInstance());
    std::unique_ptr<StreamingClient> client;
    if (busy) {
      client = std::make_unique<StreamingClient>(
          bench, json{{"prompt", std::string(40, 'y')}, {"max_tokens", 300}, {"stream", true}});
      CHECK(Eventually([&] { return client->started(); }));
      const auto refused = bench.Post("/reset_prefix_cache", nullptr);
      CHECK(ErrorOf(refused)["code"] == 409);
      CHECK(bench.Clears() == 0);
      CHECK(bench.Post("/reset_prefix_cache?reset_running_requests=true", nullptr)->status == 200);
    } else {
      const auto done = bench.Post("/reset_prefix_cache", nullptr);
      CHECK(done->status == 200);
      CHECK(done->body.empty());
    }
    CHECK(Eventually([&] { return bench.Clears() == 1; }));
    CHECK(bench.Post("/sleep?level=1", nullptr)->status == 200);
    CHECK(Eventually([&] { return bench.Clears() == 2; }));
    CHECK(Parsed(bench.Get("/is_sleeping"))["is_sleeping"] == true);
    CHECK(bench.Metric("kvwire_asleep") == 1);
    CHECK(bench.Post("/wake_up", nullptr)->status == 200);
    CHECK(Parsed(bench.Get("/is_sleeping"))["is_sleeping"] == false);
    CHECK(Parsed(bench.Post(kCompletions, {{"prompt", kPrompt}}))["usage"]["completion_tokens"] == 16);
  }
}

TEST_CASE("D19: after a sleep nothing of what was cached is hit, and the clear was announced before") {
  const ServerBench bench;
  const json request = {{"prompt", kPrompt}, {"max_tokens", 1}};
  const auto cached = [&] {
    return Parsed(bench.Post(kCompletions, request))["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  CHECK(cached() == 0);
  CHECK(cached() == 20);
  CHECK(bench.Post("/sleep", nullptr)->status == 200);
  CHECK(bench.Post("/wake_up", nullptr)->status == 200);
  CHECK(cached() == 0);
  const std::vector<SeenEvent> events = bench.Events();
  REQUIRE(events.size() == 3);
  CHECK(events[0].kind == SeenEvent::Kind::kStored);
  CHECK(events[1].kind == SeenEvent::Kind::kCleared);
  CHECK(events[2].kind == SeenEvent::Kind::kStored);
}

TEST_CASE(
    "D20: events without prefix caching: a warning with both settings, an idle stream, and a figure that says so") {
  LogCapture log;
  engine::InstanceConfig config = SmallInstance();
  config.scheduler.enable_prefix_caching = false;
  config.log = log.sink();
  const ServerBench bench(config);
  CHECK(log.Count(LogLevel::kWarning, "enable_kv_cache_events") == 1);
  CHECK(log.Count(LogLevel::kWarning, "enable_prefix_caching") == 1);
  Parsed(bench.Post(kCompletions, {{"prompt", kPrompt}}));
  CHECK(bench.Events().empty());
  CHECK(Parsed(bench.Get("/kv_event_sources"))["sources"].size() == 1);
  CHECK(bench.Get("/metrics")->body.find("enable_prefix_caching=\"False\"") != std::string::npos);
  CHECK(bench.Post("/reset_prefix_cache", nullptr)->status == 200);
  CHECK(Eventually([&] { return bench.Clears() == 1; }));
}

TEST_CASE("four ranks have eight ports, their own caches, and their rank in every batch") {
  const ServerBench bench(SmallInstance(4));
  const json sources = Parsed(bench.Get("/kv_event_sources"))["sources"];
  REQUIRE(sources.size() == 4);
  std::set<std::string> endpoints;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    CHECK(sources[rank]["data_parallel_rank"] == rank);
    CHECK(sources[rank]["topic"] == "kv-events");
    endpoints.insert(sources[rank]["endpoint"].get<std::string>());
    endpoints.insert(sources[rank]["replay_endpoint"].get<std::string>());
  }
  CHECK(endpoints.size() == 8);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const json answer = Parsed(bench.Post(kCompletions, {{"prompt", kPrompt}, {"max_tokens", 1}},
                                          {{"X-data-parallel-rank", std::to_string(rank)}}));
    CHECK(answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0);
    const std::vector<SeenEvent> events = bench.Events(rank);
    REQUIRE(events.size() == 1);
    CHECK(events[0].rank == rank);
  }
}

TEST_CASE("B5: the ports are base + rank for events and replay, and the sources say which is which") {
  engine::InstanceConfig config = SmallInstance(4);
  const std::string host = "tcp://" + OwnLoopback() + ":";
  constexpr int kBase = 20000;
  constexpr int kReplayBase = 20100;
  config.events.endpoint = host + std::to_string(kBase);
  config.events.replay_endpoint = host + std::to_string(kReplayBase);
  const ServerBench bench(config);
  const json sources = Parsed(bench.Get("/kv_event_sources"))["sources"];
  REQUIRE(sources.size() == 4);
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(sources[static_cast<std::size_t>(rank)]["data_parallel_rank"] == rank);
    CHECK(sources[static_cast<std::size_t>(rank)]["endpoint"] == host + std::to_string(kBase + rank));
    CHECK(sources[static_cast<std::size_t>(rank)]["replay_endpoint"] == host + std::to_string(kReplayBase + rank));
  }
}

TEST_CASE("F1: how hashes are made is told once beside the sources, and with every rank's figures") {
  const auto check = [](HashAlgorithm algorithm, const HashSeed& seed, const std::string& name,
                        const std::string& source, const json& text) {
    CAPTURE(name);
    engine::InstanceConfig config = SmallInstance(2);
    config.hash_algorithm = algorithm;
    config.hash_seed = seed;
    const ServerBench bench(config);
    const json hash = Parsed(bench.Get("/kv_event_sources"))["hash"];
    const std::string root = bench.instance().hasher().root().ToHex();
    CHECK(root.size() == (algorithm == HashAlgorithm::kXxhash ? 32 : 64));
    CHECK(hash == json{{"algorithm", name}, {"seed_source", source}, {"seed", text}, {"root", root}});
    const std::string metrics = bench.Get("/metrics")->body;
    BlockHasher hasher = BlockHasher::Create(algorithm, HashSeed{}).value().WithRoot(bench.instance().hasher().root());
    for (const char* const rank : {"0", "1"}) {
      const std::string line = "kvwire_hash_info{engine=\"" + std::string(rank) + R"(",model_name="sim",algorithm=")" +
                               name + R"(",seed_source=")" + source + R"(",seed=")" +
                               (text.is_null() ? "" : text.get<std::string>()) + R"(",root=")" + root + "\"} 1";
      CHECK_MESSAGE(metrics.find(line) != std::string::npos, line);
      // Every rank begins with that root.
      Parsed(bench.Post(kCompletions, {{"prompt", {1, 2, 3, 4}}, {"max_tokens", 1}}, {{"X-data-parallel-rank", rank}}));
      const std::vector<SeenStore> stores = bench.Stores(std::uint32_t(*rank - '0'));
      REQUIRE(stores.size() == 1);
      const BlockHash first = hasher.HashBlock(BlockHash(), std::vector<TokenId>{1, 2, 3, 4});
      CHECK(stores[0].block_hashes[0].Low64() == first.Low64());
    }
  };
  check(HashAlgorithm::kSha256Cbor, {}, "sha256_cbor", "default", std::string(kDefaultHashSeed));
  check(HashAlgorithm::kSha256, {HashSeedSource::kEnvironment, "0"}, "sha256", "environment", "0");
  check(HashAlgorithm::kXxhash, {HashSeedSource::kEnvironment, "0"}, "xxhash", "environment", "0");
  check(HashAlgorithm::kXxhashCbor, HashSeed::Random(), "xxhash_cbor", "random", nullptr);
}

TEST_CASE("figures have vLLM's names and say what happened") {
  const ServerBench bench;
  const json request = {{"prompt", kPrompt}, {"max_tokens", 5}};
  for (int i = 0; i < 3; ++i) Parsed(bench.Post(kCompletions, request));
  // The figures of a step follow its last token.
  CHECK(Eventually([&] { return bench.Metric("vllm:num_requests_running") == 0; }));
  CHECK(bench.Metric("vllm:num_requests_waiting") == 0);
  CHECK(bench.Metric("vllm:kv_cache_usage_perc") == 0);
  CHECK(bench.Metric("vllm:prefix_cache_queries_total") == 69);
  CHECK(bench.Metric("vllm:prefix_cache_hits_total") == 40);
  CHECK(bench.Metric("vllm:prompt_tokens_total") == 69);
  CHECK(bench.Metric("vllm:generation_tokens_total") == 15);
  CHECK(bench.Metric("vllm:num_preemptions_total") == 0);
  CHECK(bench.Metric("kvwire_publisher_batches_sent_total") >= 1);
  CHECK(bench.Metric("kvwire_blocks_stored_total") >= 5);
  const auto metrics = bench.Get("/metrics");
  CHECK(metrics->get_header_value("Content-Type").starts_with("text/plain; version=0.0.4"));
  for (const char* part :
       {"# TYPE vllm:num_requests_running gauge", "# TYPE vllm:prompt_tokens_total counter",
        "vllm:request_success_total{engine=\"0\",model_name=\"sim\",finished_reason=\"length\"} 3",
        "vllm:cache_config_info{engine=\"0\",model_name=\"sim\",block_size=\"4\"", "num_gpu_blocks=\"100\""}) {
    CAPTURE(part);
    CHECK(metrics->body.find(part) != std::string::npos);
  }
}

TEST_CASE("64 clients at once get the answers of a server whose cache is off") {
  engine::InstanceConfig config = SmallInstance();
  config.scheduler.enable_prefix_caching = false;
  const auto prompt = [](int which) { return std::string(static_cast<std::size_t>(20 + which), 'p') + "tail"; };
  std::vector<json> expected;
  {
    const ServerBench reference(config);
    for (int which = 0; which < 8; ++which) {
      expected.push_back(
          Parsed(reference.Post(kCompletions, {{"prompt", prompt(which)}, {"max_tokens", 12}}))["choices"]);
    }
  }
  config.scheduler.enable_prefix_caching = true;
  const ServerBench bench(config);
  std::atomic<int> wrong{0};
  std::vector<std::thread> clients;
  for (int client = 0; client < 64; ++client) {
    clients.emplace_back([&, client] {
      const auto connection = bench.Client();
      connection->set_keep_alive(true);
      for (int i = 0; i < 8; ++i) {
        const int which = (client + i) % 8;
        const json request = {{"prompt", prompt(which)}, {"max_tokens", 12}};
        const auto result = connection->Post(kCompletions, request.dump(), "application/json");
        const bool right = result && result->status == 200 &&
                           json::parse(result->body)["choices"] == expected[static_cast<std::size_t>(which)];
        if (!right) ++wrong;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  CHECK(wrong == 0);
  CHECK(bench.Metric("vllm:prefix_cache_hits_total") > 0);
}

}  // namespace
}  // namespace kvwire::test
