// SPDX-License-Identifier: Apache-2.0
// A prefill and a decode engine, each behind a server of its own, and a test in the place of the proxy between them.
#include "engine/serve/kv_transfer.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/integration/serve/server_bench.h"
#include "tests/support/watchdog.h"

namespace kvwire::test {
namespace {

using engine::KVPeer;
using engine::KVRole;
using engine::KVTransferConfig;
using nlohmann::json;

constexpr const char* kCompletions = "/v1/completions";
constexpr const char* kPrompt = "a prompt of 23 letters.";  // five full blocks
const json kRemoteDecode = {{"do_remote_decode", true},    {"do_remote_prefill", false}, {"remote_engine_id", nullptr},
                            {"remote_block_ids", nullptr}, {"remote_host", nullptr},     {"remote_port", nullptr}};

engine::InstanceConfig Sharing(KVRole role, const std::string& engine_id) {
  engine::InstanceConfig config = SmallInstance();
  config.kv_transfer.emplace();
  config.kv_transfer->engine_id = engine_id;
  config.kv_transfer->role = role;
  config.kv_transfer->life = "life";
  return config;
}

json Answer(const httplib::Result& result) {
  REQUIRE(result);
  CAPTURE(result->body);
  REQUIRE(result->status == 200);
  return json::parse(result->body);
}

// What a prefill engine answers to a proxy.
json Prefill(const ServerBench& bench, const std::string& prompt = kPrompt, const httplib::Headers& headers = {}) {
  const json answer = Answer(bench.Post(
      kCompletions, {{"prompt", prompt}, {"max_tokens", 1}, {"kv_transfer_params", kRemoteDecode}}, headers));
  REQUIRE(answer.contains("kv_transfer_params"));
  return answer["kv_transfer_params"];
}

json DecodeBody(const json& params, const std::string& prompt = kPrompt) {
  return {{"prompt", prompt}, {"max_tokens", 8}, {"kv_transfer_params", params}};
}

std::string TextOf(const json& answer) { return answer["choices"][0]["text"].get<std::string>(); }

std::string SingleEngine(const std::string& prompt = kPrompt) {
  const ServerBench bench;
  return TextOf(Answer(bench.Post(kCompletions, {{"prompt", prompt}, {"max_tokens", 8}})));
}

// Waits until a figure has a value.
void Await(const ServerBench& bench, const std::string& metric, double value) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (bench.Metric(metric) != value) {
    REQUIRE_MESSAGE(std::chrono::steady_clock::now() < end, metric);
    std::this_thread::yield();
  }
}

class Lines {
 public:
  LogSink Sink() {
    return [this](LogLevel level, std::string_view text) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (level == LogLevel::kWarning) warnings_.emplace_back(text);
    };
  }
  std::size_t Containing(std::string_view part) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<std::size_t>(std::count_if(warnings_.begin(), warnings_.end(), [part](const std::string& line) {
      return line.find(part) != std::string::npos;
    }));
  }
  void Await(std::string_view part) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (Containing(part) == 0) {
      REQUIRE_MESSAGE(std::chrono::steady_clock::now() < end, part);
      std::this_thread::yield();
    }
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> warnings_;
};

