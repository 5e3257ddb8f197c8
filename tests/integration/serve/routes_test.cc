// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/routes.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/integration/serve/server_bench.h"
#include "tests/support/own_loopback.h"
#include "tests/support/watchdog.h"

namespace kvwire::test {
namespace {

using nlohmann::json;

constexpr const char* kCompletions = "/v1/completions";
constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kPrompt = "a prompt of 23 letters.";  // five full blocks

json Parsed(const httplib::Result& result) {
  REQUIRE(result);
  CAPTURE(result->body);
  CHECK(result->status == 200);
  CHECK(result->get_header_value("Content-Type") == "application/json");
  const json body = json::parse(result->body, nullptr, false);
  REQUIRE(body.is_object());
  return body;
}

// The objects of a stream, in order; ends with a fact whether "[DONE]" was its last.
std::vector<json> EventsOf(const std::string& body) {
  std::vector<json> events;
  std::size_t begin = 0;
  bool done = false;
  while (begin < body.size()) {
    const std::size_t end = body.find("\n\n", begin);
    REQUIRE(end != std::string::npos);
    const std::string event = body.substr(begin, end - begin);
    REQUIRE(event.starts_with("data: "));
    CHECK_FALSE(done);
    done = event == "data: [DONE]";
    if (!done) events.push_back(json::parse(event.substr(6)));
    begin = end + 2;
  }
  CHECK(done);
  return events;
}

engine::InstanceConfig SlowInstance(std::chrono::nanoseconds per_token) {
  engine::InstanceConfig config = SmallInstance();
  config.time_model.decode_per_request = per_token;
  return config;
}

// A streaming client that reads until its first chunk, and then stays until it is destroyed.
class StreamingClient {
 public:
  StreamingClient(const ServerBench& bench, const json& request)
      : client_(bench.Client()), thread_([this, body = request.dump()] {
          httplib::Request call;
          call.method = "POST";
          call.path = kCompletions;
          call.body = body;
          call.content_receiver = [this](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
            body_.append(data, size);
            started_ = true;
            return !leave_;
          };
          const auto result = client_->send(call);
          complete_ = static_cast<bool>(result);
        }) {}
  ~StreamingClient() { Leave(); }
  StreamingClient(const StreamingClient&) = delete;
  StreamingClient& operator=(const StreamingClient&) = delete;

  bool started() const { return started_; }
  bool complete() const { return complete_; }
  void Leave() {
    if (!thread_.joinable()) return;
    leave_ = true;
    client_->stop();
    thread_.join();
  }
  void Join() { thread_.join(); }
  // After Join.
  const std::string& body() const { return body_; }

