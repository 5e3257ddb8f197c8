// SPDX-License-Identifier: Apache-2.0
// What events add to the step: two engines get the same requests, one with events off, one with events on and a
// publisher, and go forward in turns, step by step. Timed are Schedule and UpdateFromOutput, in which events are
// recorded and published; hashing happens with events off, too. Both must give the same tokens.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "engine/simulated_runner.h"
#include "kv_events/hash/block_hasher.h"
#include "kv_events/publish/zmq_publisher.h"
#include "scheduler/scheduler.h"
#include "tests/bench/rounds.h"

namespace kvwire::test {
namespace {

using scheduler::FinishedRequest;
using scheduler::NewRequest;
using scheduler::Scheduler;
using scheduler::SchedulerConfig;

constexpr double kModelledStepNanos = 1.3e6;
constexpr double kGoalPercent = 1;

struct Workload {
  const char* name;
  std::uint32_t num_blocks;
  std::uint32_t requests;  // of a round, all at once
  std::uint32_t least_tokens, most_tokens;
  std::uint32_t max_tokens;
};

// Short prompts and long outputs: nearly all steps only decode. Long prompts, half of which others begin with, too, and
// short outputs: nearly all steps compute thousands of prompt tokens.
constexpr std::array<Workload, 2> kWorkloads{
    {{"decode", 8192, 128, 16, 64, 256}, {"prefill", 16384, 64, 512, 4096, 32}}};

template <class Value>
Value Unwrap(Result<Value> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return *std::move(result);
}

std::unique_ptr<ZmqPublisher> MakePublisher() {
  KVEventsConfig config;
  config.enable_kv_cache_events = true;
  config.endpoint = "tcp://127.0.0.1:0";
  config.replay_endpoint = "tcp://127.0.0.1:0";
  config.kvwire.mode = SocketMode::kBind;
  PublisherOptions options;
  options.host_wakes = true;
  return Unwrap(ZmqPublisher::Create(config, options));
}

class Engine {
 public:
  // `publisher` null: events are off.
  Engine(const Workload& workload, ZmqPublisher* publisher) : publisher_(publisher) {
    SchedulerConfig config;
    config.num_blocks = workload.num_blocks;
    config.enable_kv_cache_events = publisher != nullptr;
    scheduler_ = Unwrap(Scheduler::Create(
        config, Unwrap(BlockHasher::Create(HashAlgorithm::kSha256Cbor, kDefaultHashSeed)), publisher));
    engine::SimulatedRunner::Options options;
    options.num_blocks = workload.num_blocks;
    runner_ = Unwrap(engine::SimulatedRunner::Create(options));
  }

  void Start(const std::vector<NewRequest>& requests) {
    outputs_.assign(requests.size(), {});
    first_ = requests.front().id;
    nanos_ = wake_nanos_ = 0;
    steps_ = 0;
    for (const NewRequest& request : requests) {
      if (!scheduler_->AddRequest(request)) throw std::runtime_error("a request is refused");
    }
  }

  void Step() {
    scheduler::SchedulerOutput step;
    nanos_ += TimeOf([&] { step = scheduler_->Schedule(); });
    const scheduler::RunnerOutput output = runner_->Run(step);
    std::vector<FinishedRequest> finished;
    nanos_ += TimeOf([&] { finished = scheduler_->UpdateFromOutput(step, output); });
    ++steps_;
    for (FinishedRequest& request : finished) outputs_[request.id - first_] = std::move(request.output);
    if (publisher_ != nullptr) wake_nanos_ += TimeOf([&] { publisher_->Wake(); });
  }

  bool busy() const { return scheduler_->has_unfinished_requests(); }
  double nanos_per_step() const { return nanos_ / steps_; }
  double wake_nanos_per_step() const { return wake_nanos_ / steps_; }
  std::uint64_t num_events() const { return scheduler_->stats().events; }
  const std::vector<std::vector<TokenId>>& outputs() const { return outputs_; }

 private:
  ZmqPublisher* const publisher_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<engine::SimulatedRunner> runner_;
  std::vector<std::vector<TokenId>> outputs_;
  scheduler::RequestId first_ = 0;
  double nanos_ = 0;
  double wake_nanos_ = 0;
  double steps_ = 0;
};

std::vector<NewRequest> RequestsOf(const Workload& workload, std::uint32_t round) {
  std::mt19937 random(round);
  std::uniform_int_distribution<std::uint32_t> length(workload.least_tokens, workload.most_tokens);
  const std::vector<TokenId> shared = RandomTokens(workload.most_tokens / 2, 0);
  std::vector<NewRequest> requests(workload.requests);
  for (std::uint32_t i = 0; i < workload.requests; ++i) {
    requests[i].id = std::uint64_t{round} * workload.requests + i;
    requests[i].max_tokens = workload.max_tokens;
    requests[i].prompt = RandomTokens(length(random), random());
    if (i % 2 == 0) {
      const std::size_t common = std::min(shared.size(), requests[i].prompt.size());
      std::copy_n(shared.begin(), common, requests[i].prompt.begin());
    }
  }
  return requests;
}

void AddedByEvents(benchmark::State& state, const Workload& workload) {
  const std::unique_ptr<ZmqPublisher> publisher = MakePublisher();
  Engine off(workload, nullptr);
  Engine on(workload, publisher.get());
  PairedRounds rounds;
  std::vector<double> wakes;
  std::uint32_t round = 0;
  const auto run = [&] {
    const std::vector<NewRequest> requests = RequestsOf(workload, ++round);
    off.Start(requests);
    on.Start(requests);
    for (std::uint64_t step = 0; off.busy() || on.busy(); ++step) {
      (step % 2 == 0 ? off : on).Step();
      (step % 2 == 0 ? on : off).Step();
    }
    return off.outputs() == on.outputs();
  };
  bool equal = run();
  for (auto _ : state) {
    equal = run() && equal;
    rounds.Add(off.nanos_per_step(), on.nanos_per_step());
    wakes.push_back(on.wake_nanos_per_step());
    state.SetIterationTime(on.nanos_per_step() * 1e-9);
  }
  publisher->Close();
  if (!equal) return Fail(state, "tokens with events on differ from those with events off");
  if (on.num_events() == 0 || off.num_events() != 0) return Fail(state, "events are not what they should be");
  if (publisher->stats().dropped_full != 0) return Fail(state, "batches were dropped");
  const double percent = 100 * rounds.difference() / kModelledStepNanos;
  state.counters["off_ns_per_step"] = rounds.base();
  state.counters["on_ns_per_step"] = rounds.other();
  state.counters["added_ns_per_step"] = rounds.difference();
  state.counters["added_percent"] = percent;
  state.counters["wake_ns_per_step"] = Median(wakes);
  Goals goals;
  goals.Judge("< 1 % of a step of 1.3 ms", percent < kGoalPercent);
  state.SetLabel(goals.text());
}

void AddAll(int rounds) {
  for (const Workload& workload : kWorkloads) {
    benchmark::RegisterBenchmark(workload.name, AddedByEvents, workload)->Iterations(rounds)->UseManualTime();
  }
}

}  // namespace
}  // namespace kvwire::test

int main(int argc, char** argv) { return kvwire::test::RunBenchmarks(argc, argv, kvwire::test::AddAll); }