TEST_CASE("P20: a decode engine goes on with the blocks of a prefill engine, and says what one engine would say") {
  const ServerBench prefill(Sharing(KVRole::kProducer, "p"));
  const ServerBench decode(Sharing(KVRole::kConsumer, "d"));
  const json params = Prefill(prefill);
  CHECK(params["do_remote_prefill"] == true);
  CHECK(params["do_remote_decode"] == false);
  CHECK(params["remote_block_ids"].size() == 5);
  CHECK(params["remote_engine_id"] == "p");
  CHECK(params["remote_host"] == "127.0.0.1");
  CHECK(params["remote_port"] == prefill.http().port());
  CHECK(params["remote_request_id"].is_string());
  CHECK(prefill.Metric("kvwire_kv_transfer_blocks_held") == 5);

  const json answer = Answer(decode.Post(kCompletions, DecodeBody(params)));
  CHECK(TextOf(answer) == SingleEngine());
  CHECK(answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 20);
  CHECK_FALSE(answer.contains("kv_transfer_params"));
  CHECK(prefill.Metric("kvwire_kv_transfer_blocks_held") == 0);
  CHECK(prefill.Metric("kvwire_kv_transfer_held_requests_total") == 1);
  CHECK(decode.Metric("kvwire_kv_transfer_received_tokens_total") == 20);
  CHECK(decode.Metric("kvwire_kv_transfer_failed_total") == 0);
  const std::vector<SeenStore> stores = decode.Stores();
  REQUIRE_FALSE(stores.empty());
  CHECK(stores[0].block_hashes == prefill.Stores().at(0).block_hashes);
  CHECK(stores[0].token_ids.size() == 20);

  SUBCASE("and again, when all of it is here already: nothing is transferred and nothing stays held") {
    const json second = Answer(decode.Post(kCompletions, DecodeBody(Prefill(prefill))));
    CHECK(TextOf(second) == SingleEngine());
    Await(prefill, "kvwire_kv_transfer_blocks_held", 0);
    CHECK(decode.Metric("kvwire_kv_transfer_receptions_total") == 1);
  }
  SUBCASE("and of a longer prompt only what is missing is transferred") {
    const std::string longer = std::string(kPrompt) + " And it goes on.";
    const json second = Answer(decode.Post(kCompletions, DecodeBody(Prefill(prefill, longer), longer)));
    CHECK(TextOf(second) == SingleEngine(longer));
    CHECK(decode.Metric("kvwire_kv_transfer_received_tokens_total") == 36);
  }
}

