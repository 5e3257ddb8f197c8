// SPDX-License-Identifier: Apache-2.0
// The whole path of a batch, from Publish to a subscriber, while the publisher also serves others: an engine of 20,000
// blocks steps once a millisecond, and its thread sleeps between; a subscriber notes when each batch arrives. A round
// is measured twice, in turns: undisturbed, and while a client that reads slowly is sent the 10,000 batches of the
// replay buffer and another takes one snapshot after the other.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "kv_events/transport/zmq_link.h"
#include "kv_events/wire/extensions.h"
#include "tests/bench/paired_engines.h"
#include "tests/bench/rounds.h"
#include "tests/support/engine_traffic.h"
#include "tests/support/forwarding_publisher.h"
#include "tests/support/stream_support.h"

namespace kvwire::test {
namespace {

constexpr std::size_t kReplayed = 10'000;  // the publisher's buffer
constexpr std::uint32_t kBlocks = 20'000;
constexpr std::size_t kStepsPerRound = 200;
constexpr std::chrono::milliseconds kPace(1);
constexpr std::chrono::microseconds kSlowRead(200);  // between two messages
constexpr std::size_t kMaxNumbers = 4'000'000;

std::int64_t NowNanos() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// When each number was handed over and when it arrived; 0: not yet.
struct Moments {
  std::vector<std::int64_t> published = std::vector<std::int64_t>(kMaxNumbers);  // of the step thread
  std::vector<std::atomic<std::int64_t>> received = std::vector<std::atomic<std::int64_t>>(kMaxNumbers);
};

// Notes when Publish is called. For a publisher without heartbeats whose first number is 0.
class TimedPublisher final : public test::ForwardingPublisher {
 public:
  TimedPublisher(EventPublisher* publisher, Moments* moments) : ForwardingPublisher(publisher), moments_(moments) {}

  std::size_t next() const noexcept { return next_; }

  PublishResult Publish(KVEventBatch&& batch) noexcept override {
    moments_->published[std::min(next_++, kMaxNumbers - 1)] = NowNanos();
    return ForwardingPublisher::Publish(std::move(batch));
  }

