// SPDX-License-Identifier: Apache-2.0
// What the publishing side does besides sending batches: heartbeats, and what it wants of the state.
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/publish/publisher_agent.h"
#include "kv_events/wire/decoder.h"
#include "tests/support/manual_clock.h"
#include "tests/support/stream_support.h"

namespace kvwire::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

KVEventBatch ClearBatch() {
  KVEventBatch batch;
  batch.Add(AllBlocksCleared{});
  return batch;
}

// A publisher in memory with a clock that the test moves.
struct Bench {
  explicit Bench(const std::function<void(PublisherAgent::Options*)>& adjust = {}, std::size_t max_batches = 1000)
      : publisher(Settings(adjust, max_batches), &faulty, rig.replay()) {
    publisher.Turn();
  }

  AgentSettings Settings(const std::function<void(PublisherAgent::Options*)>& adjust, std::size_t max_batches) {
    AgentSettings settings;
    settings.max_batches = max_batches;
    settings.adjust = [this, adjust](PublisherAgent::Options* options) {
      options->clock = &clock;
      options->on_state_wanted = [this] { ++told; };
      options->data_parallel_rank = 3;
      options->encode = [this, encode = options->encode](const KVEventBatch& batch, std::vector<std::uint8_t>* out) {
        if (failing) throw std::runtime_error("planted");
        ++encoded;
        encode(batch, out);
      };
      if (adjust) adjust(options);
    };
    return settings;
  }
  void Pass(std::chrono::nanoseconds time) {
    clock.Advance(time);
    publisher.now = clock.Now();
    publisher.Drain();
  }
  std::vector<SequenceNumber> Replayable(SequenceNumber start = 0) {
    const auto dealer = rig.Dealer("numbers");
    return Numbers(publisher.Replay(dealer.get(), start));
  }
  std::uint64_t resyncs() const { return publisher.agent.wants().resyncs; }

  ManualClock clock;
  MemoryRig rig;
  FaultyLink faulty{rig.publish()};
  bool failing = false;
  int encoded = 0;  // batches
  int told = 0;
  DrivenPublisher publisher;
};

const auto kHeartbeats = [](PublisherAgent::Options* options) { options->heartbeat_interval_ms = 100; };
const auto kGuard = [](PublisherAgent::Options* options) { options->restart_guard_s = 60; };

TEST_CASE("J5: a silent stream sends an empty batch per interval, with a number and a time of its own") {
  Bench bench(kHeartbeats);
  const auto subscriber = bench.rig.Subscribe("test");
  bench.Pass(milliseconds(99));
  CHECK(bench.publisher.agent.stats().heartbeats == 0);
  for (int i = 0; i < 3; ++i) bench.Pass(milliseconds(i == 0 ? 1 : 100));
  const std::vector<Live> live = bench.publisher.ReadLive(subscriber.get(), 3);
  REQUIRE(Numbers(live) == Range(0, 2));
  for (std::size_t i = 0; i < 3; ++i) {
    const auto decoded = DecodeBatch(live[i].payload);
    REQUIRE(decoded);
    CHECK(decoded->batch.empty());
    CHECK(decoded->batch.data_parallel_rank == 3);
    CHECK(decoded->batch.ts == doctest::Approx(1700000000.1 + 0.1 * static_cast<double>(i)).epsilon(1e-12));
  }
  CHECK(bench.publisher.agent.stats().heartbeats == 3);
  CHECK(bench.publisher.agent.stats().sent == 0);
  CHECK(Balanced(bench.publisher.agent.stats(), 0));
}

TEST_CASE("J5: a batch puts the next heartbeat off, and is numbered after the last one") {
  Bench bench(kHeartbeats);
  const auto subscriber = bench.rig.Subscribe("test");
  bench.Pass(milliseconds(100));
  bench.Pass(milliseconds(60));
  bench.publisher.PublishMany(1);
  bench.Pass(milliseconds(60));
  CHECK(bench.publisher.agent.stats().heartbeats == 1);
  bench.Pass(milliseconds(40));
  CHECK(bench.publisher.agent.stats().heartbeats == 2);
  const std::vector<Live> live = bench.publisher.ReadLive(subscriber.get(), 3);
  REQUIRE(Numbers(live) == Range(0, 2));
  CHECK(StoredHashes(live[1].payload).size() == 1);
  CHECK(Balanced(bench.publisher.agent.stats(), 1));
}

