// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/tap_against.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/watchdog.h"

namespace kvwire::engine {
namespace {

// An engine's HTTP surface that says what it is told to.
class FakeEngine {
 public:
  explicit FakeEngine(const char* host = "127.0.0.1") {
    server_.Get("/kv/state", [this](const httplib::Request& request, httplib::Response& response) {
      std::unique_lock<std::mutex> lock(mutex_);
      ++requests_;
      const nlohmann::json said = body_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return !held_back_; });
      if (status_ != 200) {
        response.status = status_;
        return;
      }
      nlohmann::json body = said;
      if (request.get_param_value("blocks") != "1") body.erase("blocks");
      response.set_content(raw_.empty() ? body.dump() : raw_, "application/json");
    });
    port_ = server_.bind_to_any_port(host);
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (port_ >= 0 && !server_.is_running()) std::this_thread::yield();
  }
  ~FakeEngine() {
    LetAnswersGo();
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
  // What it says next is of another life.
  void BeginAnew() {
    const std::lock_guard<std::mutex> lock(mutex_);
    life_ += "'";
  }
  void SayRaw(std::string raw, int status = 200) {
    const std::lock_guard<std::mutex> lock(mutex_);
    raw_ = std::move(raw);
    status_ = status;
  }
  // From now on an answer says what was true when it was asked for, and leaves when LetAnswersGo is called.
  void HoldAnswersBack() {
    const std::lock_guard<std::mutex> lock(mutex_);
    held_back_ = true;
  }
  void LetAnswersGo() {
    const std::lock_guard<std::mutex> lock(mutex_);
    held_back_ = false;
    changed_.notify_all();
  }
  int requests() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return requests_;
  }
  int port() const { return port_; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  httplib::Server server_;
  int port_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_back_ = false;
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
    said_shelf = said.ShelfOf(0, "GPU");
  }
  void Apply(SequenceNumber number, std::uint64_t block) {
    held.Add(held.ShelfOf(0, "GPU"), block);
    against->OnApplied(number, rank);
  }
  // The engine holds these blocks as of this message.
  void Say(SequenceNumber number, std::initializer_list<std::uint64_t> blocks) {
    HeldBlocks state;
    for (const std::uint64_t block : blocks) state.Add(state.ShelfOf(0, "GPU"), block);
    engine.Say(number, state);
  }
  // The stream begins anew.
  void Restart() {
    held.Clear();
    against->OnRestart();
  }
  bool LookAWhile() {
    return Until([looks = 0]() mutable { return ++looks > 100; });
  }
  std::uint64_t agreed() const { return against->counts().agreed; }
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
  HeldBlocks::ShelfId said_shelf = 0;
  std::optional<std::int64_t> rank;  // that the stream's batches name
  std::unique_ptr<AgainstEngine> against;
  std::vector<AgainstEngine::Disagreement> disagreements;
  MonotonicNanos now = 0;
};

