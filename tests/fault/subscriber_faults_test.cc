// SPDX-License-Identifier: Apache-2.0
// Subscribers that come early, late, in crowds, or not where they are expected.
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kv_events/clock.h"
#include "kv_events/subscribe/event_stream.h"
#include "tests/support/publisher_bench.h"
#include "tests/support/tcp_proxy.h"
#include "tests/support/watchdog.h"

namespace kvwire::test {
namespace {

// Counts what it is told.
class NumberSink final : public StreamSink {
 public:
  void OnBatch(const StreamMessage& message, const DecodedBatch&) override { numbers.push_back(message.sequence); }
  void OnUndecodable(const StreamMessage&, const DecodeError&) override {}
  void OnRecovery(SequenceNumber, SequenceNumber) override {}
  void OnHealed(SequenceNumber, SequenceNumber) override {}
  void OnGap(const StreamGap& gap) override { gaps.push_back(gap); }
  void OnRestart(SequenceNumber, std::optional<SequenceNumber>) override { ++restarts; }
  void OnContinuity(Continuity) override {}
  void OnMalformed(std::size_t) override {}

  std::vector<SequenceNumber> numbers;
  std::vector<StreamGap> gaps;
  int restarts = 0;
};

// A stream over real sockets.
struct Subscriber {
  Subscriber(std::shared_ptr<ZmqContext> zmq, std::unique_ptr<ZmqLink> live, const std::string& replay_endpoint) {
    ReplayLinkFactory replay;
    if (!replay_endpoint.empty()) {
      replay = [zmq = std::move(zmq), replay_endpoint] {
        LinkOptions options;
        options.watch_peers = true;
        options.receive_hwm = 100'000;
        return ConnectTo(zmq, LinkKind::kDealer, replay_endpoint, options);
      };
    }
    stream = std::make_unique<EventStream>(std::move(live), std::move(replay), EventStreamOptions(), &sink);
  }
  // Until all of 0..last was applied.
  bool Reaches(SequenceNumber last) {
    return Eventually([&] {
      stream->DoWork(SystemClock::Get().Now());
      return !sink.numbers.empty() && sink.numbers.back() >= last;
    });
  }

