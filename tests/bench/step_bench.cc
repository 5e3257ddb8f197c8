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
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "kv_events/publish/zmq_publisher.h"
#include "scheduler/scheduler.h"
#include "tests/bench/paired_engines.h"
#include "tests/bench/rounds.h"

namespace kvwire::test {
namespace {

using scheduler::NewRequest;

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
  const std::unique_ptr<ZmqPublisher> publisher = MakeZmqPublisher();
  scheduler::SchedulerConfig config;
  config.num_blocks = workload.num_blocks;
  PairedEngines engines(config, publisher.get());
  PairedRounds rounds;
  std::vector<double> wakes;
  std::uint32_t round = 0;
  bool taken = true;
  const auto run = [&] {
    for (NewRequest& request : RequestsOf(workload, ++round)) taken = engines.Add(std::move(request)) && taken;
    const std::uint64_t before = engines.steps();
    while (engines.busy()) engines.Step();
    const auto steps = static_cast<double>(engines.steps() - before);
    const StepNanos off = engines.off().TakeNanos();
    const StepNanos on = engines.on().TakeNanos();
    return std::array{off.in_call / steps, on.in_call / steps, on.wake / steps};
  };
  run();
  for (auto _ : state) {
    const auto [off, on, wake] = run();
    rounds.Add(off, on);
    wakes.push_back(wake);
    state.SetIterationTime(on * 1e-9);
  }
  publisher->Close();
  if (!taken) return Fail(state, "a request is refused");
  if (!engines.equal()) return Fail(state, "tokens with events on differ from those with events off");
  if (engines.on().scheduler().stats().events == 0 || engines.off().scheduler().stats().events != 0) {
    return Fail(state, "events are not what they should be");
  }
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