TEST_CASE("J5: replayed heartbeats are byte for byte what was sent, late ones and drifted ones, too") {
  Bench bench(kHeartbeats);
  const auto subscriber = bench.rig.Subscribe("test");
  bench.publisher.PublishMany(2);
  for (const int pause : {100, 100, 117, 100, 83, 260, 100, 1000, 101, 100}) bench.Pass(milliseconds(pause));
  bench.publisher.PublishMany(1);
  for (int i = 0; i < 200; ++i) bench.Pass(milliseconds(101));
  const PublisherStats stats = bench.publisher.agent.stats();
  CHECK(stats.heartbeats > 200);
  CHECK(stats.replay_buffered == 3);
  CHECK(stats.replay_oldest == 0);
  CHECK(stats.replay_newest == stats.heartbeats + 2);
  const std::vector<Live> live = bench.publisher.ReadLive(subscriber.get(), stats.heartbeats + 3);
  const auto dealer = bench.rig.Dealer("d");
  const std::vector<Replayed> replayed = bench.publisher.Replay(dealer.get(), 0);
  REQUIRE(Numbers(replayed) == Numbers(live));
  for (std::size_t i = 0; i < live.size(); ++i) REQUIRE(replayed[i].payload == live[i].payload);
}

TEST_CASE("J5: a heartbeat that the link does not take can be replayed") {
  Bench bench(kHeartbeats);
  bench.faulty.room = 0;
  bench.Pass(milliseconds(100));
  bench.faulty.room = 10;
  bench.Pass(milliseconds(100));
  CHECK(bench.publisher.agent.stats().heartbeats == 2);
  CHECK(bench.Replayable() == Range(0, 1));
}

TEST_CASE("J5: no heartbeat is sent by default, nor for a batch that waits for the link") {
  Bench quiet;
  quiet.Pass(seconds(100));
  CHECK(quiet.publisher.agent.stats().heartbeats == 0);
  CHECK(quiet.publisher.agent.due() == HeartbeatTimer::kNever);
  Bench bench(kHeartbeats);
  bench.faulty.room = 0;
  static_cast<void>(bench.publisher.Publish(StoreBatch(1)));
  bench.Pass(milliseconds(500));
  CHECK(bench.publisher.agent.stats().heartbeats == 0);
  CHECK(bench.publisher.agent.due() > bench.clock.Now());
}

TEST_CASE("J5: a heartbeat is encoded when its number can be had, and one that cannot be encoded burns none") {
  Bench bench(kHeartbeats);
  SUBCASE("a batch waits") {
    bench.faulty.room = 0;
    static_cast<void>(bench.publisher.Publish(StoreBatch(1)));
    bench.Pass(milliseconds(500));
    CHECK(bench.encoded == 1);
  }
  SUBCASE("it cannot be encoded") {
    bench.failing = true;
    bench.Pass(milliseconds(100));
    bench.failing = false;
    CHECK(bench.publisher.agent.stats().heartbeats == 0);
    bench.Pass(milliseconds(100));
    CHECK(bench.encoded == 1);
    CHECK(bench.Replayable() == Range(0, 0));
  }
}

TEST_CASE("A2: a loss at the end of the stream shows in the next heartbeat, unless the stream is to begin again") {
  for (const Overflow overflow : {Overflow::kDrop, Overflow::kResync}) {
    Bench bench(
        [&](PublisherAgent::Options* options) {
          options->heartbeat_interval_ms = 100;
          options->overflow = overflow;
        },
        1);
    const auto subscriber = bench.rig.Subscribe("test");
    static_cast<void>(bench.publisher.Publish(StoreBatch(1)));
    CHECK(bench.publisher.Publish(StoreBatch(1)) == PublishResult::kDroppedQueueFull);  // 1
    bench.publisher.Drain();
    bench.Pass(milliseconds(100));
    bench.Pass(milliseconds(100));
    if (overflow == Overflow::kDrop) {
      CHECK(Numbers(bench.publisher.ReadLive(subscriber.get(), 3)) == std::vector<SequenceNumber>{0, 2, 3});
      continue;
    }
    CHECK(bench.publisher.agent.stats().heartbeats == 0);
    static_cast<void>(bench.publisher.Publish(ClearBatch()));
    bench.publisher.Drain();
    bench.Pass(milliseconds(100));
    CHECK(Numbers(bench.publisher.ReadLive(subscriber.get(), 3)) == std::vector<SequenceNumber>{0, 2, 3});
    CHECK(bench.publisher.agent.stats().heartbeats == 1);
  }
}

TEST_CASE("A2: after a burnt number the replay buffer begins at the clear that follows") {
  Bench bench({}, 2);
  for (int i = 0; i < 6; ++i) static_cast<void>(bench.publisher.Publish(StoreBatch(1)));
  bench.publisher.Drain();
  CHECK(bench.Replayable() == Range(0, 1));
  static_cast<void>(bench.publisher.Publish(ClearBatch()));  // 6
  bench.publisher.Drain();
  CHECK(bench.Replayable() == Range(6, 6));
  bench.publisher.PublishMany(2);
  CHECK(bench.Replayable() == Range(6, 8));
  CHECK(bench.publisher.agent.stats().replay_oldest == 6);
}