TEST_CASE("a stream and its engine agree at equal numbers, whichever is ahead") {
  Bench bench;
  SUBCASE("the stream is ahead of an answer under way") {
    bench.engine.HoldAnswersBack();
    bench.Say(0, {1});
    bench.Apply(0, 1);
    REQUIRE(bench.Until([&] { return bench.engine.requests() > 0; }));
    bench.Say(1, {1, 2});
    bench.Apply(1, 2);
    bench.engine.LetAnswersGo();
  }
  SUBCASE("the engine is ahead") {
    bench.said.Add(bench.said_shelf, 1);
    bench.said.Add(bench.said_shelf, 2);
    bench.engine.Say(1, bench.said);
    bench.Apply(0, 1);
    CHECK(bench.LookAWhile());
    CHECK(bench.agreed() == 0);
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

TEST_CASE("a disagreement with another rank of the engine names both ranks") {
  Bench bench;
  const std::string ranks = "the stream is of data-parallel rank 3, the engine was asked for rank 0 (--against-rank)";
  SUBCASE("the stream names another rank") { bench.rank = 3; }
  SUBCASE("the stream names the same rank") { bench.rank = 0; }
  SUBCASE("the stream names none") {}
  bench.Apply(0, 1);
  bench.Say(0, {2});
  REQUIRE(bench.Until([&] { return !bench.disagreements.empty(); }));
  const bool named = bench.disagreements[0].what.find(ranks) != std::string::npos;
  CHECK(named == (bench.rank == 3));
  CHECK(bench.against->WhyRanksDiffer() == (bench.rank == 3 ? ranks : ""));
}

TEST_CASE("the last comparison is of the whole set") {
  Bench bench;
  bench.Apply(0, 1);
  bench.said.Add(bench.said_shelf, 1);
  bench.engine.Say(0, bench.said);
  bench.against->Finish();
  CHECK_FALSE(bench.against->finished());
  CHECK(bench.Until([&] { return bench.against->finished(); }));
  CHECK(bench.against->WhyUnfinished().empty());
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

TEST_CASE("an answer that waits for the stream is void when the stream begins anew") {
  Bench bench;
  bench.Apply(0, 1);
  bench.Say(3, {1, 2, 3, 4});
  CHECK(bench.LookAWhile());  // message 3 is lost
  bench.engine.BeginAnew();
  bench.Say(3, {11, 12, 13, 14});
  bench.Restart();
  for (SequenceNumber number = 0; number <= 3; ++number) bench.Apply(number, 11 + number);
  CHECK(bench.Until([&] { return bench.agreed() >= 3; }));
  CHECK(bench.LookAWhile());
  CHECK(bench.disagreements.empty());
  CHECK(bench.against->counts().disagreed == 0);
}

TEST_CASE("an answer that was asked for before the stream began anew is void") {
  Bench bench;
  bench.Apply(0, 1);
  bench.engine.HoldAnswersBack();
  bench.Say(0, {1});
  REQUIRE(bench.Until([&] { return bench.engine.requests() > 0; }));
  bench.Restart();
  bench.Apply(0, 9);
  bench.engine.BeginAnew();
  bench.Say(0, {9});
  bench.engine.LetAnswersGo();
  CHECK(bench.Until([&] { return bench.agreed() >= 3; }));
  CHECK(bench.LookAWhile());
  CHECK(bench.disagreements.empty());
  CHECK(bench.against->counts().disagreed == 0);
}

TEST_CASE("an engine that is behind its own stream has begun anew") {
  Bench bench;
  bench.Apply(0, 1);
  bench.Apply(1, 2);
  // The first answer of all: nothing is known of the stream's life yet.
  bench.engine.BeginAnew();
  bench.Say(0, {9});
  REQUIRE(bench.Until([&] { return bench.against->counts().missed > 3; }));
  CHECK(bench.against->counts().other_life);
  // It goes on, and passes the number that the stream stands at.
  bench.Say(1, {9, 10});
  CHECK(bench.LookAWhile());
  CHECK(bench.disagreements.empty());
  CHECK(bench.agreed() == 0);
  bench.Restart();
  bench.Apply(0, 9);
  bench.Apply(1, 10);
  CHECK(bench.Until([&] { return bench.agreed() >= 3; }));
  CHECK_FALSE(bench.against->counts().other_life);
  CHECK(bench.against->counts().disagreed == 0);
}

TEST_CASE("a disagreement is said only if the engine still lives the life that it was found with") {
  Bench bench;
  bench.Apply(0, 1);
  bench.Say(1, {1, 2});
  CHECK(bench.LookAWhile());  // message 1 is lost
  // The successor goes on with the lost number, so the stream cannot tell.
  bench.engine.BeginAnew();
  bench.Say(1, {9});
  bench.Apply(1, 9);
  CHECK(bench.LookAWhile());
  CHECK(bench.disagreements.empty());
  CHECK(bench.against->counts().disagreed == 0);
  CHECK(bench.against->counts().other_life);
}

TEST_CASE("an engine that began anew before the stream was compared at all is not held against it") {
  Bench bench;
  bench.Apply(0, 1);
  bench.engine.BeginAnew();
  bench.Say(0, {9});
  REQUIRE(bench.Until([&] { return bench.engine.requests() > 2; }));
  bench.Restart();
  bench.Apply(0, 9);
  CHECK(bench.Until([&] { return bench.agreed() >= 3; }));
  CHECK(bench.disagreements.empty());
  CHECK(bench.against->counts().disagreed == 0);
}

TEST_CASE("a disagreement at the end is said before the end") {
  Bench bench;
  bench.Apply(0, 1);
  bench.Say(0, {2});
  bench.against->Finish();
  CHECK(bench.Until([&] { return bench.against->finished(); }));
  REQUIRE(bench.disagreements.size() == 1);
  CHECK(bench.disagreements[0].what.find("first difference: the stream holds") != std::string::npos);
}

TEST_CASE("why the last comparison is missing is told") {
  Bench bench;
  bench.Apply(0, 1);
  std::string why;
  SUBCASE("an answer is under way") {
    bench.engine.HoldAnswersBack();
    bench.against->Finish();
    REQUIRE(bench.Until([&] { return bench.engine.requests() > 0; }));
    why = "the engine did not answer in time: the last comparison is missing";
  }
  SUBCASE("the stream is behind the answer") {
    bench.Say(1, {1, 2});
    bench.against->Finish();
    why = "the engine speaks of a message that did not come: the last comparison is missing";
  }
  SUBCASE("a disagreement waits for its proof") {
    bench.Say(0, {2});
    bench.against->Finish();
    why = "a disagreement was not confirmed by a second answer: the last comparison is missing";
  }
  CHECK(bench.Until([&] { return bench.against->WhyUnfinished() == why; }));
  CHECK_FALSE(bench.against->finished());
}

TEST_CASE("an engine that does not answer, or not with a state, is counted with the reason") {
  Bench bench;
  bench.Apply(0, 1);
  SUBCASE("status") {
    bench.engine.SayRaw("", 404);
    CHECK(bench.Until([&] { return bench.against->counts().unanswered > 0; }));
    CHECK(bench.against->counts().problem.find("status 404") != std::string::npos);
  }
  for (const char* raw :
       {"", "no json", "[]", "{\"digest\": 1}", "{\"digest\": \"empty\", \"blocks\": [1]}",
        "{\"digest\": \"empty\", \"blocks\": 1}", "{\"digest\": \"empty\", \"batch\": -1}",
        "{\"digest\": \"empty\", \"blocks\": [\"\"]}", "{\"digest\": \"\xff\"}", "{\"digest\": \"e\"} x"}) {
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

// Answers every connection with `head`, and then with `again` over and over, a pause of `between` milliseconds before
// each.
class HostileServer {
 public:
  HostileServer(std::string head, std::string again, int between)
      : head_(std::move(head)),
        again_(std::move(again)),
        between_(between),
        listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    REQUIRE(bind(listener_, reinterpret_cast<const sockaddr*>(&address), size) == 0);
    REQUIRE(listen(listener_, 8) == 0);
    REQUIRE(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { Serve(); });
  }
  HostileServer(const HostileServer&) = delete;
  HostileServer& operator=(const HostileServer&) = delete;
  ~HostileServer() {
    stopping_ = true;
    thread_.join();
    close(listener_);
  }
  const std::string& url() const { return url_; }
  bool Serving() const { return serving_; }

 private:
  void Serve() {
    while (!stopping_) {
      pollfd waiting{listener_, POLLIN, 0};
      if (poll(&waiting, 1, 10) <= 0) continue;
      const int peer = accept(listener_, nullptr, nullptr);
      serving_ = true;
      bool there = Send(peer, head_);
      while (there && !stopping_) {
        if (between_ > 0) std::this_thread::sleep_for(std::chrono::milliseconds(between_));
        there = Send(peer, again_);
      }
      close(peer);
    }
  }
  bool Send(int peer, std::string_view bytes) const {
    while (!bytes.empty() && !stopping_) {
      pollfd waiting{peer, POLLOUT, 0};
      if (poll(&waiting, 1, 10) <= 0) continue;
      const ssize_t sent = send(peer, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  const std::string head_;
  const std::string again_;
  const int between_;
  const int listener_;
  std::string url_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> serving_{false};
  std::thread thread_;
};

TEST_CASE("an engine that trickles, or says nothing, delays no end") {
  struct Case {
    const char* head;
    const char* again;
  };
  for (const Case& slow : {Case{"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", "x"},
                           {"", "H"},
                           {"HTTP/1.1 200 OK\r\n", "x: y\r\n"},
                           {"", ""}}) {
    CAPTURE(slow.head);
    const HostileServer server(slow.head, slow.again, 20);
    auto client = TruthClient::Create(server.url(), 0);
    REQUIRE(client.has_value());
    (*client)->Ask(TruthClient::Detail::kDigest);
    while (!server.Serving()) std::this_thread::yield();
    const test::Watchdog watchdog("the client's end");
    client->reset();
  }
}

TEST_CASE("what an engine says is bounded: head, body and depth") {
  struct Case {
    std::string head;
    std::string again;
    const char* problem;
  };
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  const std::string some(65536, 'x');
  const std::string nested = R"({"digest": "empty", "a": )" + std::string(1'000'000, '[');
  for (const Case& hostile :
       {Case{ok + "\r\n", some, "larger than 67108864 bytes"},
        {ok + "Content-Length: 67108865\r\n\r\n", some, "larger than 67108864 bytes"},
        {ok, "x: " + some + "\r\n", "head is larger than 65536 bytes"},
        {ok + "Content-Length: x\r\n\r\n", some, "Invalid Content-Length"},
        {ok + "Transfer-Encoding: chunked\r\n\r\n", some, "in chunked-encoding"},
        {"NO\r\n\r\n", some, "HTTP/0.9"},
        {ok + "Content-Length: " + std::to_string(nested.size()) + "\r\n\r\n" + nested, "x", "not a KV state"}}) {
    CAPTURE(hostile.problem);
    const HostileServer server(hostile.head, hostile.again, 0);
    auto client = TruthClient::Create(server.url(), 0);
    REQUIRE(client.has_value());
    (*client)->Ask(TruthClient::Detail::kDigest);
    std::optional<TruthClient::Answer> answer;
    for (int i = 0; i < 20'000 && !answer; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      answer = (*client)->TryTake();
    }
    REQUIRE(answer);
    CHECK_FALSE(answer->truth);
    CHECK_MESSAGE(answer->problem.find(hostile.problem) != std::string::npos, answer->problem);
  }
}

TEST_CASE("an engine is found at a host in brackets, and by name") {
  for (const auto& [bound, host] : {std::pair("::1", "[::1]"), {"127.0.0.1", "localhost"}}) {
    CAPTURE(host);
    FakeEngine engine(bound);
    if (engine.port() < 0) {
      MESSAGE("no IPv6 here");
      continue;
    }
    engine.Say(7, HeldBlocks());
    auto client = TruthClient::Create("http://" + std::string(host) + ":" + std::to_string(engine.port()) + "/", 0);
    REQUIRE(client.has_value());
    (*client)->Ask(TruthClient::Detail::kDigest);
    std::optional<TruthClient::Answer> answer;
    for (int i = 0; i < 5000 && !answer; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      answer = (*client)->TryTake();
    }
    REQUIRE(answer);
    REQUIRE_MESSAGE(answer->truth, answer->problem);
    CHECK(answer->truth->batch == 7);
  }
}

TEST_CASE("a URL that is none is refused by name") {
  for (const char* url :
       {"", "localhost:8000", "https://localhost:8000", "http://localhost", "http://:80", "http://host:0",
        "http://host:x", "http://host:65536", "http://::1:80", "http://[::1]", "http://[]:80", "http://[::1:80",
        "http://::1]:80", "http://a b:80", "http://a@host:80", "http://host:80/x", "http://h\r\nx:80"}) {
    const auto client = TruthClient::Create(url, 0);
    REQUIRE_FALSE(client.has_value());
    CHECK(client.error().message.find("--against") == 0);
  }
}

}  // namespace
}  // namespace kvwire::engine