TEST_CASE("P21: a chat and a stream go on as well, and a prompt of full blocks is all transferred") {
  const ServerBench prefill(Sharing(KVRole::kBoth, "p"));
  const ServerBench decode(Sharing(KVRole::kBoth, "d"));
  const std::string prompt = "twenty letters here!";
  json body = DecodeBody(Prefill(prefill, prompt), prompt);
  body["stream"] = true;
  const auto streamed = decode.Post(kCompletions, body);
  REQUIRE(streamed);
  REQUIRE(streamed->status == 200);
  CHECK(decode.Metric("kvwire_kv_transfer_received_tokens_total") == 20);
  CHECK(decode.Stores().at(0).block_hashes.size() == 5);

  const json messages = {{{"role", "user"}, {"content", "Tell me about the sea."}}};
  const json held = Answer(prefill.Post(
      "/v1/chat/completions", {{"messages", messages}, {"max_tokens", 1}, {"kv_transfer_params", kRemoteDecode}}));
  const json answer = Answer(
      decode.Post("/v1/chat/completions",
                  {{"messages", messages}, {"max_tokens", 8}, {"kv_transfer_params", held["kv_transfer_params"]}}));
  CHECK(answer["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>() > 20);
  CHECK(decode.Metric("kvwire_kv_transfer_failed_total") == 0);
}

TEST_CASE("P22: a transfer that fails is counted, warned of once, and computed here") {
  Lines lines;
  engine::InstanceConfig config = Sharing(KVRole::kConsumer, "d");
  config.log = lines.Sink();
  const ServerBench prefill(Sharing(KVRole::kProducer, "p"));
  const ServerBench decode(config);
  json params = Prefill(prefill);
  SUBCASE("an id that nobody holds") { params["remote_request_id"] = "0-999-life"; }
  SUBCASE("an id of another life of the engine") { params["remote_request_id"] = "0-1-past"; }
  SUBCASE("an id that is none") { params["remote_request_id"] = "cmpl-17"; }
  SUBCASE("another engine's id") { params["remote_engine_id"] = "q"; }
  SUBCASE("a block that the request does not hold") { params["remote_block_ids"][2] = 77; }
  SUBCASE("the null block") { params["remote_block_ids"][2] = 0; }
  SUBCASE("nobody listens") { params["remote_port"] = 1; }
  SUBCASE("it was fetched before") {
    const json fetch = {{"engine_id", "p"}, {"request_id", params["remote_request_id"]}, {"block_ids", json::array()}};
    CHECK(prefill.Post(engine::kTransferPath, fetch)->status == 200);
  }
  SUBCASE("it is no engine of this kind") {
    httplib::Server other;
    std::string reply(8 * 20 - 1, 'x');
    SUBCASE("a byte is missing") {}
    SUBCASE("there is a byte too many") { reply += "xx"; }
    other.Post(engine::kTransferPath, [&](const httplib::Request&, httplib::Response& response) {
      response.set_content(reply, "application/octet-stream");
    });
    const int port = other.bind_to_any_port("127.0.0.1");
    std::thread thread([&] { other.listen_after_bind(); });
    params["remote_port"] = port;
    CHECK(TextOf(Answer(decode.Post(kCompletions, DecodeBody(params)))) == SingleEngine());
    other.stop();
    thread.join();
    CHECK(lines.Containing("bytes, expected 160") == 1);
  }
  if (decode.Metric("kvwire_kv_transfer_failed_total") == 0) {
    CHECK(TextOf(Answer(decode.Post(kCompletions, DecodeBody(params)))) == SingleEngine());
  }
  CHECK(decode.Metric("kvwire_kv_transfer_failed_total") == 1);
  CHECK(decode.Metric("kvwire_kv_transfer_received_tokens_total") == 0);
  CHECK(lines.Containing("could not be fetched") == 1);
  // Not again while it goes on.
  const std::string other_prompt = "another prompt of many letters.";
  params["remote_block_ids"] = {1, 2, 3, 4, 5, 6, 7};
  Answer(decode.Post(kCompletions, DecodeBody(params, other_prompt)));
  CHECK(decode.Metric("kvwire_kv_transfer_failed_total") == 2);
  CHECK(lines.Containing("could not be fetched") == 1);
}

// Takes connections and says nothing.
class SilentEngine {
 public:
  SilentEngine() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    REQUIRE(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(fd_, 64) == 0);
    REQUIRE(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
  }
  ~SilentEngine() { Close(); }
  SilentEngine(const SilentEngine&) = delete;
  SilentEngine& operator=(const SilentEngine&) = delete;

  // Whoever waits for an answer is told.
  void Close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  int port() const { return port_; }

 private:
  int fd_;
  int port_ = 0;
};

TEST_CASE("P32: engines that never answer hold up no transfer from others, and no hold") {
  constexpr int kNumSilent = 12;
  SilentEngine silent;
  const ServerBench prefill(Sharing(KVRole::kProducer, "p"));
  engine::InstanceConfig config = Sharing(KVRole::kBoth, "d");
  config.kv_transfer->hold_time = std::chrono::milliseconds(1);
  const ServerBench decode(config);
  const json params = Prefill(prefill);
  std::vector<std::thread> waiting;
  for (int i = 0; i < kNumSilent; ++i) {
    waiting.emplace_back([&, i] {
      json dead = params;
      dead["remote_port"] = silent.port();
      [[maybe_unused]] const auto answered = decode.Post(
          kCompletions, DecodeBody(dead, std::string(1, static_cast<char>('a' + i)) + " fox of as many letters"));
    });
  }
  Await(decode, "kvwire_kv_transfer_receiving", kNumSilent);
  CHECK(TextOf(Answer(decode.Post(kCompletions, DecodeBody(params)))) == SingleEngine());
  CHECK(decode.Metric("kvwire_kv_transfer_received_tokens_total") == 20);
  Prefill(decode, "a prompt that is held here");
  Await(decode, "kvwire_kv_transfer_blocks_held", 0);
  CHECK(decode.Metric("kvwire_kv_transfer_receiving") == kNumSilent);
  silent.Close();
  for (std::thread& thread : waiting) thread.join();
  CHECK(decode.Metric("kvwire_kv_transfer_failed_total") == kNumSilent);
}

TEST_CASE("P23: a router that mixes up blocks gets other words: transfers carry contents") {
  const ServerBench prefill(Sharing(KVRole::kProducer, "p"));
  const ServerBench decode(Sharing(KVRole::kConsumer, "d"));
  json params = Prefill(prefill);
  std::reverse(params["remote_block_ids"].begin(), params["remote_block_ids"].end());
  CHECK(TextOf(Answer(decode.Post(kCompletions, DecodeBody(params)))) != SingleEngine());
}

TEST_CASE("P24: what cannot be meant is refused with field, value and what is allowed") {
  const ServerBench plain;
  const ServerBench producer(Sharing(KVRole::kProducer, "p"));
  const ServerBench consumer(Sharing(KVRole::kConsumer, "d"));
  const json good = Prefill(producer);
  const auto refused = [](const ServerBench& bench, const json& body) {
    const httplib::Result result = bench.Post(kCompletions, body);
    const json error = ErrorOf(result);
    CHECK(error["code"] == 400);
    return error["message"].get<std::string>();
  };
  const auto with = [&](const char* field, const json& value) {
    json params = good;
    params[field] = value;
    return DecodeBody(params);
  };
  CHECK(refused(plain, DecodeBody(good)) ==
        "kv_transfer_params is given, expected null, as this engine has no --kv-transfer-config of NixlConnector");
  CHECK(refused(plain, DecodeBody("x")) == "kv_transfer_params is \"x\", expected an object");
  CHECK(refused(consumer, DecodeBody(kRemoteDecode)) ==
        "kv_transfer_params.do_remote_decode is true, expected false, as --kv-transfer-config has kv_role "
        "\"kv_consumer\"");
  CHECK(refused(producer, DecodeBody(good)) ==
        "kv_transfer_params.do_remote_prefill is true, expected false, as --kv-transfer-config has kv_role "
        "\"kv_producer\"");
  CHECK(refused(consumer, with("do_remote_decode", true)) ==
        "kv_transfer_params.do_remote_prefill is true, expected false, as do_remote_decode is true");
  CHECK(refused(consumer, with("do_remote_prefill", 1)) ==
        "kv_transfer_params.do_remote_prefill is 1, expected true or false");
  CHECK(refused(consumer, with("remote_port", 0)) ==
        "kv_transfer_params.remote_port is 0, expected an integer from 1 to 65535");
  CHECK(refused(consumer, with("remote_port", nullptr)) ==
        "kv_transfer_params.remote_port is missing, expected an integer from 1 to 65535");
  CHECK(refused(consumer, with("remote_engine_id", 7)) ==
        "kv_transfer_params.remote_engine_id is 7, expected a text of 1 to 256 bytes");
  CHECK(refused(consumer, with("remote_block_ids", {1, -1}))
            .starts_with("kv_transfer_params.remote_block_ids[1] is -1, expected a list of block ids from 0 to "));
  CHECK(refused(consumer, with("remote_block_ids", {{1}, {2}})) ==
        "kv_transfer_params.remote_block_ids is a list of 2, expected 1, one for each KV-cache group");
  json many = json::array();
  for (int id = 1; id <= 100'000; ++id) many.push_back(id);
  CHECK(refused(consumer, with("remote_block_ids", many))
            .starts_with("kv_transfer_params.remote_block_ids is a list of 100000 ids, expected at most "));
  json one_more = good["remote_block_ids"];
  for (const std::size_t most = one_more.size() + 1; one_more.size() <= most;) one_more.push_back(1);
  CHECK(refused(consumer, with("remote_block_ids", one_more)).find(" ids, expected at most ") != std::string::npos);
  CHECK(refused(consumer, with("remote_host", "example.com")) ==
        "kv_transfer_params.remote_host is \"example.com\" with port " + std::to_string(producer.http().port()) +
            ", expected a loopback address, as there is no --kv-transfer-allow");
  json body = DecodeBody(good);
  body["n"] = 2;
  CHECK(refused(consumer, body).ends_with("expected it only with one prompt and n 1"));
  body = DecodeBody(kRemoteDecode);
  body["stream"] = true;
  CHECK(refused(producer, body) == "stream is true, expected false, as kv_transfer_params.do_remote_decode is true");
}

TEST_CASE("P25: a decode engine fetches only from whom the operator allows") {
  KVTransferConfig config;
  CHECK(config.Allows("127.0.0.1", 1));
  CHECK(config.Allows("127.9.8.7", 65535));
  CHECK(config.Allows("LOCALHOST", 1));
  CHECK(config.Allows("::1", 1));
  CHECK_FALSE(config.Allows("127.0.0.1.example.com", 1));
  CHECK_FALSE(config.Allows("10.0.0.1", 1));
  CHECK_FALSE(config.Allows("128.0.0.1", 1));
  CHECK_FALSE(config.Allows("", 1));
  CHECK_FALSE(config.Allows(std::string("127.0.0.1\0.example.com", 22), 1));
  CHECK_FALSE(config.Allows("127.0.0.1/x", 1));
  config.allowed = {KVPeer{"prefill", 8000}, KVPeer{"10.0.0.1", std::nullopt}};
  CHECK(config.Allows("Prefill", 8000));
  CHECK_FALSE(config.Allows("prefill", 8001));
  CHECK(config.Allows("10.0.0.1", 9));
  CHECK_FALSE(config.Allows("127.0.0.1", 8000));
  CHECK(config.AllowedText() == "one of --kv-transfer-allow: prefill with port 8000, 10.0.0.1");
}

TEST_CASE("P26: blocks that nobody fetches are given back") {
  Lines lines;
  engine::InstanceConfig config = Sharing(KVRole::kProducer, "p");
  config.log = lines.Sink();
  SUBCASE("after the hold time") {
    config.kv_transfer->hold_time = std::chrono::milliseconds(1);
    const ServerBench prefill(config);
    Prefill(prefill);
    Await(prefill, "kvwire_kv_transfer_blocks_held", 0);
    CHECK(prefill.Metric("kvwire_blocks_free") == 99);
    lines.Await("nobody fetched the blocks of request 0-1-life in time");
  }
  SUBCASE("when the engine sleeps") {
    const ServerBench prefill(config);
    Prefill(prefill);
    CHECK(prefill.Post("/sleep", nullptr)->status == 200);
    Await(prefill, "kvwire_kv_transfer_blocks_held", 0);
  }
  SUBCASE("at a reset that may preempt; another one is refused") {
    const ServerBench prefill(config);
    Prefill(prefill);
    CHECK(prefill.Post("/reset_prefix_cache", nullptr)->status == 409);
    CHECK(prefill.Post("/reset_prefix_cache?reset_running_requests=true", nullptr)->status == 200);
    Await(prefill, "kvwire_kv_transfer_blocks_held", 0);
  }
  SUBCASE("when the decode engine's client leaves before its request begins") {
    const ServerBench prefill(config);
    const ServerBench decode(Sharing(KVRole::kConsumer, "d"));
    CHECK(decode.Post("/sleep", nullptr)->status == 200);
    const json params = Prefill(prefill);
    CHECK(prefill.Metric("kvwire_kv_transfer_blocks_held") == 5);
    auto client = decode.Client();
    std::thread waiting([&] { client->Post(kCompletions, DecodeBody(params).dump(), "application/json"); });
    Await(decode, "vllm:num_requests_waiting", 1);
    client->stop();
    waiting.join();
    Await(prefill, "kvwire_kv_transfer_blocks_held", 0);
  }
}

TEST_CASE("P27: a request that receives waits, and a reset, a sleep or its client's end needs no transfer to end") {
  engine::InstanceConfig config = Sharing(KVRole::kConsumer, "d");
  config.kv_transfer->overhead = std::chrono::hours(1);
  const ServerBench prefill(Sharing(KVRole::kProducer, "p"));
  const ServerBench decode(config);
  const json params = Prefill(prefill);
  auto client = decode.Client();
  std::string text;
  std::thread waiting([&] {
    const auto result = client->Post(kCompletions, DecodeBody(params).dump(), "application/json");
    if (result && result->status == 200) text = TextOf(json::parse(result->body));
  });
  Await(decode, "kvwire_kv_transfer_receiving", 1);
  CHECK(decode.Metric("vllm:num_requests_running") == 0);
  CHECK(decode.Metric("vllm:num_requests_waiting") == 1);
  CHECK(decode.Stores().empty());
  // Others go on.
  CHECK(TextOf(Answer(decode.Post(kCompletions, {{"prompt", kPrompt}, {"max_tokens", 8}}))) == SingleEngine());
  SUBCASE("a reset: it is computed here") {
    CHECK(decode.Post("/reset_prefix_cache?reset_running_requests=true", nullptr)->status == 200);
    waiting.join();
    CHECK(text == SingleEngine());
  }
  SUBCASE("its client leaves") {
    client->stop();
    waiting.join();
    Await(decode, "kvwire_kv_transfer_receiving", 0);
    CHECK(decode.Metric("kvwire_blocks_free") == 99);
  }
  SUBCASE("the engine stops") {
    decode.instance().Shutdown(std::chrono::milliseconds(1000));
    waiting.join();
    CHECK(text.empty());
  }
}

TEST_CASE("P28: what a fetch may ask for is checked") {
  const ServerBench plain;
  CHECK(plain.Post(engine::kTransferPath, json::object())->status == 404);
  const ServerBench prefill(Sharing(KVRole::kProducer, "p"));
  const json params = Prefill(prefill);
  const json good = {
      {"engine_id", "p"}, {"request_id", params["remote_request_id"]}, {"block_ids", {params["remote_block_ids"]}}};
  const auto status = [&](const char* field, const json& value) {
    json body = good;
    if (value.is_discarded()) {
      body.erase(field);
    } else {
      body[field] = value;
    }
    return prefill.Post(engine::kTransferPath, body)->status;
  };
  CHECK(status("engine_id", "q") == 404);
  CHECK(status("engine_id", 1) == 400);
  CHECK(status("request_id", "0-2") == 404);
  CHECK(status("request_id", "1-1") == 404);
  CHECK(status("request_id", "0-1x") == 404);
  CHECK(status("block_ids", json(json::value_t::discarded)) == 400);
  CHECK(status("block_ids", "x") == 400);
  CHECK(status("block_ids", {{0}}) == 400);
  CHECK(status("block_ids", {{99}}) == 400);
  CHECK(status("block_ids", {json::array(), json::array()}) == 400);
  CHECK(status("block_ids", {{1, 1, 1, 1, 1, 1}}) == 400);
  CHECK(status("more", 1) == 400);
  CHECK(prefill.Metric("kvwire_kv_transfer_blocks_held") == 5);
  const auto fetched = prefill.Post(engine::kTransferPath, good);
  REQUIRE(fetched);
  CHECK(fetched->status == 200);
  CHECK(fetched->get_header_value("Content-Type") == "application/octet-stream");
  REQUIRE(fetched->body.size() == std::size_t{5} * 4 * 8);
  const std::vector<std::uint64_t> words = engine::UnpackWords(fetched->body);
  CHECK(words[0] == engine::SimulatedRunner::ChainWord(engine::SimulatedRunner::kRootWord, 'a'));
  CHECK(engine::PackWords(words) == fetched->body);
  CHECK(prefill.Metric("kvwire_kv_transfer_blocks_held") == 0);
}

TEST_CASE("P29: ranks hold and fetch for themselves") {
  engine::InstanceConfig config = Sharing(KVRole::kBoth, "p");
  config.data_parallel_size = 2;
  const ServerBench both(config);
  const json params = Prefill(both, kPrompt, {{"X-data-parallel-rank", "1"}});
  CHECK(params["remote_request_id"].get<std::string>().starts_with("1-"));
  const json answer = Answer(both.Post(kCompletions, DecodeBody(params), {{"X-data-parallel-rank", "0"}}));
  CHECK(TextOf(answer) == SingleEngine());
  CHECK(answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 20);
}

TEST_CASE("P30: models of several groups transfer what each group needs") {
  using enum scheduler::KVCacheKind;
  const auto with_groups = [](KVRole role, const std::string& id) {
    engine::InstanceConfig config = Sharing(role, id);
    config.scheduler.groups = {{kFullAttention, 4, 0}, {kSlidingWindow, 4, 6}, {kMamba, 8, 0}};
    return config;
  };
  const ServerBench prefill(with_groups(KVRole::kProducer, "p"));
  const ServerBench decode(with_groups(KVRole::kConsumer, "d"));
  const ServerBench single(with_groups(KVRole::kBoth, "s"));
  const json params = Prefill(prefill);
  REQUIRE(params["remote_block_ids"].size() == 3);
  CHECK(params["remote_block_ids"][1][0] == 0);
  const json answer = Answer(decode.Post(kCompletions, DecodeBody(params)));
  CHECK(TextOf(answer) == TextOf(Answer(single.Post(kCompletions, {{"prompt", kPrompt}, {"max_tokens", 8}}))));
  CHECK(answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 16);
  CHECK(decode.Metric("kvwire_kv_transfer_failed_total") == 0);
}

TEST_CASE("P31: a prompt without a full block holds nothing and transfers nothing") {
  const ServerBench prefill(Sharing(KVRole::kProducer, "p"));
  const ServerBench decode(Sharing(KVRole::kConsumer, "d"));
  const json params = Prefill(prefill, "abc");
  CHECK(params["remote_block_ids"] == json::array());
  CHECK(TextOf(Answer(decode.Post(kCompletions, DecodeBody(params, "abc")))) == SingleEngine("abc"));
  CHECK(decode.Metric("kvwire_kv_transfer_receptions_total") == 0);
}

}  // namespace
}  // namespace kvwire::test