TEST_CASE("A2: a clear without a loss before it, or behind another event, leaves the replay buffer as it is") {
  Bench bench({}, 2);
  bench.publisher.PublishMany(2);
  static_cast<void>(bench.publisher.Publish(ClearBatch()));
  bench.publisher.Drain();
  CHECK(bench.Replayable() == Range(0, 2));
  for (int i = 0; i < 3; ++i) static_cast<void>(bench.publisher.Publish(StoreBatch(1)));  // burns 5
  bench.publisher.Drain();
  KVEventBatch late = StoreBatch(1);
  late.Add(AllBlocksCleared{});
  static_cast<void>(bench.publisher.Publish(std::move(late)));
  bench.publisher.Drain();
  CHECK(bench.Replayable() == std::vector<SequenceNumber>{0, 1, 2, 3, 4, 6});
}

TEST_CASE("A8: a batch that is lost behind the queue asks for a resync, and the buffer begins at its clear") {
  Bench bench;
  bench.publisher.PublishMany(2);
  CHECK(bench.resyncs() == 0);
  bench.failing = true;
  bench.publisher.PublishMany(1);
  CHECK(bench.resyncs() == 1);
  CHECK(bench.told == 1);
  bench.failing = false;
  static_cast<void>(bench.publisher.Publish(ClearBatch()));
  bench.publisher.Drain();
  CHECK(bench.resyncs() == 1);
  CHECK(bench.Replayable() == Range(3, 3));
  CHECK(bench.publisher.agent.stats().resyncs_wanted == 1);
}

TEST_CASE("A8: failures in a row ask twice: when they begin, and when they are over") {
  Bench bench;
  bench.failing = true;
  bench.publisher.PublishMany(10);
  CHECK(bench.resyncs() == 1);
  bench.failing = false;
  bench.publisher.PublishMany(1);
  CHECK(bench.resyncs() == 2);
  bench.faulty.failure = SendResult::kFailed;
  bench.publisher.PublishMany(1);
  CHECK(bench.resyncs() == 3);
  CHECK(bench.told == 3);
}

TEST_CASE("A8: with overflow drop a loss asks for nothing") {
  Bench bench([](PublisherAgent::Options* options) { options->overflow = Overflow::kDrop; });
  bench.failing = true;
  bench.publisher.PublishMany(3);
  bench.failing = false;
  bench.publisher.PublishMany(1);
  CHECK(bench.resyncs() == 0);
  CHECK(bench.told == 0);
}

TEST_CASE("C14: a subscription soon after the start asks for a resync, at most one a second, and none is forgotten") {
  Bench bench(kGuard);
  bench.publisher.PublishMany(1);
  const auto first = bench.rig.Subscribe("test");
  bench.publisher.Drain();
  CHECK(bench.resyncs() == 1);
  CHECK(bench.told == 1);
  bench.Pass(milliseconds(300));
  const auto second = bench.rig.Subscribe("te");
  const auto third = bench.rig.Subscribe("");
  bench.publisher.Drain();
  CHECK(bench.resyncs() == 1);
  bench.Pass(milliseconds(699));
  CHECK(bench.resyncs() == 1);
  bench.Pass(milliseconds(1));
  CHECK(bench.resyncs() == 2);
  bench.Pass(seconds(5));
  CHECK(bench.resyncs() == 2);
  bench.Pass(milliseconds(53999));
  const auto last = bench.rig.Subscribe("test");
  bench.publisher.Drain();
  CHECK(bench.resyncs() == 3);
  bench.Pass(milliseconds(1));
  const auto late = bench.rig.Subscribe("test");
  bench.publisher.Drain();
  bench.Pass(seconds(5));
  CHECK(bench.resyncs() == 3);
}

TEST_CASE("C14: the guard minds neither other topics, nor subscribers who missed nothing, and may be off") {
  Bench bench(kGuard);
  const auto early = bench.rig.Subscribe("test");
  bench.publisher.Drain();
  bench.publisher.PublishMany(1);
  const auto other = bench.rig.Subscribe("tester");
  bench.publisher.Drain();
  CHECK(bench.resyncs() == 0);
  Bench off;
  off.publisher.PublishMany(1);
  const auto subscriber = off.rig.Subscribe("test");
  off.publisher.Drain();
  CHECK(off.resyncs() == 0);
}

TEST_CASE("C14: a heartbeat is nothing that a subscriber could have missed") {
  Bench bench([](PublisherAgent::Options* options) {
    options->heartbeat_interval_ms = 100;
    options->restart_guard_s = 60;
  });
  bench.Pass(milliseconds(100));
  const auto subscriber = bench.rig.Subscribe("test");
  bench.publisher.Drain();
  CHECK(bench.publisher.agent.stats().heartbeats == 1);
  CHECK(bench.resyncs() == 0);
}

TEST_CASE("the time spent in encoding and sending is counted") {
  Bench bench([](PublisherAgent::Options* options) { options->clock = &SystemClock::Get(); });
  bench.publisher.PublishMany(10);
  CHECK(bench.publisher.agent.stats().encode_nanos > 0);
  CHECK(bench.publisher.agent.stats().send_nanos > 0);
}

}  // namespace
}  // namespace kvwire::test
