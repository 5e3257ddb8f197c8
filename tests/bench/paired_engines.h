// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "engine/simulated_runner.h"
#include "kv_events/event_publisher.h"
#include "kv_events/hash/block_hasher.h"
#include "kv_events/publish/zmq_publisher.h"
#include "scheduler/scheduler.h"
#include "tests/bench/rounds.h"

// What the benchmarks of the step share.
namespace kvwire::test {

inline constexpr double kModelledStepNanos = 1.3e6;

template <class Value>
Value Unwrap(Result<Value> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return *std::move(result);
}

// Bound to ports that the system chooses, with replay; woken by the host.
inline std::unique_ptr<ZmqPublisher> MakeZmqPublisher() {
  KVEventsConfig config;
  config.enable_kv_cache_events = true;
  config.endpoint = "tcp://127.0.0.1:0";
  config.replay_endpoint = "tcp://127.0.0.1:0";
  config.kvwire.mode = SocketMode::kBind;
  PublisherOptions options;
  options.host_wakes = true;
  return Unwrap(ZmqPublisher::Create(config, options));
}

// Nanoseconds, summed over steps. But for `wall` they are CPU time of the thread.
struct StepNanos {
  double in_call = 0;  // Schedule and UpdateFromOutput, with the recording and Publish in them
  double wake = 0;
  double wall = 0;   // all of the step, the simulated model included
  double model = 0;  // that a real model would take; nobody waits for it
};

// An engine whose steps are timed.
class TimedEngine {
 public:
  // `publisher` null: events are off.
  TimedEngine(scheduler::SchedulerConfig config, EventPublisher* publisher) : publisher_(publisher) {
    config.enable_kv_cache_events = publisher != nullptr;
    scheduler_ = Unwrap(scheduler::Scheduler::Create(
        config, Unwrap(BlockHasher::Create(HashAlgorithm::kSha256Cbor, kDefaultHashSeed)), publisher));
    engine::SimulatedRunner::Options options;
    options.Fit(config);
    runner_ = Unwrap(engine::SimulatedRunner::Create(options));
  }

  Status Add(scheduler::NewRequest request) { return scheduler_->AddRequest(std::move(request)); }

  // One step; what finished with it.
  std::vector<scheduler::FinishedRequest> Step() {
    const auto start = std::chrono::steady_clock::now();
    scheduler::SchedulerOutput step;
    nanos_.in_call += TimeOf([&] { step = scheduler_->Schedule(); });
    nanos_.model += kModelledStepNanos + static_cast<double>(kTokens.Duration(step).count());
    const scheduler::RunnerOutput output = runner_->Run(step);
    std::vector<scheduler::FinishedRequest> finished;
    nanos_.in_call += TimeOf([&] { finished = scheduler_->UpdateFromOutput(step, output); });
    if (publisher_ != nullptr) nanos_.wake += TimeOf([&] { publisher_->Wake(); });
    const std::chrono::duration<double, std::nano> wall = std::chrono::steady_clock::now() - start;
    nanos_.wall += wall.count();
    return finished;
  }

  const scheduler::Scheduler& scheduler() const { return *scheduler_; }
  StepNanos TakeNanos() { return std::exchange(nanos_, StepNanos()); }

 private:
  // Beside kModelledStepNanos: 100,000 prompt tokens a second, more than one accelerator computes of a model of 8
  // billion weights.
  static constexpr engine::TimeModel kTokens{.prefill_per_token = std::chrono::microseconds(10)};

  EventPublisher* const publisher_;
  std::unique_ptr<scheduler::Scheduler> scheduler_;
  std::unique_ptr<engine::SimulatedRunner> runner_;
  StepNanos nanos_;
};

// Two engines that get the same requests, events off and on, and go forward in turns, step by step.
class PairedEngines {
 public:
  PairedEngines(const scheduler::SchedulerConfig& config, EventPublisher* publisher)
      : off_(config, nullptr), on_(config, publisher) {}

  // Whether both take it.
  bool Add(scheduler::NewRequest request) {
    const bool off = off_.Add(request).has_value();
    const bool on = on_.Add(std::move(request)).has_value();
    equal_ = equal_ && on == off;
    return off && on;
  }

  void Step() {
    std::vector<scheduler::FinishedRequest> off;
    std::vector<scheduler::FinishedRequest> on;
    if (steps_++ % 2 == 0) off = off_.Step();
    on = on_.Step();
    if (steps_ % 2 == 0) off = off_.Step();
    equal_ = equal_ && std::ranges::equal(off, on, [](const auto& one, const auto& other) {
               return one.id == other.id && one.output == other.output;
             });
  }

  bool busy() const { return off_.scheduler().has_unfinished_requests() || on_.scheduler().has_unfinished_requests(); }
  // Whether both have done the same so far, to the last token.
  bool equal() const { return equal_; }
  std::uint64_t steps() const { return steps_; }
  TimedEngine& off() { return off_; }
  TimedEngine& on() { return on_; }

 private:
  TimedEngine off_;
  TimedEngine on_;
  bool equal_ = true;
  std::uint64_t steps_ = 0;
};

}  // namespace kvwire::test
