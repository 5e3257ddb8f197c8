// SPDX-License-Identifier: Apache-2.0
// What a step does on its thread, with a real publisher whose queue overflows again and again.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <sys/syscall.h>

#include "kv_events/wire/extensions.h"
#include "tests/support/engine_traffic.h"
#include "tests/support/judged_consumer.h"
#include "tests/support/publisher_bench.h"
#include "tests/support/thread_calls.h"
#include "tests/support/watchdog.h"

namespace kvwire::test {
namespace {

constexpr std::uint64_t kOverflows = kCountsCalls ? 1000 : 200;  // a sanitizer makes them slow
constexpr std::int64_t kQueue = 8;
constexpr MonotonicNanos kMillisecond = 1'000'000;

// An encoder at which the publishing thread stands while it is held.
// Threads: Hold and Release by one.
class Barrier {
 public:
  PublisherAgent::EncodeFunction encoder() {
    return [this, real = BatchEncoder({})](const KVEventBatch& batch, std::vector<std::uint8_t>* out) {
      held_.wait(true);
      real.Encode(batch, out);
    };
  }
  void Hold() { held_ = true; }
  void Release() {
    held_ = false;
    held_.notify_all();
  }

 private:
  std::atomic<bool> held_{false};
};

// Consumers on a thread of their own, and a client that asks for one snapshot after the other.
class Consumers {
 public:
  Consumers(const PublisherBench& bench, const DigestLog* log) : dealer_(bench.Dealer()) {
    EventStreamOptions options;
    options.gate = std::make_shared<ReplayGate>();
    options.check_interval = 50 * kMillisecond;
    options.replay.attempt_idle = 500 * kMillisecond;
    options.snapshot.first_pause = kMillisecond;
    options.snapshot.longest_pause = 20 * kMillisecond;
    options.snapshot.rest = 50 * kMillisecond;
    for (int i = 0; i < 3; ++i) {
      consumers_.push_back(std::make_unique<JudgedConsumer>(bench.context, bench.publisher->source().value(), options,
                                                            log, bench.curve));
    }
    thread_ = std::thread([this] { Run(); });
  }
  ~Consumers() { Stop(); }
  Consumers(const Consumers&) = delete;
  Consumers& operator=(const Consumers&) = delete;

  // Asks for what is published up to this number.
  void Expect(SequenceNumber next, const DigestEntries& digest) {
    expected_ = digest;
    expected_next_.store(next, std::memory_order_release);
  }
  // All of them hold that, and say that it is all.
  bool equal() const { return equal_; }
  void Stop() {
    if (!thread_.joinable()) return;
    stop_ = true;
    thread_.join();
  }
  // REQUIRES: stopped.
  const std::vector<std::unique_ptr<JudgedConsumer>>& all() const { return consumers_; }

 private:
  void Run() {
    bool asked = false;
    while (!stop_) {
      int work = 0;
      for (const auto& consumer : consumers_) work += consumer->DoWork();
      if (!asked) asked = Ask(dealer_.get(), {ExtensionKind::kSnapshot, 0}) == SendResult::kSent;
      while (const std::optional<Told> told = ReceiveTold(dealer_.get())) {
        if (told->end) asked = false;
        ++work;
      }
      if (const SequenceNumber next = expected_next_.load(std::memory_order_acquire); next > 0) equal_ = AreEqual(next);
      if (work == 0) std::this_thread::yield();
    }
  }
  bool AreEqual(SequenceNumber next) const {
    return std::all_of(consumers_.begin(), consumers_.end(), [&](const auto& consumer) {
      const JudgedSink& sink = consumer->sink();
      return sink.synchronised() && consumer->stream().next() == next && sink.mirror().digest().entries() == expected_;
    });
  }

  std::unique_ptr<ZmqLink> dealer_;
  std::vector<std::unique_ptr<JudgedConsumer>> consumers_;
  DigestEntries expected_;  // written before expected_next_
  std::atomic<SequenceNumber> expected_next_{0};
  std::atomic<bool> equal_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// What the step thread did in all, by its parts.
struct StepCalls {
  ThreadCalls adding;    // requests
  ThreadCalls stepping;  // Schedule and UpdateFromOutput
  ThreadCalls waking;
  std::uint64_t steps = 0;
};

// Steps in which the publishing thread is held until the queue has overflowed, and let go at random moments: in the
// silence after the loss, while everything is announced again, or when that is done.
class Overflows {
 public:
  Overflows(EngineTraffic* traffic, EventPublisher* publisher, Barrier* barrier)
      : traffic_(*traffic), publisher_(*publisher), barrier_(*barrier) {}

