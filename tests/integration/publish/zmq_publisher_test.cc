// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/zmq_publisher.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/wire/decoder.h"
#include "tests/support/manual_clock.h"
#include "tests/support/own_loopback.h"
#include "tests/support/publisher_bench.h"

namespace kvwire::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

KVEventsConfig WithEndpoints(const std::string& endpoint, const std::string& replay) {
  KVEventsConfig config = LoopbackConfig();
  config.endpoint = endpoint;
  config.replay_endpoint = replay;
  return config;
}

TEST_CASE("a batch of five events arrives over every transport, live and replayed") {
  const std::pair<std::string, std::string> transports[] = {
      {"tcp://127.0.0.1:0", "tcp://127.0.0.1:0"}, {"inproc://events", "inproc://replay"}, {"ipc://*", "ipc://*"}};
  for (const auto& transport : transports) {
    const std::string& endpoint = transport.first;
    const std::string& replay = transport.second;
    CAPTURE(endpoint);
    PublisherBench bench(WithEndpoints(endpoint, replay));
    const auto subscriber = bench.Subscribe("test");
    const SequenceNumber next = Join(bench.publisher.get(), subscriber.get());
    CHECK(bench.publisher->Publish(StoreBatch(5)) == PublishResult::kAccepted);
    const std::vector<Live> live = ReadLive(subscriber.get(), 1);
    REQUIRE(live.size() == 1);
    CHECK(live[0].topic == "test");
    CHECK(live[0].number == next);
    CHECK(StoredHashes(live[0].payload) == std::vector<std::uint64_t>{1, 2, 3, 4, 5});
    CHECK(RankOf(live[0].payload) == 0);

    const auto dealer = bench.Dealer();
    Ask(dealer.get(), next);
    const std::vector<Replayed> replayed = ReadReplay(dealer.get());
    REQUIRE(Numbers(replayed) == Range(next, next));
    CHECK(replayed[0].payload == live[0].payload);
    CHECK(Balanced(bench.publisher->stats(), next + 1));
  }
}

TEST_CASE("the first number is 0, or 1 when told so") {
  for (const std::uint64_t first : {0u, 1u}) {
    KVEventsConfig config = LoopbackConfig();
    config.kvwire.first_seq = first;
    PublisherBench bench(config);
    for (int i = 0; i < 3; ++i) static_cast<void>(bench.publisher->Publish(StoreBatch(1)));
    REQUIRE(bench.Settled());
    const auto dealer = bench.Dealer();
    Ask(dealer.get(), 0);
    CHECK(Numbers(ReadReplay(dealer.get())) == Range(first, first + 2));
  }
}

TEST_CASE("the replay buffer keeps the last buffer_steps batches") {
  PublisherBench bench;
  for (int i = 0; i < 110; ++i) static_cast<void>(bench.publisher->Publish(StoreBatch(1)));
  REQUIRE(bench.Settled());
  const auto dealer = bench.Dealer();
  Ask(dealer.get(), 0);
  CHECK(Numbers(ReadReplay(dealer.get())) == Range(10, 109));
  CHECK(Balanced(bench.publisher->stats(), 110));
}