 private:
  std::unique_ptr<httplib::Client> client_;
  std::string body_;
  std::atomic<bool> started_{false};
  std::atomic<bool> leave_{false};
  std::atomic<bool> complete_{false};
  std::thread thread_;
};

TEST_CASE("the same prompt again has the same answer, and its cached tokens in usage") {
  const ServerBench bench;
  const json request = {{"model", "sim"}, {"prompt", kPrompt}, {"max_tokens", 6}};
  const json first = Parsed(bench.Post(kCompletions, request));
  CHECK(first["object"] == "text_completion");
  CHECK(first["id"].get<std::string>().starts_with("cmpl-"));
  CHECK(first["model"] == "sim");
  CHECK(first["choices"][0]["text"].get<std::string>().size() == 6);
  CHECK(first["choices"][0]["finish_reason"] == "length");
  CHECK(first["usage"]["prompt_tokens"] == 23);
  CHECK(first["usage"]["completion_tokens"] == 6);
  CHECK(first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0);
  const json second = Parsed(bench.Post(kCompletions, request));
  CHECK(second["choices"] == first["choices"]);
  CHECK(second["id"] != first["id"]);
  CHECK(second["usage"]["prompt_tokens_details"]["cached_tokens"] == 20);
  // The same tokens given as numbers are the same prompt.
  json tokens = json::array();
  for (const char c : std::string(kPrompt)) tokens.push_back(static_cast<int>(c));
  const json third = Parsed(bench.Post(kCompletions, {{"prompt", tokens}, {"max_tokens", 6}}));
  CHECK(third["choices"] == first["choices"]);
  // Another salt is another prompt to the cache.
  const json salted = Parsed(bench.Post(kCompletions, {{"prompt", kPrompt}, {"cache_salt", "tenant"}}));
  CHECK(salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0);
  CHECK(salted["usage"]["completion_tokens"] == 16);
}

TEST_CASE("several prompts and choices come in order, each with the text that it has alone") {
  const ServerBench bench;
  const auto alone = [&](const std::string& prompt) {
    return Parsed(bench.Post(kCompletions, {{"prompt", prompt}, {"max_tokens", 4}}))["choices"][0]["text"];
  };
  const json answer = Parsed(bench.Post(
      kCompletions, {{"prompt", {"first prompt", "second one"}}, {"n", 3}, {"max_tokens", 4}, {"echo", true}}));
  REQUIRE(answer["choices"].size() == 6);
  for (std::size_t i = 0; i < 6; ++i) {
    const std::string prompt = i < 3 ? "first prompt" : "second one";
    CHECK(answer["choices"][i]["index"] == i);
    CHECK(answer["choices"][i]["text"] == prompt + alone(prompt).get<std::string>());
  }
  CHECK(answer["usage"]["prompt_tokens"] == 22);
  CHECK(answer["usage"]["completion_tokens"] == 24);
}

TEST_CASE("a stream has the answer's text in pieces, and usage when asked for") {
  const ServerBench bench(SlowInstance(std::chrono::milliseconds(1)));
  for (const bool chat : {false, true}) {
    CAPTURE(chat);
    json request = {{"max_tokens", 20}, {"n", 2}};
    if (chat) {
      request["messages"] = json::array({{{"role", "user"}, {"content", kPrompt}}});
    } else {
      request["prompt"] = kPrompt;
    }
    const char* path = chat ? kChat : kCompletions;
    const json whole = Parsed(bench.Post(path, request));
    CHECK(whole["object"] == (chat ? "chat.completion" : "text_completion"));
    request["stream"] = true;
    const auto without = bench.Post(path, request);
    REQUIRE(without);
    for (const json& event : EventsOf(without->body)) CHECK(event["choices"].size() == 1);
    request["stream_options"] = {{"include_usage", true}};
    const auto result = bench.Post(path, request);
    REQUIRE(result);
    CHECK(result->get_header_value("Content-Type").starts_with("text/event-stream"));
    std::vector<json> events = EventsOf(result->body);
    CHECK(events.size() > 6);
    CHECK(events.back()["usage"]["completion_tokens"] == 40);
    CHECK(events.back()["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>() > 0);
    CHECK(events.back()["choices"].empty());
    events.pop_back();
    std::string text[2];
    std::string reason[2];
    for (const json& event : events) {
      const json& choice = event["choices"][0];
      const std::size_t index = choice["index"];
      CHECK(reason[index].empty());
      text[index] += chat ? choice["delta"].value("content", "") : choice["text"].get<std::string>();
      if (choice["finish_reason"].is_string()) reason[index] = choice["finish_reason"];
    }
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(text[i] == (chat ? whole["choices"][i]["message"]["content"] : whole["choices"][i]["text"]));
      CHECK(reason[i] == "length");
    }
  }
}

TEST_CASE("a stop string ends the answer before it, and the request") {
  const ServerBench bench;
  const json whole = Parsed(bench.Post(kCompletions, {{"prompt", kPrompt}, {"max_tokens", 50}}));
  const std::string text = whole["choices"][0]["text"];
  const std::string stop = text.substr(10, 2);
  const std::size_t at = text.find(stop);
  for (const bool stream : {false, true}) {
    CAPTURE(stream);
    const json request = {{"prompt", kPrompt}, {"max_tokens", 50}, {"stop", stop}, {"stream", stream}};
    const auto result = bench.Post(kCompletions, request);
    REQUIRE(result);
    if (stream) {
      std::string streamed;
      const std::vector<json> events = EventsOf(result->body);
      for (const json& event : events) streamed += event["choices"][0]["text"].get<std::string>();
      CHECK(streamed == text.substr(0, at));
      CHECK(events.back()["choices"][0]["finish_reason"] == "stop");
    } else {
      const json cut = Parsed(result);
      CHECK(cut["choices"][0]["text"] == text.substr(0, at));
      CHECK(cut["choices"][0]["finish_reason"] == "stop");
      CHECK(cut["usage"]["completion_tokens"] == at + 2);
      // The prompt was found in the cache, whatever ended its answer.
      CHECK(cut["usage"]["prompt_tokens_details"]["cached_tokens"] == 20);
    }
  }
  CHECK(bench.instance().num_requests() == 0);
}

TEST_CASE("cached tokens are those of the first choice of every prompt, also of one that was stopped") {
  // A stop is seen long before the request would have ended.
  const ServerBench bench(SlowInstance(std::chrono::milliseconds(2)));
  const auto cached = [](const json& answer) { return answer["usage"]["prompt_tokens_details"]["cached_tokens"]; };
  const json first = Parsed(bench.Post(kCompletions, {{"prompt", kPrompt}, {"max_tokens", 50}}));
  CHECK(cached(first) == 0);
  const std::string stop = first["choices"][0]["text"].get<std::string>().substr(0, 1);
  // Of three prompts the first and the last are cached; each stops at once or at its end.
  const json mixed = Parsed(bench.Post(
      kCompletions,
      {{"prompt", {kPrompt, "another prompt of letters", kPrompt}}, {"n", 2}, {"max_tokens", 50}, {"stop", stop}}));
  CHECK(mixed["choices"][0]["finish_reason"] == "stop");
  CHECK(cached(mixed) == 40);
  const auto streamed = bench.Post(kCompletions, {{"prompt", kPrompt},
                                                  {"max_tokens", 50},
                                                  {"stop", stop},
                                                  {"stream", true},
                                                  {"stream_options", {{"include_usage", true}}}});
  REQUIRE(streamed);
  CHECK(cached(EventsOf(streamed->body).back()) == 20);
}

TEST_CASE("lengths: a prompt, and a prompt with max_tokens, must fit the model and the pool") {
  engine::InstanceConfig config = SmallInstance();
  config.scheduler.max_model_len = 500;
  config.scheduler.num_blocks = 200;
  engine::RoutesConfig routes;
  routes.default_max_tokens = 30;
  const ServerBench bench(config, routes);
  const auto post = [&](std::size_t prompt, const json& max_tokens) {
    return bench.Post(kCompletions, {{"prompt", std::string(prompt, 'x')}, {"max_tokens", max_tokens}});
  };
  json error = ErrorOf(post(500, nullptr));
  CHECK(error["code"] == 400);
  CHECK(error["message"].get<std::string>().find("500") != std::string::npos);
  error = ErrorOf(post(400, 101));
  CHECK(error["param"] == "max_tokens");
  for (const char* part : {"400", "101", "500"}) {
    CHECK(error["message"].get<std::string>().find(part) != std::string::npos);
  }
  // What was not asked for is cut to the room that is left.
  CHECK(Parsed(post(490, nullptr))["usage"]["completion_tokens"] == 10);
  CHECK(Parsed(post(300, nullptr))["usage"]["completion_tokens"] == 16);
  const json chat = {{"messages", json::array({{{"role", "user"}, {"content", "hello"}}})}};
  CHECK(Parsed(bench.Post(kChat, chat))["usage"]["completion_tokens"] == 30);
  // The engine's own reason, whichever way the answer was to come.
  const ServerBench small;
  for (const bool stream : {false, true}) {
    error =
        ErrorOf(small.Post(kCompletions, {{"prompt", std::string(399, 'x')}, {"max_tokens", 10}, {"stream", stream}}));
    CHECK(error["code"] == 400);
    CHECK(error["message"].get<std::string>().find("99") != std::string::npos);
  }
}

TEST_CASE("what a request says wrongly is named in an error object") {
  const ServerBench bench(SmallInstance(2));
  const httplib::Headers none;
  struct Case {
    const char* path;
    json body;
    httplib::Headers headers;
    int status;
    const char* part;
  };
  const Case cases[] = {
      {kCompletions, {{"prompt", "x"}, {"model", "gpt-5"}}, none, 404, "gpt-5"},
      {kCompletions, {{"prompt", "x"}, {"max_tokens", 0}}, none, 400, "max_tokens"},
      {kCompletions, {{"max_tokens", 1}}, none, 400, "prompt"},
      {kCompletions, {{"prompt", "x"}, {"n", 1000}}, none, 400, "n"},
      {kChat, {{"prompt", "x"}}, none, 400, "messages"},
      {kCompletions, {{"prompt", "x"}}, {{"X-data-parallel-rank", "2"}}, 400, "0 to 1"},
      {kCompletions, {{"prompt", "x"}}, {{"X-data-parallel-rank", "-1"}}, 400, "X-data-parallel-rank"},
      {kCompletions, {{"prompt", "x"}}, {{"X-data-parallel-rank", "one"}}, 400, "one"},
      {"/tokenize", json::object(), none, 400, "prompt"},
      {"/detokenize", {{"tokens", "x"}}, none, 400, "tokens"},
      {"/sleep?level=3", nullptr, none, 400, "level"},
      {"/reset_prefix_cache?reset_running_requests=maybe", nullptr, none, 400, "maybe"},
      {"/metrics", nullptr, none, 405, "GET"},
      {"/v2", nullptr, none, 404, "/v2"},
  };
  for (const Case& bad : cases) {
    CAPTURE(bad.path);
    CAPTURE(bad.body.dump());
    const json error = ErrorOf(bench.Post(bad.path, bad.body, bad.headers));
    CHECK(error["code"] == bad.status);
    CHECK(error["message"].get<std::string>().find(bad.part) != std::string::npos);
  }
  const auto garbage = bench.Client()->Post(kCompletions, "{\"prompt\": ", "application/json");
  CHECK(ErrorOf(garbage)["code"] == 400);
  CHECK(bench.instance().num_requests() == 0);
}

TEST_CASE("a client's request id comes back, and is part of the answer's id") {
  const ServerBench bench;
  const auto named = bench.Post(kCompletions, {{"prompt", "x"}}, {{"X-Request-Id", "req-17"}});
  CHECK(Parsed(named)["id"] == "cmpl-req-17");
  CHECK(named->get_header_value("X-Request-Id") == "req-17");
  CHECK(bench.Post(kCompletions, {{"prompt", 1}}, {{"X-Request-Id", "bad"}})->get_header_value("X-Request-Id") ==
        "bad");
  const auto broken = bench.Post(kCompletions, {{"prompt", "x"}}, {{"X-Request-Id", "a%0d%0aX-Evil: 1"}});
  CHECK_FALSE(broken->has_header("X-Evil"));
  CHECK_FALSE(broken->has_header("X-Request-Id"));
}

TEST_CASE("models, tokens, version and health") {
  engine::RoutesConfig routes;
  routes.models = {"first", "second"};
  ServerBench bench(SmallInstance(), routes);
  const json models = Parsed(bench.Get("/v1/models"));
  REQUIRE(models["data"].size() == 2);
  CHECK(models["data"][0]["id"] == "first");
  CHECK(models["data"][1]["id"] == "second");
  CHECK(models["data"][0]["max_model_len"] == 1000);
  CHECK(Parsed(bench.Post(kCompletions, {{"prompt", "x"}, {"model", "second"}}))["model"] == "second");
  CHECK(Parsed(bench.Post(kCompletions, {{"prompt", "x"}}))["model"] == "first");
  const json tokens = Parsed(bench.Post("/tokenize", {{"prompt", "hey"}}));
  CHECK(tokens["tokens"] == json({104, 101, 121}));
  CHECK(tokens["count"] == 3);
  CHECK(Parsed(bench.Post("/detokenize", {{"tokens", tokens["tokens"]}}))["prompt"] == "hey");
  CHECK(Parsed(bench.Get("/version"))["version"] == "1.2.3");
  CHECK(Parsed(bench.Get("/load"))["server_load"] == 0);
  CHECK(bench.Get("/health")->status == 200);
  CHECK(bench.Get("/ping")->status == 200);
  bench.routes().Close();
  const auto closed = bench.Get("/health");
  CHECK(ErrorOf(closed)["code"] == 503);
  const auto refused = bench.Post(kCompletions, {{"prompt", "x"}});
  CHECK(ErrorOf(refused)["code"] == 503);
  CHECK(refused->has_header("Retry-After"));
}

TEST_CASE("with keys, paths under /v1 need one of them") {
  engine::RoutesConfig routes;
  routes.api_keys = {"first-key", "second-key"};
  const ServerBench bench(SmallInstance(), routes);
  const json request = {{"prompt", "x"}};
  for (const char* header : {"", "Bearer", "Bearer first-ke", "Bearer first-keys", "Basic first-key", "first-key"}) {
    CAPTURE(header);
    CHECK(ErrorOf(bench.Post(kCompletions, request, {{"Authorization", header}}))["code"] == 401);
  }
  CHECK(ErrorOf(bench.Get("/v1/models"))["code"] == 401);
  for (const char* header : {"Bearer first-key", "Bearer second-key", "bearer first-key", "BEARER second-key"}) {
    Parsed(bench.Post(kCompletions, request, {{"Authorization", header}}));
  }
  CHECK(bench.Get("/health")->status == 200);
  CHECK(bench.Get("/metrics")->status == 200);
}

TEST_CASE("D10: kv_cache_report_mode full in vllm_xargs announces the reused prefix again, nothing else does") {
  using Kind = SeenEvent::Kind;
  const ServerBench bench;
  const auto ask = [&](const std::string& prompt, const json& xargs) {
    const std::size_t before = bench.Events().size();
    json request = {{"prompt", prompt}, {"max_tokens", 1}};
    if (!xargs.is_null()) request["vllm_xargs"] = xargs;
    Parsed(bench.Post(kCompletions, request));
    std::vector<SeenEvent> events = bench.Events();
    events.erase(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(before));
    return events;
  };
  REQUIRE(ask(std::string(16, 'x'), nullptr).size() == 1);
  const std::vector<SeenEvent> full = ask(std::string(16, 'x') + "tail", {{"kv_cache_report_mode", "full"}});
  REQUIRE(full.size() == 2);
  CHECK(full[0] == SeenEvent{Kind::kStored, 4, false, full[0].batch, 0});
  CHECK(full[1] == SeenEvent{Kind::kStored, 1, true, full[0].batch, 0});
  const json others[] = {nullptr,
                         {{"kv_cache_report_mode", "incremental"}},
                         {{"kv_cache_report_mode", "FULL"}},
                         {{"kv_cache_report_mode", 7}}};
  for (const json& xargs : others) {
    CAPTURE(xargs.dump());
    CHECK(ask(std::string(16, 'x') + "y", xargs).empty());
  }
  CHECK(bench.Metric("kvwire_blocks_reported_total") == 4);
}

TEST_CASE("D12: while the model computes, nothing of its step is on the wire") {
  engine::InstanceConfig config = SmallInstance();
  config.time_model.prefill_overhead = std::chrono::hours(1);
  ServerBench bench(config);
  StreamingClient client(bench, {{"prompt", kPrompt}, {"stream", true}});
  CHECK(Eventually([&] { return bench.instance().num_requests() == 1; }));
  CHECK(bench.Events().empty());
  CHECK(bench.Metric("kvwire_publisher_batches_submitted_total") == 0);
  bench.instance().Shutdown(std::chrono::milliseconds(1000));
}

TEST_CASE("a client that leaves takes its requests with it") {
  // By themselves they would take 18 seconds.
  const ServerBench bench(SlowInstance(std::chrono::milliseconds(20)));
  for (const bool stream : {true, false}) {
    CAPTURE(stream);
    StreamingClient client(bench, {{"prompt", kPrompt}, {"max_tokens", 300}, {"n", 3}, {"stream", stream}});
    CHECK(Eventually([&] { return bench.instance().num_requests() == 3 && (client.started() || !stream); }));
    client.Leave();
    CHECK_FALSE(client.complete());
    CHECK(Eventually([&] { return bench.instance().num_requests() == 0; }));
    CHECK(Eventually([&] { return bench.instance().figures(0).running == 0; }));
  }
  CHECK(Eventually([&] { return bench.http().num_active() == 0; }));
  std::istringstream metrics(bench.Get("/metrics")->body);
  std::string aborted;
  for (std::string line; std::getline(metrics, line);) {
    if (line.find("finished_reason=\"abort\"") != std::string::npos) aborted = line.substr(line.rfind(' '));
  }
  CHECK(aborted == " 6");
}

TEST_CASE("a full queue is status 429, for all choices of a request or none") {
  engine::InstanceConfig config = SlowInstance(std::chrono::hours(1));
  config.max_requests = 3;
  ServerBench bench(config);
  StreamingClient client(bench, {{"prompt", kPrompt}, {"max_tokens", 9}, {"n", 2}, {"stream", true}});
  CHECK(Eventually([&] { return bench.instance().num_requests() == 2; }));
  const auto refused = bench.Post(kCompletions, {{"prompt", "x"}, {"n", 2}});
  CHECK(ErrorOf(refused)["code"] == 429);
  CHECK(refused->has_header("Retry-After"));
  CHECK(Eventually([&] { return bench.instance().num_requests() == 2; }));
  // The choice that had found a place is refused with the other one.
  const std::string metrics = bench.Get("/metrics")->body;
  const std::string labels = R"({engine="0",model_name="sim",)";
  CHECK(metrics.find("kvwire_requests_refused_total" + labels + R"(reason="queue_full"} 2)") != std::string::npos);
  CHECK(metrics.find("vllm:request_success_total" + labels + R"(finished_reason="abort"} 0)") != std::string::npos);
  bench.instance().Shutdown(std::chrono::milliseconds(1000));
  client.Join();
}

TEST_CASE("a request with more choices than the queues have places is refused at once, with both numbers") {
  struct Case {
    std::uint32_t ranks;
    json prompts;
    int n;
    const char* rank;
    const char* choices;  // both null: it is answered
    const char* places;
  };
  const Case cases[] = {{1, {"x"}, 3, nullptr, nullptr, nullptr},
                        {1, {"x"}, 4, nullptr, "4 choices", "--max-queued-requests is 3"},
                        {1, {"x", "y"}, 2, nullptr, "4 choices", "--max-queued-requests is 3"},
                        {1, {"x", "y", "z", "zz"}, 1, nullptr, "4 choices", "--max-queued-requests is 3"},
                        {2, {"x"}, 6, nullptr, nullptr, nullptr},
                        {2, {"x"}, 7, nullptr, "7 choices", "at most 6"},
                        {2, {"x"}, 4, "1", "4 choices", "at most 3"}};
  for (const Case& one : cases) {
    CAPTURE(one.n);
    CAPTURE(one.prompts.dump());
    engine::InstanceConfig config = SmallInstance(one.ranks);
    config.max_requests = 3;
    const ServerBench bench(config);
    httplib::Headers headers;
    if (one.rank != nullptr) headers.emplace("X-data-parallel-rank", one.rank);
    const auto result = bench.Post(kCompletions, {{"prompt", one.prompts}, {"n", one.n}, {"max_tokens", 1}}, headers);
    if (one.choices == nullptr) {
      CHECK(Parsed(result)["choices"].size() == one.prompts.size() * static_cast<std::size_t>(one.n));
      continue;
    }
    const json error = ErrorOf(result);
    CHECK(error["code"] == 400);
    CHECK(error["param"] == (one.n > 1 ? "n" : "prompt"));
    for (const char* part : {one.choices, one.places, "--max-queued-requests"}) {
      CHECK_MESSAGE(error["message"].get<std::string>().find(part) != std::string::npos, error["message"]);
    }
    CHECK_FALSE(result->has_header("Retry-After"));
    CHECK(bench.instance().num_requests() == 0);
  }
}

TEST_CASE("the session's name is a text wherever it stands, and changes nothing") {
  const ServerBench bench;
  const json request = {{"prompt", kPrompt}, {"max_tokens", 6}};
  const json plain = Parsed(bench.Post(kCompletions, request))["choices"];
  json named = request;
  named["session_id"] = "body";
  named["vllm_xargs"] = {{"session_id", "xargs"}};
  CHECK(Parsed(bench.Post(kCompletions, named, {{"X-Session-ID", "header"}}))["choices"] == plain);
  json wrong = request;
  wrong["session_id"] = 5;
  CHECK(ErrorOf(bench.Post(kCompletions, wrong))["param"] == "session_id");
  wrong = request;
  wrong["vllm_xargs"] = {{"session_id", 5}};
  CHECK(ErrorOf(bench.Post(kCompletions, wrong))["param"] == "vllm_xargs.session_id");
}

TEST_CASE("refused requests are counted by reason") {
  engine::InstanceConfig config = SlowInstance(std::chrono::hours(1));
  config.max_requests = 3;
  config.scheduler.num_blocks = 50;
  ServerBench bench(config);
  const auto refused = [&](const char* reason) {
    const std::string line =
        std::string("kvwire_requests_refused_total{engine=\"0\",model_name=\"sim\",reason=\"") + reason + "\"} ";
    const std::string text = bench.Get("/metrics")->body;
    const std::size_t at = text.find("\n" + line);
    return at == std::string::npos ? -1 : std::stoi(text.substr(at + 1 + line.size()));
  };
  for (const char* reason : {"never_fits", "queue_full", "stopping", "tokenizer"}) CHECK(refused(reason) == 0);
  CHECK(ErrorOf(bench.Post(kCompletions, {{"prompt", std::string(300, 'x')}}))["code"] == 400);
  CHECK(Eventually([&] { return refused("never_fits") == 1; }));
  // Two that run, and two that find one place.
  StreamingClient client(bench, {{"prompt", kPrompt}, {"max_tokens", 9}, {"n", 2}, {"stream", true}});
  CHECK(Eventually([&] { return bench.instance().num_requests() == 2; }));
  CHECK(ErrorOf(bench.Post(kCompletions, {{"prompt", "x"}, {"n", 2}}))["code"] == 429);
  CHECK(refused("queue_full") == 2);
  bench.routes().Close();
  CHECK(ErrorOf(bench.Post(kCompletions, {{"prompt", "x"}}))["code"] == 503);
  CHECK(refused("stopping") == 1);
  // Both of the client's, too, which had not begun to be answered.
  bench.instance().Shutdown(std::chrono::milliseconds(1000));
  client.Join();
  CHECK(refused("stopping") == 3);
  CHECK(refused("never_fits") == 1);
  CHECK(refused("queue_full") == 2);
  CHECK(refused("tokenizer") == 0);
}

TEST_CASE("a stop ends waiting requests with 503, and streams with an error in their place") {
  ServerBench bench(SlowInstance(std::chrono::milliseconds(20)));
  const json request = {{"prompt", kPrompt}, {"max_tokens", 300}};
  json stream = request;
  stream["stream"] = true;
  // A stream whose first piece was never written would be refused by its status.
  StreamingClient streamed(bench, stream);
  CHECK(Eventually([&] { return streamed.started(); }));
  std::optional<httplib::Result> plain;
  std::thread waiting([&] { plain.emplace(bench.Post(kCompletions, request)); });
  CHECK(Eventually([&] { return bench.instance().num_requests() == 2; }));
  bench.routes().Close();
  bench.instance().Shutdown(std::chrono::milliseconds(1000));
  waiting.join();
  streamed.Join();
  CHECK(ErrorOf(*plain)["code"] == 503);
  const std::vector<json> events = EventsOf(streamed.body());
  CHECK(events.front().contains("choices"));
  CHECK(events.back()["error"]["code"] == 503);
}

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