  StepCalls Run() {
    while (losses() < kOverflows) {
      barrier_.Hold();
      // One that is silent already, and has no room, does not lose more.
      const std::uint64_t before = losses();
      for (std::uint64_t most = 200; losses() == before && most > 0; --most) Step();
      for (std::uint64_t more = random_() % 6; more > 0; --more) Step();
      barrier_.Release();
      const bool to_the_end = random_() % 2 == 0;
      for (std::uint64_t left = 1 + random_() % 20; left > 0 || (to_the_end && Heals()); left -= left > 0 ? 1 : 0) {
        Step();
        std::this_thread::yield();
      }
    }
    while (Heals()) Step();
    return calls_;
  }

 private:
  std::uint64_t losses() { return traffic_.scheduler().stats().stream.losses; }
  bool Heals() { return traffic_.scheduler().is_healing(); }

  void Step() {
    Count(&calls_.adding, [this] { traffic_.AddRequests(); });
    Count(&calls_.stepping, [this] { traffic_.Step(); });
    Count(&calls_.waking, [this] { publisher_.Wake(); });
    ++calls_.steps;
  }
  template <class Part>
  void Count(ThreadCalls* sum, Part part) {
    CallCounter counter;
    part();
    sum->Add(counter.Stop());
  }

  EngineTraffic& traffic_;
  EventPublisher& publisher_;
  Barrier& barrier_;
  std::mt19937_64 random_{7};
  StepCalls calls_;
};

// Where the system has the time only by a call, reading the clock makes one.
void ForgiveClock(ThreadCalls* calls) {
  CallCounter counter;
  [[maybe_unused]] const double now = SystemClock::Get().WallSeconds();
  if (counter.Stop().system_calls.contains(SYS_clock_gettime)) calls->system_calls.erase(SYS_clock_gettime);
}

void CheckCalls(StepCalls calls) {
  ForgiveClock(&calls.stepping);
  INFO("adding: " << calls.adding.ToString());
  INFO("stepping: " << calls.stepping.ToString());
  INFO("waking: " << calls.waking.ToString());
  for (const ThreadCalls* part : {&calls.adding, &calls.stepping}) {
    CHECK(part->locks == 0);
    CHECK(part->system_calls.empty());
  }
  // The wake is one write to an eventfd, of a publisher that sleeps, and made apart from the step.
  CHECK(calls.waking.locks == 0);
  CHECK(calls.waking.allocations == 0);
  const auto& wakes = calls.waking.system_calls;
  CHECK(wakes.size() <= 1);
  if (kCountsCalls && wakes.size() == 1) {
    CHECK(wakes.contains(SYS_write));
    CHECK(wakes.begin()->second <= calls.steps);
  }
}

KVEventsConfig TinyQueue() {
  KVEventsConfig config = LoopbackConfig();
  config.max_queue_size = kQueue;
  config.buffer_steps = 20;
  config.kvwire.restart_guard_s = 0;
  return config;
}

PublisherOptions HostWakes() {
  PublisherOptions options;
  options.host_wakes = true;
  return options;
}

TEST_CASE("A1: Step path: 1,000 overflows, resyncs and snapshots put no lock and no system call into a step") {
  const Watchdog watchdog("1,000 overflows", std::chrono::seconds(280));
  DigestLog log(4'000'000);
  Barrier barrier;
  PublisherBench bench(TinyQueue(), HostWakes(), barrier.encoder());
  NotingPublisher publisher(bench.publisher.get(), &log);
  EngineTraffic::Options options;
  options.num_blocks = 3000;
  EngineTraffic traffic(options, &publisher);
  Consumers consumers(bench, &log);
  traffic.StepUntilStored(6000);

  // Its system calls can be counted from here on, so nothing else happens on this thread.
  std::thread steps([&] {
    const Status trapped = TrapSystemCalls();
    if (kCountsCalls) CHECK_MESSAGE(trapped.has_value(), trapped.error().message);
    CheckCalls(Overflows(&traffic, &publisher, &barrier).Run());
  });
  steps.join();

  const scheduler::SchedulerStats stats = traffic.scheduler().stats();
  CHECK(stats.stream.losses >= kOverflows);
  CHECK(stats.stream.resyncs > kOverflows / 10);
  CHECK(stats.stream.walks > 0);
  CHECK(stats.removed > 1000);
  // Every consumer ends with what the pool has; until then none says that it has it all and is wrong. Those that take
  // a snapshot need the step thread for it.
  consumers.Expect(log.size(), traffic.scheduler().digest().entries());
  while (!consumers.equal()) {
    traffic.scheduler().DoStateWork();
    bench.publisher->Wake();
    std::this_thread::yield();
  }
  consumers.Stop();
  CHECK_FALSE(log.overflowed());
  for (const auto& consumer : consumers.all()) {
    CHECK(consumer->sink().first_difference() == "");
    CHECK(consumer->sink().judged() > 0);
    CHECK(consumer->stream().stats().gaps > 0);
  }
  CHECK(Balanced(bench.publisher->stats(), stats.batches));
}

}  // namespace
}  // namespace kvwire::test