TEST_CASE("topics are filtered: a connected subscriber to \"bar\" gets nothing of \"foo\", and all of its own") {
  // An address of this process, so that the second publisher gets it again.
  KVEventsConfig config = WithEndpoints("tcp://" + OwnLoopback() + ":0", "tcp://127.0.0.1:0");
  config.topic = "foo";
  PublisherBench bench(config);
  const auto foo = bench.Subscribe("foo");
  const auto prefix = bench.Subscribe("fo");
  LinkOptions watched;
  watched.subscription = "bar";
  watched.watch_peers = true;
  const auto bar = ConnectTo(bench.context, LinkKind::kSub, bench.publisher->source()->endpoint, watched);
  REQUIRE(Eventually([&] { return bar->peers().connected == 1 && bench.publisher->stats().subscriptions == 2; }));
  for (std::uint64_t i = 0; i < 3; ++i) static_cast<void>(bench.publisher->Publish(StoreBatch(1, 10 + i)));
  for (const auto& listens : {foo.get(), prefix.get()}) {
    const std::vector<Live> live = ReadLive(listens, 3);
    CHECK(Numbers(live) == Range(0, 2));
    for (const Live& message : live) CHECK(message.topic == "foo");
  }
  config.endpoint = bench.publisher->source()->endpoint;
  bench.publisher->Close();

  // The same connections find a publisher of the other topic there.
  config.topic = "bar";
  PublisherOptions options;
  options.context = bench.context;
  Result<std::unique_ptr<ZmqPublisher>> second = ZmqPublisher::Create(config, options);
  REQUIRE(second);
  // A subscriber says again what it wants when its own thread looks.
  std::size_t heard = 0;
  REQUIRE(Eventually([&] {
    for (ZmqLink* const link : {foo.get(), prefix.get(), bar.get()}) {
      if (link->TryReceive()) ++heard;
    }
    return bar->peers().connected == 2 && (*second)->stats().subscriptions == 1;
  }));
  CHECK(heard == 0);
  static_cast<void>((*second)->Publish(StoreBatch(1, 20)));
  // The first thing that this subscriber hears at all.
  const std::vector<Live> live = ReadLive(bar.get(), 1);
  REQUIRE(live.size() == 1);
  CHECK(live[0].topic == "bar");
  CHECK(live[0].number == 0);
  CHECK(StoredHashes(live[0].payload) == std::vector<std::uint64_t>{21});
  CHECK_FALSE(foo->TryReceive());
  CHECK_FALSE(prefix->TryReceive());
}

TEST_CASE("the time stamp arrives as the one stamped, to the bit, live and replayed") {
  PublisherBench bench;
  const auto subscriber = bench.Subscribe("test");
  SequenceNumber next = Join(bench.publisher.get(), subscriber.get());
  const double stamps[] = {1700000000.5, 1700000000.1234567, std::nextafter(1700000000.0, 2e9), 0.1, 1e-300};
  for (const double stamp : stamps) {
    KVEventBatch batch = StoreBatch(1);
    batch.ts = stamp;
    static_cast<void>(bench.publisher->Publish(std::move(batch)));
    const std::vector<Live> live = ReadLive(subscriber.get(), 1);
    REQUIRE(live.size() == 1);
    CHECK(DecodeBatch(live[0].payload)->batch.ts == stamp);
    const auto dealer = bench.Dealer();
    Ask(dealer.get(), next++);
    const std::vector<Replayed> replayed = ReadReplay(dealer.get());
    REQUIRE(replayed.size() == 2);
    CHECK(DecodeBatch(replayed[0].payload)->batch.ts == stamp);
  }
}

TEST_CASE("each rank has its own address and tags its batches") {
  const KVEventsConfig config = WithEndpoints("inproc://ranks", "inproc://ranks-replay");
  const KVEventsConfig before = config;
  PublisherOptions options;
  options.dp_size = 2;
  options.context = ZmqContext::Create();
  for (const std::int64_t rank : {0, 1}) {
    CAPTURE(rank);
    options.data_parallel_rank = rank;
    Result<std::unique_ptr<ZmqPublisher>> made = ZmqPublisher::Create(config, options);
    REQUIRE(made);
    ZmqPublisher& publisher = **made;
    const EventSourceInfo source = publisher.source().value();
    CHECK(source.endpoint == (rank == 0 ? "inproc://ranks" : "inproc://ranks_dp1"));
    CHECK(source.replay_endpoint == (rank == 0 ? "inproc://ranks-replay" : "inproc://ranks-replay_dp1"));
    CHECK(source.data_parallel_rank == rank);
    CHECK(source.topic == "test");
    static_cast<void>(publisher.Publish(StoreBatch(static_cast<std::size_t>(rank) + 2)));
    KVEventBatch tagged = StoreBatch(1);
    tagged.data_parallel_rank = 7;
    static_cast<void>(publisher.Publish(std::move(tagged)));
    const auto dealer = ConnectTo(options.context, LinkKind::kDealer, *source.replay_endpoint);
    REQUIRE(Eventually([&] { return publisher.stats().queued == 0; }));
    Ask(dealer.get(), 0);
    const std::vector<Replayed> replayed = ReadReplay(dealer.get());
    REQUIRE(replayed.size() == 3);
    CHECK(RankOf(replayed[0].payload) == rank);
    CHECK(StoredHashes(replayed[0].payload).size() == static_cast<std::size_t>(rank) + 2);
    CHECK(RankOf(replayed[1].payload) == 7);
  }
  CHECK(config == before);
}

