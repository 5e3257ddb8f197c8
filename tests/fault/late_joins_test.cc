// SPDX-License-Identifier: Apache-2.0
// Consumers that come late to an engine that works all the while.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/engine_traffic.h"
#include "tests/support/judged_consumer.h"
#include "tests/support/publisher_bench.h"
#include "tests/support/watchdog.h"

namespace kvwire::test {
namespace {

constexpr std::size_t kJoins = 100;
constexpr std::size_t kAtATime = 4;
constexpr std::uint64_t kNumbersEach = 50;  // that each is held to behind its snapshot, at least
constexpr std::uint32_t kBlocks = 20'000;

// An engine whose pool is full, whose replay buffer has long wrapped, and which goes on as long as it lives, a few
// steps ahead of what the consumers look at: they and it share the machine.
class WorkingEngine {
 public:
  explicit WorkingEngine(DigestLog* log) : bench_(Config(), Options()), noting_(bench_.publisher.get(), log) {
    EngineTraffic::Options options;
    options.num_blocks = kBlocks + 1;
    options.block_size = 16;
    options.max_prompt_blocks = 64;
    options.max_running = 16;
    traffic_ = std::make_unique<EngineTraffic>(options, &noting_);
    while (traffic_->scheduler().stats().stored < kBlocks + kBlocks / 4) Step();
    allowed_ = steps_;
    thread_ = std::thread([this] {
      while (!stop_.load(std::memory_order_relaxed)) {
        if (steps_ < allowed_.load(std::memory_order_relaxed)) {
          Step();
        } else {
          std::this_thread::yield();
        }
      }
    });
  }
  ~WorkingEngine() {
    stop_ = true;
    thread_.join();
  }
  WorkingEngine(const WorkingEngine&) = delete;
  WorkingEngine& operator=(const WorkingEngine&) = delete;

  // The consumers have looked at what there was.
  void AllowSteps() { allowed_.store(allowed_.load(std::memory_order_relaxed) + 2, std::memory_order_relaxed); }
  const PublisherBench& bench() const { return bench_; }

 private:
  static KVEventsConfig Config() {
    KVEventsConfig config = LoopbackConfig();
    config.buffer_steps = 20;
    config.kvwire.restart_guard_s = 0;
    return config;
  }
  static PublisherOptions Options() {
    PublisherOptions options;
    options.host_wakes = true;
    return options;
  }
  // Not ahead of the publisher: the engine is not what is measured.
  void Step() {
    ++steps_;
    traffic_->AddRequests();
    traffic_->Step();
    bench_.publisher->Wake();
    while (!bench_.publisher->HasRoom()) std::this_thread::yield();
  }

  PublisherBench bench_;
  NotingPublisher noting_;
  std::unique_ptr<EngineTraffic> traffic_;
  std::uint64_t steps_ = 0;
  std::atomic<std::uint64_t> allowed_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST_CASE("C9: 100 consumers join a working engine of 20,000 blocks by snapshot and equal it at every number") {
  const Watchdog watchdog("100 late joins", std::chrono::seconds(200));
  DigestLog log(4'000'000);
  WorkingEngine engine(&log);
  const DigestEntries warm = *log.After(log.size() - 1);
  REQUIRE(warm.size() == 1);
  REQUIRE(warm.front().count > kBlocks * 9 / 10);
  REQUIRE(engine.bench().publisher->stats().replay_oldest.value_or(0) > 0);
  const EventSourceInfo source = engine.bench().publisher->source().value();

  std::vector<std::unique_ptr<JudgedConsumer>> joined;
  std::size_t begun = 0;
  std::size_t done = 0;
  std::uint64_t judged = 0;
  while (done < kJoins) {
    while (joined.size() < kAtATime && begun < kJoins) {
      joined.push_back(std::make_unique<JudgedConsumer>(engine.bench().context, source, EventStreamOptions(), &log,
                                                        engine.bench().curve));
      ++begun;
    }
    for (std::size_t i = joined.size(); i-- > 0;) {
      joined[i]->DoWork();
      const JudgedSink& sink = joined[i]->sink();
      REQUIRE(sink.first_difference() == "");
      if (sink.judged_since_snapshot() < kNumbersEach) continue;
      CHECK(sink.snapshots() == 1);
      CHECK(sink.gaps_since_snapshot() == 0);
      CHECK(sink.synchronised());
      judged += sink.judged();
      joined.erase(joined.begin() + static_cast<std::ptrdiff_t>(i));
      ++done;
    }
    engine.AllowSteps();
  }
  CHECK(judged >= kJoins * kNumbersEach);
  CHECK_FALSE(log.overflowed());
  CHECK(engine.bench().publisher->stats().snapshots_sent >= kJoins);
  CHECK(engine.bench().publisher->stats().dropped_full == 0);
}

}  // namespace
}  // namespace kvwire::test
