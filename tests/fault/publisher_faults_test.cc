// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/own_loopback.h"
#include "tests/support/publisher_bench.h"
#include "tests/support/watchdog.h"

namespace kvwire::test {
namespace {

using std::chrono::milliseconds;

// What the publisher holds for replay: what it published, when nothing was ever lost on the way to a subscriber.
std::vector<Replayed> Published(const PublisherBench& bench) {
  const auto dealer = bench.Dealer();
  Ask(dealer.get(), 0);
  return ReadReplay(dealer.get());
}

TEST_CASE("A1: a full queue drops at once and never blocks, and what it took arrives in order") {
  for (const std::int64_t capacity : {1, 8}) {
    CAPTURE(capacity);
    Gate gate;
    KVEventsConfig config = LoopbackConfig();
    config.max_queue_size = capacity;
    PublisherBench bench(config, {}, gate.encoder());
    std::int64_t dropped = 0;
    for (std::int64_t i = 0; i < capacity + 5; ++i) {
      KVEventBatch batch = StoreBatch(1, static_cast<std::uint64_t>(i));
      if (bench.publisher->Publish(std::move(batch)) == PublishResult::kDroppedQueueFull) ++dropped;
    }
    CHECK(dropped == 5);
    CHECK(bench.publisher->stats().dropped_full == 5);
    CHECK(bench.publisher->stats().queued == static_cast<std::uint64_t>(capacity));
    gate.Open();
    REQUIRE(bench.Settled());
    const std::vector<Replayed> published = Published(bench);
    CHECK(Numbers(published) == Range(0, static_cast<SequenceNumber>(capacity) - 1));
    for (std::size_t i = 0; i + 1 < published.size(); ++i) {
      CHECK(StoredHashes(published[i].payload) == std::vector<std::uint64_t>{i + 1});
    }
    CHECK(Balanced(bench.publisher->stats(), static_cast<std::uint64_t>(capacity) + 5));
  }
}

TEST_CASE("A1: a hundred thousand batches pass a full queue whose encoder never moves") {
  constexpr std::uint64_t kBatches = 100'000;
  Gate gate;
  KVEventsConfig config = LoopbackConfig();
  config.max_queue_size = 8;
  PublisherBench bench(config, {}, gate.encoder());
  std::uint64_t refused = 0;
  {
    const Watchdog watchdog("Publish, with an encoder that does not move,", std::chrono::seconds(60));
    for (std::uint64_t i = 0; i < kBatches; ++i) {
      if (bench.publisher->Publish(StoreBatch(1, i)) == PublishResult::kDroppedQueueFull) ++refused;
      bench.publisher->Wake();
    }
  }
  CHECK(refused == kBatches - 8);
  CHECK(bench.publisher->stats().dropped_full == refused);
  gate.Open();
  REQUIRE(bench.Settled());
  CHECK(Numbers(Published(bench)) == Range(0, 7));
  CHECK(Balanced(bench.publisher->stats(), kBatches));
}

TEST_CASE("A1: a hundred thousand batches pass a full queue whose link never moves") {
  constexpr std::uint64_t kBatches = 100'000;
  MemoryRig rig;
  FaultyLink stuck(rig.publish());
  stuck.room = 0;
  AgentSettings settings;
  settings.max_batches = 8;
  DrivenPublisher publisher(settings, &stuck, rig.replay());
  std::atomic<bool> stop{false};
  std::thread agent([&] {
    while (!stop) publisher.agent.DoWork(0);
  });
  std::uint64_t refused = 0;
  {
    const Watchdog watchdog("Publish, with a link that does not move,", std::chrono::seconds(60));
    for (std::uint64_t i = 0; i < kBatches; ++i) {
      if (publisher.Publish(StoreBatch(1, i)) == PublishResult::kDroppedQueueFull) ++refused;
    }
  }
  stop = true;
  agent.join();
  const PublisherStats stats = publisher.agent.stats();
  CHECK(stats.sent == 0);
  CHECK(stats.queued == 8);
  CHECK(refused == kBatches - 8);
  CHECK(stats.dropped_full == refused);
  CHECK(Balanced(stats, kBatches));

  const auto subscriber = rig.Subscribe("");
  stuck.room = 100;
  CHECK(Numbers(publisher.ReadLive(subscriber.get(), 8)) == Range(0, 7));
}

TEST_CASE("A2: dropped batches burn their numbers, live and replayed") {
  Gate gate;
  KVEventsConfig config = LoopbackConfig();
  config.max_queue_size = 2;
  PublisherBench bench(config, {}, gate.encoder());
  for (int i = 0; i < 6; ++i) static_cast<void>(bench.publisher->Publish(StoreBatch(1)));
  gate.Open();
  REQUIRE(bench.Settled());
  CHECK(bench.publisher->Publish(StoreBatch(1)) == PublishResult::kAccepted);
  REQUIRE(bench.Settled());
  CHECK(Numbers(Published(bench)) == std::vector<SequenceNumber>{0, 1, 6});

  const auto subscriber = bench.Subscribe("test");
  const SequenceNumber next = Join(bench.publisher.get(), subscriber.get(), 7);
  CHECK(bench.publisher->Publish(StoreBatch(1)) == PublishResult::kAccepted);
  CHECK(Numbers(ReadLive(subscriber.get(), 1)) == Range(next, next));
  CHECK(Balanced(bench.publisher->stats(), next + 1));
}

TEST_CASE("A2: a subscriber sees the gap of dropped batches on the live stream") {
  MemoryRig rig;
  AgentSettings settings;
  settings.max_batches = 2;
  DrivenPublisher publisher(settings, rig.publish(), rig.replay());
  const auto subscriber = rig.Subscribe("");
  for (int i = 0; i < 6; ++i) static_cast<void>(publisher.Publish(StoreBatch(1)));
  publisher.Drain();
  static_cast<void>(publisher.Publish(StoreBatch(1)));
  CHECK(Numbers(publisher.ReadLive(subscriber.get(), 3)) == std::vector<SequenceNumber>{0, 1, 6});
}

TEST_CASE("A3: closing with a full queue ends, frees both addresses and refuses afterwards") {
  for (int round = 0; round < 5; ++round) {
    Gate gate;
    KVEventsConfig config = LoopbackConfig();
    config.max_queue_size = 2;
    config.endpoint = "tcp://" + OwnLoopback() + ":0";
    config.replay_endpoint = config.endpoint;
    PublisherBench bench(config, {}, gate.encoder());
    const EventSourceInfo source = bench.publisher->source().value();
    for (int i = 0; i < 4; ++i) static_cast<void>(bench.publisher->Publish(StoreBatch(1)));
    std::future<void> closed = std::async(std::launch::async, [&] { bench.publisher->Close(); });
    // The queue is full and its reader held, and still the publisher learns that it is to stop.
    REQUIRE(Eventually([&] { return bench.publisher->Publish(StoreBatch(1)) == PublishResult::kDroppedClosed; }));
    gate.Open();
    REQUIRE(closed.wait_for(std::chrono::seconds(5)) == std::future_status::ready);
    bench.publisher->Close();
    CHECK(bench.publisher->Publish(StoreBatch(1)) == PublishResult::kDroppedClosed);
    const PublisherStats stats = bench.publisher->stats();
    CHECK(stats.sent == 2);
    CHECK(stats.queued == 0);
    CHECK(Balanced(stats, stats.submitted));

    config.endpoint = source.endpoint;
    config.replay_endpoint = source.replay_endpoint;
    PublisherOptions options;
    options.context = bench.context;
    CHECK(Eventually([&] { return ZmqPublisher::Create(config, options).has_value(); }));
  }
}

TEST_CASE("A3: what is still queued when the deadline passes is dropped and counted") {
  std::atomic<bool> slow{true};
  PublisherBench bench(LoopbackConfig(), {}, [&](const KVEventBatch&, std::vector<std::uint8_t>* out) {
    // Holds the thread until Close was called; from then on its deadline of zero has passed.
    while (slow) std::this_thread::yield();
    out->push_back(1);
  });
  for (int i = 0; i < 10; ++i) static_cast<void>(bench.publisher->Publish(StoreBatch(1)));
  std::future<void> closed = std::async(std::launch::async, [&] { bench.publisher->Close(milliseconds(0)); });
  REQUIRE(Eventually([&] { return bench.publisher->Publish(StoreBatch(1)) == PublishResult::kDroppedClosed; }));
  slow = false;
  closed.get();
  const PublisherStats stats = bench.publisher->stats();
  CHECK(stats.queued == 0);
  CHECK(stats.sent + stats.dropped_closed == stats.submitted);
  CHECK(Balanced(stats, stats.submitted));
}

TEST_CASE("A5: an encoder that throws on the third batch costs that batch only") {
  int encoded = 0;
  PublisherBench bench(LoopbackConfig(), {}, [&](const KVEventBatch&, std::vector<std::uint8_t>* out) {
    if (++encoded == 3) throw std::runtime_error("planted");
    out->push_back(1);
  });
  const auto subscriber = bench.Subscribe("test");
  for (int i = 0; i < 5; ++i) {
    CHECK(bench.publisher->Publish(StoreBatch(1)) == PublishResult::kAccepted);
    REQUIRE(bench.Settled());
  }
  CHECK(Numbers(Published(bench)) == std::vector<SequenceNumber>{0, 1, 3, 4});
  CHECK(bench.publisher->stats().dropped_error == 1);
  CHECK(bench.publisher->last_error() == "batch 2 was not published: planted");
  Join(bench.publisher.get(), subscriber.get(), 5);
  CHECK(bench.publisher->stats().dropped_error == 1);
}

TEST_CASE("A8: the number of a failed batch is answered with what follows and an end mark") {
  int encoded = 0;
  PublisherBench bench(LoopbackConfig(), {}, [&](const KVEventBatch&, std::vector<std::uint8_t>* out) {
    if (encoded++ == 5) throw std::runtime_error("planted");
    out->push_back(1);
  });
  for (int i = 0; i < 7; ++i) static_cast<void>(bench.publisher->Publish(StoreBatch(1)));
  REQUIRE(bench.Settled());
  const auto dealer = bench.Dealer();
  for (int attempt = 0; attempt < 2; ++attempt) {
    Ask(dealer.get(), 5);
    const std::vector<Replayed> replayed = ReadReplay(dealer.get());
    CHECK(Numbers(replayed) == Range(6, 6));
    REQUIRE_FALSE(replayed.empty());
    CHECK(replayed.back().end);
  }
  CHECK(Balanced(bench.publisher->stats(), 7));
}

TEST_CASE("A9: a batch published while nothing else happens leaves by itself") {
  PublisherOptions options;
  options.host_wakes = true;
  PublisherBench bench(LoopbackConfig(), options);
  const auto subscriber = bench.Subscribe("test");
  Join(bench.publisher.get(), subscriber.get());
  KVEventBatch cleared;
  cleared.Add(AllBlocksCleared{});
  static_cast<void>(bench.publisher->Publish(std::move(cleared)));
  CHECK(ReadLive(subscriber.get(), 1).size() == 1);
}

TEST_CASE("A9: Close sends what is queued before it closes the socket") {
  for (const std::string endpoint : {"tcp://127.0.0.1:0", "inproc://flush", "ipc://*"}) {
    CAPTURE(endpoint);
    Gate gate;
    KVEventsConfig config = LoopbackConfig();
    config.endpoint = endpoint;
    std::atomic<bool> hold{false};
    PublisherBench bench(config, {},
                         [&, gated = gate.encoder()](const KVEventBatch& batch, std::vector<std::uint8_t>* out) {
                           if (hold) return gated(batch, out);
                           BatchEncoder({}).Encode(batch, out);
                         });
    const auto subscriber = bench.Subscribe("test", 0);
    const SequenceNumber next = Join(bench.publisher.get(), subscriber.get());
    hold = true;
    for (std::uint64_t i = 0; i < 500; ++i) {
      REQUIRE(bench.publisher->Publish(StoreBatch(100, i)) == PublishResult::kAccepted);
    }
    CHECK(bench.publisher->stats().queued == 500);
    std::thread opener([&] { gate.Open(); });
    bench.publisher->Close();
    opener.join();
    CHECK(bench.publisher->stats().sent == next + 500);
    CHECK(Numbers(ReadLive(subscriber.get(), 500)) == Range(next, next + 499));
    CHECK(Balanced(bench.publisher->stats(), next + 500));
  }
}

TEST_CASE("A9: Close waits, within its deadline, for a subscriber that is still reading") {
  constexpr SequenceNumber kBatches = 200;
  // The publisher's own context goes with it, so Close has to wait for it; the subscriber has another one.
  Result<std::unique_ptr<ZmqPublisher>> publisher =
      ZmqPublisher::Create(LoopbackConfig(), {}, [](const KVEventBatch&, std::vector<std::uint8_t>* out) {
        out->resize(200'000);  // more in all than the kernel's buffers hold
      });
  REQUIRE(publisher);
  const auto context = ZmqContext::Create();
  LinkOptions slow;
  slow.receive_hwm = 1;
  const auto subscriber = ConnectTo(context, LinkKind::kSub, (*publisher)->source()->endpoint, slow);
  const SequenceNumber next = Join(publisher->get(), subscriber.get());
  for (SequenceNumber i = 0; i < kBatches; ++i) static_cast<void>((*publisher)->Publish(StoreBatch(1)));
  std::thread closer([&] { (*publisher)->Close(std::chrono::seconds(60)); });
  CHECK(Numbers(ReadLive(subscriber.get(), kBatches)) == Range(next, next + kBatches - 1));
  closer.join();
  CHECK(Balanced((*publisher)->stats(), next + kBatches));
}

TEST_CASE("J2: a subscriber that does not read costs the publisher nothing but memory up to its mark") {
  KVEventsConfig config = LoopbackConfig();
  config.hwm = 10;
  PublisherBench bench(config, {}, [](const KVEventBatch&, std::vector<std::uint8_t>* out) { out->resize(20'000); });
  const auto stalled = bench.Subscribe("test", 10);
  SequenceNumber next = Join(bench.publisher.get(), stalled.get());
  const auto reader = bench.Subscribe("test", 0);
  next = Join(bench.publisher.get(), reader.get(), next);
  for (std::uint64_t i = 0; i < 2000; ++i, ++next) {
    REQUIRE(bench.publisher->Publish(StoreBatch(1, i)) == PublishResult::kAccepted);
  }
  REQUIRE(bench.Settled());
  CHECK(bench.publisher->stats().sent == next);
  // Whatever was lost shows as a gap, never as a torn or repeated message.
  SequenceNumber last = 0;
  while (const std::optional<Live> live = ReceiveLive(stalled.get())) {
    CHECK(live->number >= last);
    last = live->number + 1;
  }
  bench.publisher->Close(milliseconds(100));
  CHECK(Balanced(bench.publisher->stats(), next));
}

}  // namespace
}  // namespace kvwire::test