TEST_CASE("B2: port 0 gives every rank a port of its own, read back") {
  std::vector<std::unique_ptr<PublisherBench>> benches;
  std::vector<std::string> endpoints;
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    PublisherOptions options;
    options.data_parallel_rank = rank;
    options.dp_size = 4;
    benches.push_back(std::make_unique<PublisherBench>(WithEndpoints("tcp://*:0", "tcp://*:0"), options));
    const EventSourceInfo source = benches.back()->publisher->source().value();
    for (const std::string& text : {source.endpoint, source.replay_endpoint.value()}) {
      const Result<Endpoint> endpoint = Endpoint::Parse(text, "endpoint");
      REQUIRE(endpoint);
      CHECK(*endpoint->port > 1023);
      CHECK(std::find(endpoints.begin(), endpoints.end(), text) == endpoints.end());
      endpoints.push_back(text);
    }
  }
}

TEST_CASE("A11: a single batch and a replay request are served while the publisher is idle") {
  for (const bool host_wakes : {false, true}) {
    for (const bool wake : {false, true}) {
      CAPTURE(host_wakes);
      CAPTURE(wake);
      PublisherOptions options;
      options.host_wakes = host_wakes;
      PublisherBench bench(LoopbackConfig(), options);
      const auto subscriber = bench.Subscribe();
      const SequenceNumber next = Join(bench.publisher.get(), subscriber.get());
      for (SequenceNumber i = 0; i < 20; ++i) {
        static_cast<void>(bench.publisher->Publish(StoreBatch(1)));
        if (wake) bench.publisher->Wake();
        CHECK(Numbers(ReadLive(subscriber.get(), 1)) == Range(next + i, next + i));
      }
      const auto dealer = bench.Dealer();
      Ask(dealer.get(), next + 19);
      CHECK(Numbers(ReadReplay(dealer.get())) == Range(next + 19, next + 19));
    }
  }
}

TEST_CASE("B1: a connecting publisher says so and serves a subscriber that listens") {
  const auto context = ZmqContext::Create();
  LinkOptions all;
  Result<std::unique_ptr<ZmqLink>> subscriber =
      ZmqLink::Bind(context, LinkKind::kSub, *Endpoint::Parse("tcp://127.0.0.1:0", "endpoint"), all);
  REQUIRE(subscriber);
  LogCapture log;
  ManualClock clock;
  PublisherOptions options;
  options.log = log.sink();
  options.clock = &clock;
  KVEventsConfig config = WithEndpoints((*subscriber)->endpoint(), "tcp://127.0.0.1:0");
  config.kvwire.mode = SocketMode::kAuto;
  PublisherBench bench(config, options);
  CHECK(bench.publisher->source()->endpoint == config.endpoint);
  CHECK(log.Count(LogLevel::kInfo, "connecting the PUB socket to " + config.endpoint) == 1);
  CHECK(log.Count(LogLevel::kInfo, "binding the ROUTER socket") == 1);
  Join(bench.publisher.get(), subscriber->get());
  clock.Advance(seconds(60));
  static_cast<void>(bench.publisher->Publish(StoreBatch(1)));
  CHECK(ReadLive(subscriber->get(), 1).size() == 1);
  CHECK(log.Count(LogLevel::kWarning, "nobody listens") == 0);
}

