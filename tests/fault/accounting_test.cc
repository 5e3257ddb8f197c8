// SPDX-License-Identifier: Apache-2.0
// What was handed to a publisher is found again in its counters, wherever it is stopped.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>

#include <doctest/doctest.h>

#include "kv_events/wire/extensions.h"
#include "tests/support/engine_traffic.h"
#include "tests/support/judged_consumer.h"
#include "tests/support/publisher_bench.h"
#include "tests/support/watchdog.h"

namespace kvwire::test {
namespace {

constexpr std::uint64_t kSeeds = 200;

// An encoder that takes its time now and then, and fails now and then.
PublisherAgent::EncodeFunction MoodyEncoder(std::uint64_t seed) {
  return [random = std::mt19937_64(seed), real = BatchEncoder({})](const KVEventBatch& batch,
                                                                   std::vector<std::uint8_t>* out) mutable {
    if (random() % 16 == 0) throw std::runtime_error("no mood");
    for (std::uint64_t pause = random() % 4 == 0 ? random() % 50 : 0; pause > 0; --pause) std::this_thread::yield();
    real.Encode(batch, out);
  };
}

KVEventsConfig RandomConfig(std::mt19937_64* random) {
  KVEventsConfig config = LoopbackConfig();
  config.max_queue_size = static_cast<std::int64_t>(2 + (*random)() % 30);
  config.buffer_steps = static_cast<std::int64_t>((*random)() % 50);
  config.kvwire.heartbeat_interval_ms = kMinHeartbeatMs;
  config.kvwire.restart_guard_s = (*random)() % 2 == 0 ? 0 : 60;
  config.kvwire.overflow = (*random)() % 4 == 0 ? Overflow::kDrop : Overflow::kResync;
  return config;
}

bool IsBalanced(const PublisherStats& stats) { return Balanced(stats, stats.submitted); }

// Reads the stream, asks for snapshots and looks at the counters all the while.
class Observer {
 public:
  explicit Observer(const PublisherBench& bench)
      : publisher_(*bench.publisher), live_(bench.Subscribe("test", 0)), dealer_(bench.Dealer()) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Observer() { Stop(); }
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  // REQUIRES, of these: stopped.
  std::uint64_t received() const { return received_; }
  std::optional<SequenceNumber> last() const { return last_; }  // number received
  bool in_order() const { return in_order_; }
  std::uint64_t unbalanced() const { return unbalanced_; }  // looks

 private:
  void Run() {
    bool asked = false;
    while (!stop_) {
      if (!IsBalanced(publisher_.stats())) ++unbalanced_;
      if (!asked) asked = Ask(dealer_.get(), {ExtensionKind::kSnapshot, 0}) == SendResult::kSent;
      while (const std::optional<Told> told = ReceiveTold(dealer_.get())) {
        if (told->end) asked = false;
      }
      Read();
      std::this_thread::yield();
    }
    Read();
  }
  void Read() {
    while (const std::optional<Live> live = ReceiveLive(live_.get())) {
      ++received_;
      if (last_ && live->number <= *last_) in_order_ = false;
      last_ = live->number;
    }
  }

  const ZmqPublisher& publisher_;
  std::unique_ptr<ZmqLink> live_;
  std::unique_ptr<ZmqLink> dealer_;
  std::uint64_t received_ = 0;
  std::optional<SequenceNumber> last_;
  bool in_order_ = true;
  std::uint64_t unbalanced_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// What happened in all runs: each kind did.
struct Seen {
  std::uint64_t sent = 0;
  std::uint64_t full = 0;
  std::uint64_t error = 0;
  std::uint64_t closed = 0;
  std::uint64_t heartbeats = 0;
  std::uint64_t chunks = 0;
  std::uint64_t chunks_dropped = 0;
  std::uint64_t resyncs = 0;
  std::uint64_t suppressed = 0;
};

void CheckIdentities(const PublisherStats& stats, const scheduler::SchedulerStats& engine, std::uint64_t published,
                     std::uint64_t chunks) {
  CHECK(Balanced(stats, published));
  CHECK(stats.submitted == engine.batches);
  CHECK(engine.stream.losses == stats.dropped_full);
  CHECK(engine.dropped_batches <= stats.dropped_full + stats.dropped_closed);
  CHECK(stats.chunks + stats.chunks_dropped + stats.chunks_queued == chunks);
  CHECK(engine.stream.chunks <= chunks);
}

void RunSeed(std::uint64_t seed, Seen* seen) {
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  DigestLog log(0);  // counts
  PublisherBench bench(RandomConfig(&random), {}, MoodyEncoder(seed));
  NotingPublisher publisher(bench.publisher.get(), &log);
  EngineTraffic::Options options;
  options.num_blocks = 50 + static_cast<std::uint32_t>(random() % 2000);
  options.seed = seed;
  EngineTraffic traffic(options, &publisher);
  Observer observer(bench);

  const auto run = [&](std::uint64_t steps) {
    for (; steps > 0; --steps) {
      traffic.AddRequests();
      traffic.Step();
      if (random() % 4 == 0) bench.publisher->Wake();
      if (random() % 4 == 0) std::this_thread::yield();
    }
  };
  run(random() % 400);
  if (seed % 8 == 0) {
    // None comes before a loss is healed.
    CHECK(Eventually([&] {
      traffic.scheduler().DoStateWork();
      return bench.publisher->stats().heartbeats > 0;
    }));
  }
  run(random() % 100);
  CheckIdentities(bench.publisher->stats(), traffic.scheduler().stats(), log.size(), publisher.chunks());

  publisher.Close(std::chrono::milliseconds(random() % 4));
  run(random() % 3);
  observer.Stop();
  const PublisherStats stats = bench.publisher->stats();
  const scheduler::SchedulerStats engine = traffic.scheduler().stats();
  CheckIdentities(stats, engine, log.size(), publisher.chunks());
  CHECK(stats.queued == 0);
  CHECK(stats.chunks_queued == 0);
  CHECK(observer.unbalanced() == 0);
  // Every number on the wire was drawn once, for a batch or for a heartbeat.
  CHECK(observer.in_order());
  CHECK(observer.received() <= stats.sent + stats.heartbeats);
  if (observer.last()) CHECK(*observer.last() < stats.submitted + stats.heartbeats);

  seen->sent += stats.sent;
  seen->full += stats.dropped_full;
  seen->error += stats.dropped_error;
  seen->closed += stats.dropped_closed;
  seen->heartbeats += stats.heartbeats;
  seen->chunks += stats.chunks;
  seen->chunks_dropped += stats.chunks_dropped;
  seen->resyncs += engine.stream.resyncs;
  seen->suppressed += engine.stream.suppressed;
}

TEST_CASE("Accounting: wherever a stream is stopped, each batch and chunk is sent, dropped for a reason, or queued") {
  const Watchdog watchdog("200 stops", std::chrono::seconds(280));
  Seen seen;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) RunSeed(seed, &seen);
  for (const std::uint64_t kind : {seen.sent, seen.full, seen.error, seen.closed, seen.heartbeats, seen.chunks,
                                   seen.chunks_dropped, seen.resyncs, seen.suppressed}) {
    CHECK(kind > 0);
  }
}

}  // namespace
}  // namespace kvwire::test