  NumberSink sink;
  std::unique_ptr<EventStream> stream;
};

LinkOptions Watching() {
  LinkOptions options;
  options.watch_peers = true;
  options.receive_hwm = 0;
  return options;
}

// Whatever a loop publishes stays in the replay.
KVEventsConfig Roomy() {
  KVEventsConfig config = LoopbackConfig();
  config.buffer_steps = 10'000'000;
  return config;
}

void PublishMany(PublisherBench* bench, int batches) {
  for (int i = 0; i < batches; ++i) REQUIRE(bench->publisher->Publish({}) == PublishResult::kAccepted);
}

TEST_CASE("J1: whichever end binds, and however early the publisher begins, a consumer with a replay misses nothing") {
  for (const SocketMode mode : {SocketMode::kBind, SocketMode::kConnect}) {
    CAPTURE(static_cast<int>(mode));
    const auto zmq = ZmqContext::Create();
    KVEventsConfig config = Roomy();
    config.kvwire.mode = mode;
    std::unique_ptr<ZmqLink> live;
    if (mode == SocketMode::kConnect) {
      auto bound = ZmqLink::Bind(zmq, LinkKind::kSub, *Endpoint::Parse("tcp://127.0.0.1:0", "endpoint"), Watching());
      REQUIRE(bound.has_value());
      live = *std::move(bound);
      config.endpoint = live->endpoint();
    }
    PublisherBench bench(config);
    PublishMany(&bench, 20);
    if (!live) live = ConnectTo(zmq, LinkKind::kSub, bench.publisher->source()->endpoint, Watching());
    Subscriber subscriber(zmq, std::move(live), bench.publisher->source()->replay_endpoint.value());
    PublishMany(&bench, 5);
    REQUIRE(subscriber.Reaches(19));
    // What the replay did not have yet when it was asked, and the subscription missed, comes with the next batch.
    REQUIRE(Eventually([&] {
      PublishMany(&bench, 1);
      REQUIRE(bench.Settled());
      subscriber.stream->DoWork(SystemClock::Get().Now());
      return subscriber.sink.numbers.size() > 25;
    }));
    CHECK(subscriber.sink.numbers == Range(0, subscriber.sink.numbers.back()));
    CHECK(subscriber.sink.gaps.empty());
  }
}

TEST_CASE("J1: a consumer without a replay that comes late says from where on it hears") {
  PublisherBench bench;
  PublishMany(&bench, 20);
  REQUIRE(bench.Settled());
  Subscriber subscriber(bench.context,
                        ConnectTo(bench.context, LinkKind::kSub, bench.publisher->source()->endpoint, Watching()), "");
  REQUIRE(Eventually([&] {
    PublishMany(&bench, 1);
    subscriber.stream->DoWork(SystemClock::Get().Now());
    return !subscriber.sink.numbers.empty();
  }));
  REQUIRE(subscriber.sink.gaps.size() == 1);
  CHECK(subscriber.sink.gaps[0].joined_late);
  CHECK(subscriber.sink.gaps[0].from == 0);
  CHECK(subscriber.sink.gaps[0].to == subscriber.sink.numbers[0] - 1);
  CHECK(subscriber.stream->status().state != StreamState::kSynchronised);
}

TEST_CASE("J12: what is published between the replay's answer and the arrival of the subscription is not lost") {
  PublisherBench bench(Roomy());
  const std::string events = bench.publisher->source()->endpoint;
  TcpProxy proxy(static_cast<std::uint16_t>(std::stoi(events.substr(events.rfind(':') + 1))));
  proxy.Delay(std::chrono::milliseconds(100));
  PublishMany(&bench, 10);
  Subscriber subscriber(bench.context, ConnectTo(bench.context, LinkKind::kSub, proxy.endpoint(), Watching()),
                        bench.publisher->source()->replay_endpoint.value());
  // The subscription is under way, the replay has answered.
  REQUIRE(subscriber.Reaches(9));
  SequenceNumber next = 10;
  REQUIRE(Eventually([&] {
    PublishMany(&bench, 1);
    ++next;
    REQUIRE(bench.Settled());
    subscriber.stream->DoWork(SystemClock::Get().Now());
    return bench.publisher->stats().subscriptions > 0;
  }));
  PublishMany(&bench, 1);
  REQUIRE(subscriber.Reaches(next));
  CHECK(subscriber.sink.numbers == Range(0, next));
  CHECK(subscriber.sink.gaps.empty());
  CHECK(subscriber.sink.restarts == 0);
}

TEST_CASE("J10: a thousand subscribers that come and go hold up neither Publish nor the stream") {
  PublisherBench bench;
  const auto steady = bench.Subscribe("test");
  SequenceNumber next = Join(bench.publisher.get(), steady.get());
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<ZmqLink>> crowd;
    for (int i = 0; i < 50; ++i) crowd.push_back(bench.Subscribe("test", 10));
    const SequenceNumber first = next;
    {
      const Watchdog watchdog("Publish, while subscribers come and go,");
      for (; next < first + 100; ++next) REQUIRE(bench.publisher->Publish({}) == PublishResult::kAccepted);
    }
    CHECK(Numbers(ReadLive(steady.get(), 100)) == Range(first, next - 1));
  }
  CHECK(Eventually([&] { return bench.publisher->stats().subscriptions == 1; }));
  CHECK(Balanced(bench.publisher->stats(), next));
}

TEST_CASE("J6: children of the engine, forked or spawned, leave its publisher alone") {
  PublisherBench bench;
  const auto subscriber = bench.Subscribe("test");
  SequenceNumber next = Join(bench.publisher.get(), subscriber.get());
  for (const bool spawned : {false, true}) {
    CAPTURE(spawned);
    pid_t child = -1;
    if (spawned) {
      char program[] = "/bin/true";
      char* const words[] = {program, nullptr};
      REQUIRE(posix_spawn(&child, program, nullptr, nullptr, words, environ) == 0);
    } else {
      child = fork();
      if (child == 0) _exit(0);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(bench.publisher->Publish({}) == PublishResult::kAccepted);
    CHECK(Numbers(ReadLive(subscriber.get(), 1)) == Range(next, next));
    ++next;
    const auto dealer = bench.Dealer();
    Ask(dealer.get(), 0);
    CHECK(Numbers(ReadReplay(dealer.get())) == Range(next > 100 ? next - 100 : 0, next - 1));
  }
  CHECK(Balanced(bench.publisher->stats(), next));
}

}  // namespace
}  // namespace kvwire::test