TEST_CASE("B1: a connecting publisher without a peer warns once after five seconds") {
  LogCapture log;
  ManualClock clock;
  PublisherOptions options;
  options.log = log.sink();
  options.clock = &clock;
  KVEventsConfig config = WithEndpoints("ipc:///tmp/kvwire-nobody", "tcp://127.0.0.1:0");
  config.kvwire.mode = SocketMode::kConnect;
  PublisherBench bench(config, options);
  static_cast<void>(bench.publisher->Publish(StoreBatch(1)));
  REQUIRE(bench.Settled());
  clock.Advance(milliseconds(4999));
  static_cast<void>(bench.publisher->Publish(StoreBatch(1)));
  REQUIRE(bench.Settled());
  CHECK(log.Count(LogLevel::kWarning, "nobody listens") == 0);
  clock.Advance(milliseconds(2));
  CHECK(Eventually([&] { return log.Count(LogLevel::kWarning, "nobody listens at ipc:///tmp/kvwire-nobody") == 1; }));
  clock.Advance(seconds(60));
  static_cast<void>(bench.publisher->Publish(StoreBatch(1)));
  REQUIRE(bench.Settled());
  CHECK(log.Count(LogLevel::kWarning, "nobody listens") == 1);
}

TEST_CASE("L1: a wildcard address is bound with one warning that names token ids, loopback with none") {
  struct Case {
    std::string endpoint;
    std::string replay;
    std::size_t warnings;
  };
  const Case cases[] = {{"tcp://*:0", "tcp://*:0", 1},
                        {"tcp://127.0.0.1:0", "tcp://0.0.0.0:0", 1},
                        {"tcp://127.0.0.1:0", "tcp://127.0.0.1:0", 0}};
  for (const Case& c : cases) {
    CAPTURE(c.endpoint);
    LogCapture log;
    PublisherOptions options;
    options.log = log.sink();
    const PublisherBench bench(WithEndpoints(c.endpoint, c.replay), options);
    CHECK(log.Count(LogLevel::kWarning, "token ids") == c.warnings);
    CHECK(log.Count(LogLevel::kInfo, "binding the PUB socket at " + bench.publisher->source()->endpoint) == 1);
  }
}

TEST_CASE("after Close a publisher refuses, and closing again does nothing") {
  PublisherBench bench;
  for (int i = 0; i < 3; ++i) static_cast<void>(bench.publisher->Publish(StoreBatch(1)));
  bench.publisher->Close();
  const PublisherStats closed = bench.publisher->stats();
  CHECK(closed.sent == 3);
  CHECK(closed.queued == 0);
  bench.publisher->Close();
  bench.publisher->Close(milliseconds(0));
  CHECK(bench.publisher->stats() == closed);
  CHECK(bench.publisher->Publish(StoreBatch(1)) == PublishResult::kDroppedClosed);
  bench.publisher->Wake();
  CHECK(bench.publisher->stats().dropped_closed == 1);
  CHECK(Balanced(bench.publisher->stats(), 4));
}

TEST_CASE("spares come back empty and keep working through many batches") {
  PublisherBench bench;
  for (std::uint64_t i = 0; i < 500; ++i) {
    KVEventBatch batch = bench.publisher->TakeSpare();
    REQUIRE(batch.empty());
    batch.Add(AllBlocksCleared{});
    CHECK(bench.publisher->Publish(std::move(batch)) == PublishResult::kAccepted);
  }
  REQUIRE(bench.Settled());
  CHECK(Balanced(bench.publisher->stats(), 500));
  CHECK(bench.publisher->stats().sent == 500);
}

}  // namespace
}  // namespace kvwire::test
