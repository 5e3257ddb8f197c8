// SPDX-License-Identifier: Apache-2.0
// Subscribers that come early, late, in crowds, or not where they are expected.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
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
#include "kv_events/subscribe/stream_set.h"
#include "kv_events/subscribe/watched_stream.h"
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

TEST_CASE("J8: behind a frame above the limit a stream without a replay goes on over a new socket, and is not whole") {
  KVEventsConfig config = LoopbackConfig();
  config.replay_endpoint.reset();
  PublisherBench bench(config);
  StreamSet::Options options;
  options.context = bench.context;
  options.stream.stream.decode.limits.max_payload_bytes = 2000;  // what the SUB takes, too
  StreamSet set(options);
  StreamAddress address;
  address.name = "engine";
  address.endpoint = *Endpoint::Parse(bench.publisher->source()->endpoint, "endpoint");
  REQUIRE(set.Add(address).has_value());
  const auto figures = [&set] { return set.Snapshot().front(); };
  REQUIRE(Eventually([&] { return bench.publisher->stats().subscriptions > 0; }));
  PublishMany(&bench, 5);
  REQUIRE(Eventually([&] { return figures().next == 5; }));
  REQUIRE(figures().status.state == StreamState::kSynchronised);
  REQUIRE(bench.publisher->Publish(StoreBatch(200)) == PublishResult::kAccepted);
  REQUIRE(Eventually([&] { return figures().counts.interruptions == 1; }));
  CHECK(figures().status.state != StreamState::kSynchronised);
  REQUIRE(Eventually([&] {
    PublishMany(&bench, 1);
    return figures().next > 8;
  }));
  CHECK(figures().connected);
  CHECK(figures().status.state == StreamState::kUnsynchronised);
  CHECK(figures().stream.missing > 0);
  CHECK(figures().verdict == CheckVerdict::kIncomplete);
}

TEST_CASE("J8: a frame above the SUB's limit is had from the replay, over a socket that takes it") {
  PublisherBench bench(Roomy());
  const auto address = [](const std::string& text) { return *Endpoint::Parse(text, "endpoint"); };
  const Endpoint events = address(bench.publisher->source()->endpoint);
  LinkOptions link = Watching();
  link.max_message_bytes = 2000;
  auto first = ZmqLink::Connect(bench.context, LinkKind::kSub, events, link);
  REQUIRE(first.has_value());
  NumberSink sink;
  EventStreamOptions options;
  options.check_interval = 200'000'000;
  EventStream stream(
      LiveLinksTo(bench.context, std::make_shared<EndpointLookup>(events), link, *std::move(first)),
      ReplayLinksTo(bench.context,
                    std::make_shared<EndpointLookup>(address(*bench.publisher->source()->replay_endpoint)), nullptr),
      options, &sink);
  const auto reaches = [&](SequenceNumber next) {
    return Eventually([&] {
      stream.DoWork(SystemClock::Get().Now());
      return stream.next() >= next && !stream.recovering();
    });
  };
  REQUIRE(Eventually([&] {
    stream.DoWork(SystemClock::Get().Now());
    return bench.publisher->stats().subscriptions > 0;
  }));
  PublishMany(&bench, 5);
  REQUIRE(reaches(5));
  REQUIRE(bench.publisher->Publish(StoreBatch(200)) == PublishResult::kAccepted);
  REQUIRE(reaches(6));
  REQUIRE(Eventually([&] {
    stream.DoWork(SystemClock::Get().Now());
    return bench.publisher->stats().subscriptions > 0;
  }));
  PublishMany(&bench, 5);
  REQUIRE(reaches(11));
  CHECK(sink.numbers == Range(0, 10));
  CHECK(sink.gaps.empty());
  CHECK(sink.restarts == 0);
  CHECK(stream.live_peers().connected == 2);
  CHECK(stream.status().state == StreamState::kSynchronised);
}

TEST_CASE("J8: a request above the ROUTER's limit ends its client's connection; the others are served on") {
  PublisherBench bench;
  PublishMany(&bench, 10);
  REQUIRE(bench.Settled());
  const auto before = bench.Dealer();
  Ask(before.get(), 0);
  REQUIRE(Numbers(ReadReplay(before.get())) == Range(0, 9));
  LinkOptions watching;
  watching.watch_peers = true;
  const auto hostile =
      ConnectTo(bench.context, LinkKind::kDealer, bench.publisher->source()->replay_endpoint.value(), watching);
  REQUIRE(Eventually([&] { return hostile->peers().connected == 1; }));
  for (const std::size_t size : {std::size_t{4097}, std::size_t{1} << 20}) {
    const std::uint64_t ended = hostile->peers().disconnected;
    REQUIRE(SendFrames(hostile.get(), {{}, std::vector<std::uint8_t>(size, 7)}) == SendResult::kSent);
    CHECK(Eventually([&] { return hostile->peers().disconnected > ended; }));
    Ask(before.get(), 5);
    CHECK(Numbers(ReadReplay(before.get())) == Range(5, 9));
    REQUIRE(Eventually([&] { return hostile->peers().present() == 1; }));
  }
  // The same client, with a request of the right size.
  Ask(hostile.get(), 8);
  CHECK(Numbers(ReadReplay(hostile.get())) == Range(8, 9));
  CHECK(bench.publisher->stats().replay_requests == 4);
}

