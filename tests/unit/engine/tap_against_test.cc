// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/tap_against.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <httplib.h>
#include <nlohmann/json.hpp>

namespace kvwire::engine {
namespace {

// An engine's HTTP surface that says what it is told to.
class FakeEngine {
 public:
  FakeEngine() {
    server_.Get("/kv/state", [this](const httplib::Request& request, httplib::Response& response) {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++requests_;
      if (status_ != 200) {
        response.status = status_;
        return;
      }
      nlohmann::json body = body_;
      if (request.get_param_value("blocks") != "1") body.erase("blocks");
      response.set_content(raw_.empty() ? body.dump() : raw_, "application/json");
    });
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~FakeEngine() {
    server_.stop();
    thread_.join();
  }

  void Say(std::optional<SequenceNumber> batch, const HeldBlocks& held) {
    std::vector<std::string> lines;
    held.Dump([&lines](std::string_view line) { lines.emplace_back(line); });
    const std::lock_guard<std::mutex> lock(mutex_);
    body_ = {{"batch", batch ? nlohmann::json(*batch) : nlohmann::json(nullptr)},
             {"life", life_},
             {"digest", held.digest().ToString()},
             {"blocks", lines}};
  }
  void BeginAnew() {
    const std::lock_guard<std::mutex> lock(mutex_);
    life_ += "'";
  }
  void SayRaw(std::string raw, int status = 200) {
    const std::lock_guard<std::mutex> lock(mutex_);
    raw_ = std::move(raw);
    status_ = status;
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  httplib::Server server_;
  int port_ = 0;
  std::mutex mutex_;
  std::string life_ = "a";
  nlohmann::json body_;
  std::string raw_;
  int status_ = 200;
  int requests_ = 0;
  std::thread thread_;
};

struct Bench {
  Bench() {
    auto client = TruthClient::Create(engine.url(), 0);
    REQUIRE(client.has_value());
    against = std::make_unique<AgainstEngine>(*std::move(client), &held);
    shelf = held.ShelfOf(0, "GPU");
    said_shelf = said.ShelfOf(0, "GPU");
  }
  void Apply(SequenceNumber number, std::uint64_t block) {
    held.Add(shelf, block);
    against->OnApplied(number);
  }
  // Looks until the condition holds; keeps the disagreements.
  bool Until(const std::function<bool()>& condition) {
    for (int i = 0; i < 5000 && !condition(); ++i) {
      now += 20'000'000;
      if (auto disagreement = against->DoWork(now)) disagreements.push_back(*std::move(disagreement));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return condition();
  }

  FakeEngine engine;
  HeldBlocks held;
  HeldBlocks said;
  HeldBlocks::ShelfId shelf = 0;
  HeldBlocks::ShelfId said_shelf = 0;
  std::unique_ptr<AgainstEngine> against;
  std::vector<AgainstEngine::Disagreement> disagreements;
  MonotonicNanos now = 0;
};

TEST_CASE("a stream and its engine agree at equal numbers, whichever is ahead") {
  Bench bench;
  SUBCASE("the stream is ahead") {
    bench.Apply(0, 1);
    bench.said.Add(bench.said_shelf, 1);
    bench.Apply(1, 2);
    bench.engine.Say(0, bench.said);
  }
  SUBCASE("the engine is ahead") {
    bench.said.Add(bench.said_shelf, 1);
    bench.said.Add(bench.said_shelf, 2);
    bench.engine.Say(1, bench.said);
    bench.Apply(0, 1);
    CHECK(bench.Until([looks = 0]() mutable { return ++looks > 100; }));
    CHECK(bench.against->counts().agreed == 0);
    bench.Apply(1, 2);
  }
  CHECK(bench.Until([&] { return bench.against->counts().agreed >= 3; }));
  CHECK(bench.disagreements.empty());
  CHECK(bench.against->counts().missed == 0);
}

TEST_CASE("a disagreement is said once, and then explained by the first block that differs") {
  Bench bench;
  bench.Apply(0, 1);
  bench.Apply(1, 5);
  bench.said.Add(bench.said_shelf, 1);
  bench.said.Add(bench.said_shelf, 4);
  bench.engine.Say(1, bench.said);
  REQUIRE(bench.Until([&] { return bench.disagreements.size() == 2; }));
  CHECK(bench.disagreements[0].number == 1);
  CHECK(bench.disagreements[0].what.find("after message 1 the engine holds 0/GPU 2:") == 0);
  CHECK(bench.disagreements[1].what.find("first difference: the engine holds 0 GPU 0000000000000004, the stream does "
                                         "not") != std::string::npos);
  CHECK(bench.Until([&] { return bench.against->counts().disagreed >= 5; }));
  CHECK(bench.disagreements.size() == 2);
}

TEST_CASE("the last comparison is of the whole set") {
  Bench bench;
  bench.Apply(0, 1);
  bench.said.Add(bench.said_shelf, 1);
  bench.engine.Say(0, bench.said);
  bench.against->Finish();
  CHECK_FALSE(bench.against->finished());
  CHECK(bench.Until([&] { return bench.against->finished(); }));
  CHECK(bench.against->counts().agreed >= 1);
}

TEST_CASE("an engine that began anew is not compared before the stream has heard of it") {
  Bench bench;
  bench.Apply(0, 1);
  bench.said.Add(bench.said_shelf, 1);
  bench.engine.Say(0, bench.said);
  REQUIRE(bench.Until([&] { return bench.against->counts().agreed > 0; }));
  bench.engine.BeginAnew();
  HeldBlocks other;
  other.Add(other.ShelfOf(0, "GPU"), 9);
  bench.engine.Say(0, other);
  REQUIRE(bench.Until([&] { return bench.against->counts().missed > 1; }));
  CHECK(bench.against->counts().other_life);
  CHECK(bench.disagreements.empty());
  bench.held.Clear();
  bench.against->OnRestart();
  bench.Apply(0, 9);
  const std::uint64_t before = bench.against->counts().agreed;
  CHECK(bench.Until([&] { return bench.against->counts().agreed > before; }));
  CHECK_FALSE(bench.against->counts().other_life);
}

TEST_CASE("an engine that does not answer, or not with a state, is counted with the reason") {
  Bench bench;
  bench.Apply(0, 1);
  SUBCASE("status") {
    bench.engine.SayRaw("", 404);
    CHECK(bench.Until([&] { return bench.against->counts().unanswered > 0; }));
    CHECK(bench.against->counts().problem.find("status 404") != std::string::npos);
  }
  for (const char* raw : {"", "no json", "[]", "{\"digest\": 1}", "{\"digest\": \"empty\", \"blocks\": [1]}",
                          "{\"digest\": \"empty\", \"blocks\": 1}"}) {
    bench.engine.SayRaw(raw[0] == '\0' ? " " : raw);
    const std::uint64_t before = bench.against->counts().unanswered;
    CHECK(bench.Until([&] { return bench.against->counts().unanswered > before; }));
  }
  CHECK(bench.against->counts().agreed == 0);
  bench.against->Finish();
  CHECK(bench.Until([&] { return bench.against->finished(); }));
}

TEST_CASE("an engine that has published nothing is nothing to compare with") {
  Bench bench;
  bench.engine.Say(std::nullopt, bench.said);
  bench.against->Finish();
  CHECK(bench.Until([&] { return bench.against->finished(); }));
  CHECK(bench.against->counts().agreed == 0);
}

TEST_CASE("a URL that is none is refused by name") {
  for (const char* url : {"", "localhost:8000", "https://localhost:8000", "http://localhost", "http://:80",
                          "http://host:0", "http://host:x", "http://host:65536"}) {
    const auto client = TruthClient::Create(url, 0);
    REQUIRE_FALSE(client.has_value());
    CHECK(client.error().message.find("--against") == 0);
  }
}

}  // namespace
}  // namespace kvwire::engine
