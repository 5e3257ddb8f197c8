// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/routes.h"

#include <chrono>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/integration/serve/routes_client.h"
#include "tests/integration/serve/server_bench.h"
#include "tests/support/watchdog.h"

namespace kvwire::test {
namespace {

using nlohmann::json;

constexpr const char* kChat = "/v1/chat/completions";

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

}  // namespace
}  // namespace kvwire::test