 private:
  Moments* const moments_;
  std::size_t next_ = 0;
};

std::unique_ptr<ZmqLink> Connected(LinkKind kind, const std::string& endpoint, int receive_hwm) {
  LinkOptions options;
  options.receive_hwm = receive_hwm;
  return Unwrap(ZmqLink::Connect(ZmqContext::Shared(), kind, Unwrap(Endpoint::Parse(endpoint, "endpoint")), options));
}

// A thread that does something again and again, and is told to end by its destruction.
class Worker {
 public:
  template <class Work>
  explicit Worker(Work work) : thread_([this, work]() mutable { work(stop_); }) {}
  ~Worker() {
    stop_ = true;
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

void Receive(const std::string& endpoint, Moments* moments, const std::atomic<bool>& stop) {
  const std::unique_ptr<ZmqLink> link = Connected(LinkKind::kSub, endpoint, 0);
  ZmqLink* const links[] = {link.get()};
  while (!stop) {
    while (const std::optional<Live> live = ReceiveLive(link.get())) {
      moments->received[std::min<std::size_t>(live->number, kMaxNumbers - 1)].store(NowNanos());
    }
    WaitForInput(links, nullptr, std::chrono::milliseconds(10));
  }
}

void ReadSlowly(const std::string& endpoint, std::atomic<std::uint64_t>* messages, const std::atomic<bool>& stop) {
  const std::unique_ptr<ZmqLink> link = Connected(LinkKind::kDealer, endpoint, 10);
  Ask(link.get(), 0);
  while (!stop) {
    if (link->TryReceive()) ++*messages;
    std::this_thread::sleep_for(kSlowRead);
  }
}

void TakeSnapshots(const std::string& endpoint, std::atomic<std::uint64_t>* snapshots, const std::atomic<bool>& stop) {
  const std::unique_ptr<ZmqLink> link = Connected(LinkKind::kDealer, endpoint, 0);
  ZmqLink* const links[] = {link.get()};
  bool asked = false;
  while (!stop) {
    if (!asked) asked = Ask(link.get(), {ExtensionKind::kSnapshot, 0}) == SendResult::kSent;
    while (const std::optional<Told> told = ReceiveTold(link.get())) {
      if (!told->end) continue;
      asked = false;
      ++*snapshots;
    }
    WaitForInput(links, nullptr, std::chrono::milliseconds(1));
  }
}

struct Delivery {
  double p50 = 0;
  double p99 = 0;
};

class Engine {
 public:
  Engine() : publisher_(MakeZmqPublisher()), timed_(publisher_.get(), &moments_), traffic_(Options(), &timed_) {
    const std::string endpoint = publisher_->source()->endpoint;
    receiver_.emplace([this, endpoint](const std::atomic<bool>& stop) { Receive(endpoint, &moments_, stop); });
    while (timed_.next() < kReplayed || traffic_.scheduler().stats().stored < kBlocks * 5 / 4 ||
           traffic_.scheduler().is_healing()) {
      Step();
      while (!publisher_->HasRoom()) std::this_thread::yield();
    }
    Arrived(timed_.next() - 1);
  }

  // In microseconds.
  Delivery Round() {
    std::vector<std::int64_t> nanos;
    const std::size_t first = timed_.next();
    auto next = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < kStepsPerRound; ++i) {
      Step();
      std::this_thread::sleep_until(next += kPace);
    }
    for (std::size_t number = first; number < timed_.next(); ++number) {
      complete_ = Arrived(number) && complete_;
      nanos.push_back(moments_.received[number] - moments_.published[number]);
    }
    std::sort(nanos.begin(), nanos.end());
    const auto at = [&](std::size_t percent) {
      return static_cast<double>(nanos[(nanos.size() - 1) * percent / 100]) / 1e3;
    };
    return {at(50), at(99)};
  }
  Delivery DisturbedRound() {
    const std::string replay = *publisher_->source()->replay_endpoint;
    const Worker slow([this, replay](const std::atomic<bool>& stop) { ReadSlowly(replay, &replayed_, stop); });
    const Worker taker([this, replay](const std::atomic<bool>& stop) { TakeSnapshots(replay, &snapshots_, stop); });
    const std::uint64_t before = publisher_->stats().snapshot_requests;
    while (publisher_->stats().snapshot_requests == before || publisher_->stats().replay_clients < 2) {
      Step();
      std::this_thread::sleep_for(kPace);
    }
    return Round();
  }

  bool complete() const { return complete_ && publisher_->stats().dropped_full == 0; }
  std::uint64_t replayed() const { return replayed_; }
  std::uint64_t snapshots() const { return snapshots_; }

 private:
  static EngineTraffic::Options Options() {
    EngineTraffic::Options options;
    options.num_blocks = kBlocks + 1;
    options.block_size = 16;
    options.max_prompt_blocks = 16;
    return options;
  }
  void Step() {
    traffic_.AddRequests();
    traffic_.Step();
    publisher_->Wake();
  }
  // Waits for it, at most five seconds.
  bool Arrived(std::size_t number) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (moments_.received[number] == 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    return moments_.received[number] != 0;
  }

  Moments moments_;
  std::unique_ptr<ZmqPublisher> publisher_;
  TimedPublisher timed_;
  EngineTraffic traffic_;
  std::atomic<std::uint64_t> replayed_{0};
  std::atomic<std::uint64_t> snapshots_{0};
  bool complete_ = true;
  std::optional<Worker> receiver_;
};

void DisturbedDelivery(benchmark::State& state) {
  Engine engine;
  PairedRounds p50;
  PairedRounds p99;
  bool disturbed_first = false;
  for (auto _ : state) {
    Delivery rest;
    Delivery disturbed;
    if (!disturbed_first) rest = engine.Round();
    disturbed = engine.DisturbedRound();
    if (disturbed_first) rest = engine.Round();
    disturbed_first = !disturbed_first;
    p50.Add(rest.p50, disturbed.p50);
    p99.Add(rest.p99, disturbed.p99);
    state.SetIterationTime(disturbed.p50 * 1e-6);
  }
  if (!engine.complete()) return Fail(state, "batches were lost");
  if (engine.replayed() == 0 || engine.snapshots() == 0) return Fail(state, "nothing disturbed the delivery");
  state.counters["rest_p50_us"] = p50.base();
  state.counters["rest_p99_us"] = p99.base();
  state.counters["disturbed_p50_us"] = p50.other();
  state.counters["disturbed_p99_us"] = p99.other();
  state.counters["ratio_p50"] = p50.ratio();
  state.counters["ratio_p99"] = p99.ratio();
  state.counters["replayed"] = static_cast<double>(engine.replayed());
  state.counters["snapshots"] = static_cast<double>(engine.snapshots());
}

void AddAll(int rounds) {
  benchmark::RegisterBenchmark("delivery", DisturbedDelivery)->Iterations(rounds)->UseManualTime();
}

}  // namespace
}  // namespace kvwire::test

int main(int argc, char** argv) { return kvwire::test::RunBenchmarks(argc, argv, kvwire::test::AddAll); }
