// SPDX-License-Identifier: Apache-2.0
// What events add to the steps of a request trace: two engines run it in turns, step by step, one with events off, one
// with events on and a publisher. Each round begins with empty caches. Both must give the same tokens.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "engine/trace.h"
#include "kv_events/event_publisher.h"
#include "kv_events/publish/zmq_publisher.h"
#include "scheduler/scheduler.h"
#include "tests/bench/paired_engines.h"
#include "tests/bench/rounds.h"

namespace kvwire::test {
namespace {

constexpr double kGoalPercent = 1;
constexpr std::uint32_t kNumBlocks = 10000;

enum class Publisher : std::uint8_t { kNull, kZmq };

struct Named {
  const char* name;
  Publisher publisher;
};
constexpr std::array<Named, 2> kPublishers{{{"null", Publisher::kNull}, {"zmq", Publisher::kZmq}}};

// The trace to run, and whether it was named by the caller.
struct Trace {
  std::string path = KVWIRE_GOLDEN_DIR "/small_trace.jsonl";
  bool named = false;
};
Trace& ChosenTrace() {
  static Trace trace;
  return trace;
}

std::unique_ptr<EventPublisher> Make(Publisher publisher) {
  if (publisher == Publisher::kNull) return std::make_unique<NullEventPublisher>();
  return MakeZmqPublisher();
}

// The trace's sums of one round.
struct Sums {
  StepNanos off, on;
  std::uint64_t requests = 0;
  std::uint64_t steps = 0;
  std::uint64_t events = 0;
  const char* wrong = nullptr;
};

// Requests come as they can be served: at most max_num_seqs of them wait.
Sums RunTrace(EventPublisher* publisher) {
  scheduler::SchedulerConfig config;
  config.num_blocks = kNumBlocks;
  PairedEngines engines(config, publisher);
  const std::unique_ptr<engine::TraceReader> reader = Unwrap(engine::TraceReader::Open(ChosenTrace().path));
  Sums sums;
  for (bool ended = false; !ended || engines.busy();) {
    while (!ended && engines.off().scheduler().num_waiting() < config.max_num_seqs) {
      const std::optional<engine::TraceRequest> next = Unwrap(reader->Next());
      ended = !next.has_value();
      if (ended) break;
      scheduler::NewRequest request;
      request.id = next->line;
      request.prompt = engine::TracePromptTokens(*next);
      request.max_tokens = next->output_length;
      if (engines.Add(std::move(request))) ++sums.requests;
    }
    if (engines.busy()) engines.Step();
  }
  sums.off = engines.off().TakeNanos();
  sums.on = engines.on().TakeNanos();
  sums.steps = engines.steps();
  sums.events = engines.on().scheduler().stats().events;
  if (!engines.equal()) sums.wrong = "tokens with events on differ from those with events off";
  if (sums.events == 0 || engines.off().scheduler().stats().events != 0)
    sums.wrong = "events are not what they should be";
  return sums;
}

void AddedByEvents(benchmark::State& state, Publisher kind) {
  PairedRounds in_call, wall;
  Sums last;
  std::vector<double> wakes;
  for (auto _ : state) {
    const std::unique_ptr<EventPublisher> publisher = Make(kind);
    last = RunTrace(publisher.get());
    publisher->Close();
    if (publisher->stats().dropped_full != 0) last.wrong = "batches were dropped";
    if (last.wrong != nullptr) return Fail(state, last.wrong);
    in_call.Add(last.off.in_call, last.on.in_call);
    wall.Add(last.off.wall, last.on.wall);
    wakes.push_back(last.on.wake);
    state.SetIterationTime(last.on.in_call * 1e-9);
  }
  const double percent = 100 * in_call.difference() / (in_call.base() + last.off.model);
  state.counters["requests"] = static_cast<double>(last.requests);
  state.counters["steps"] = static_cast<double>(last.steps);
  state.counters["events"] = static_cast<double>(last.events);
  state.counters["off_ms"] = in_call.base() * 1e-6;
  state.counters["on_ms"] = in_call.other() * 1e-6;
  state.counters["added_ms"] = in_call.difference() * 1e-6;
  state.counters["model_ms"] = last.off.model * 1e-6;
  state.counters["added_percent"] = percent;
  state.counters["wake_ms"] = Median(wakes) * 1e-6;
  state.counters["off_wall_ms"] = wall.base() * 1e-6;
  state.counters["on_wall_ms"] = wall.other() * 1e-6;
  Goals goals;
  goals.Judge("< 1 % of the step time", percent < kGoalPercent);
  state.SetLabel(goals.text());
}

void AddAll(int rounds) {
  // A trace that somebody names may take minutes.
  constexpr int kMostRoundsOfNamed = 3;
  if (ChosenTrace().named) rounds = std::min(rounds, kMostRoundsOfNamed);
  for (const Named& each : kPublishers) {
    benchmark::RegisterBenchmark(each.name, AddedByEvents, each.publisher)->Iterations(rounds)->UseManualTime();
  }
}

// Takes --trace=PATH out of the arguments.
void TakeTrace(int* argc, char** argv) {
  constexpr const char* kFlag = "--trace=";
  char** const end = argv + *argc;
  char** const found = std::find_if(argv, end, [](const char* text) { return std::strncmp(text, kFlag, 8) == 0; });
  if (found == end) return;
  ChosenTrace() = {*found + std::strlen(kFlag), true};
  *argc = static_cast<int>(std::copy(found + 1, end, found) - argv);
}

}  // namespace
}  // namespace kvwire::test

// A trace that is missing or has a bad line ends with its error.
int main(int argc, char** argv) {
  try {
    kvwire::test::TakeTrace(&argc, argv);
    return kvwire::test::RunBenchmarks(argc, argv, kvwire::test::AddAll);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trace_bench: %s\n", error.what());
    return 1;
  }
}