// What a child says of itself: 0, or the number of the first expectation that did not hold.
class ChildVerdict {
 public:
  void Expect(bool holds) {
    ++number_;
    if (!holds && failed_ == 0) failed_ = number_;
  }
  int failed() const { return failed_; }

 private:
  int number_ = 0;
  int failed_ = 0;
};

// Runs `work` in a forked child, which ends without any destructor but those that `work` calls. Its exit code, or -1 if
// a signal ended it, or it did not end within five seconds.
int InChild(const std::function<void(ChildVerdict*)>& work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(5);
    ChildVerdict verdict;
    work(&verdict);
    _exit(verdict.failed());
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_CASE("J6: a forked child that uses its parent's publisher is told so, and touches none of its sockets") {
  const std::string directory = [] {
    std::string text = "/tmp/kvwire.forkXXXXXX";
    REQUIRE(mkdtemp(text.data()) != nullptr);
    return text;
  }();
  KVEventsConfig config = LoopbackConfig();
  config.endpoint = "ipc://" + directory + "/events";
  std::optional<PublisherBench> bench(config);
  const auto subscriber = bench->Subscribe("test");
  const SequenceNumber next = Join(bench->publisher.get(), subscriber.get());
  const PublisherStats before = bench->publisher->stats();
  const int failed = InChild([&](ChildVerdict* verdict) {
    ZmqPublisher& publisher = *bench->publisher;
    verdict->Expect(publisher.Publish(StoreBatch(1)) == PublishResult::kUsedAfterFork);
    verdict->Expect(publisher.PublishChunk({}) == PublishResult::kUsedAfterFork);
    verdict->Expect(publisher.last_error().starts_with("used after fork"));
    verdict->Expect(!publisher.HasRoom());
    verdict->Expect(publisher.TakeSpare().empty());
    publisher.Wake();
    verdict->Expect(publisher.stats() == before);
    publisher.Close();
    verdict->Expect(subscriber->TrySend({}) == SendResult::kFailed);
    verdict->Expect(!subscriber->TryReceive().has_value());
    const auto link = ZmqLink::Connect(bench->context, LinkKind::kSub, *Endpoint::Parse("inproc://nobody", "endpoint"),
                                       LinkOptions());
    verdict->Expect(!link && link.error().message.find("used after fork") != std::string::npos);
    bench.reset();
  });
  CHECK(failed == 0);
  CHECK(access((directory + "/events").c_str(), F_OK) == 0);
  CHECK(bench->publisher->Publish({}) == PublishResult::kAccepted);
  CHECK(Numbers(ReadLive(subscriber.get(), 1)) == Range(next, next));
  CHECK(Balanced(bench->publisher->stats(), next + 1));
  bench.reset();
  CHECK(rmdir(directory.c_str()) == 0);
}

TEST_CASE("J6: a forked child that uses its parent's streams is told so, joins no thread, and can have its own") {
  PublisherBench bench(Roomy());
  StreamAddress address;
  address.name = "engine";
  address.endpoint = *Endpoint::Parse(bench.publisher->source()->endpoint, "endpoint");
  address.replay_endpoint = *Endpoint::Parse(*bench.publisher->source()->replay_endpoint, "replay_endpoint");
  StreamSet::Options options;
  options.context = bench.context;
  std::optional<StreamSet> set(options);
  REQUIRE(set->Add(address).has_value());
  PublishMany(&bench, 10);
  REQUIRE(Eventually([&] { return set->Snapshot().front().next == 10; }));
  const int failed = InChild([&](ChildVerdict* verdict) {
    const Status added = set->Add(address);
    verdict->Expect(!added && added.error().message.find("used after fork") != std::string::npos);
    verdict->Expect(set->Snapshot().empty() && set->size() == 0);
    verdict->Expect(!set->Remove("engine").has_value() && set->RemoveAll().empty());
    set->Confirm();
    set.reset();
#ifndef __SANITIZE_THREAD__  // it ends a child of several threads that starts one
    StreamSet own{StreamSet::Options()};
    verdict->Expect(own.Add(address).has_value());
    verdict->Expect(Eventually([&] { return own.Snapshot().front().next == 10; }));
#endif
  });
  CHECK(failed == 0);
  PublishMany(&bench, 10);
  CHECK(Eventually([&] { return set->Snapshot().front().next == 20; }));
  CHECK(set->Snapshot().front().counts.interruptions == 0);
}

}  // namespace
}  // namespace kvwire::test
