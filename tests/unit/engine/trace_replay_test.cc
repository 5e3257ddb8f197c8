// SPDX-License-Identifier: Apache-2.0
#include "engine/trace_replay.h"

#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/unit/engine/engine_fixture.h"

namespace kvwire::engine {
namespace {

const std::string kTrace = std::string(KVWIRE_GOLDEN_DIR) + "/small_trace.jsonl";
constexpr std::uint64_t kTraceRequests = 240;

EngineConfig TraceConfig(std::uint32_t num_blocks, std::uint32_t max_num_seqs) {
  EngineConfig config = SmallConfig(num_blocks);
  config.scheduler.block_size = 16;
  config.scheduler.max_num_seqs = max_num_seqs;
  config.scheduler.max_num_batched_tokens = 2048;
  config.scheduler.max_model_len = 100000;
  return config;
}

std::unique_ptr<TraceReader> OpenTrace() {
  auto reader = TraceReader::Open(kTrace);
  REQUIRE(reader.has_value());
  return std::move(*reader);
}

ReplaySummary Replay(EngineCore& engine, ReplayOptions options = {}) {
  const auto reader = OpenTrace();
  const auto summary = TraceReplay(reader.get(), &engine, std::move(options)).Run();
  REQUIRE(summary.has_value());
  return *summary;
}

TEST_CASE("one request at a time, the small trace gives the oracle's figures") {
  std::ifstream file(std::string(KVWIRE_GOLDEN_DIR) + "/small_trace.expected.json");
  const nlohmann::json expected = nlohmann::json::parse(file);
  CollectingEventPublisher publisher;
  auto engine = MakeEngine(TraceConfig(10000, 1), &publisher);
  const ReplaySummary summary = Replay(*engine);
  const scheduler::SchedulerStats stats = engine->scheduler().stats();
  CHECK(summary.requests == expected.at("requests").get<std::uint64_t>());
  CHECK(summary.finished == summary.requests);
  CHECK(stats.prompt_tokens == expected.at("prompt_tokens").get<std::uint64_t>());
  CHECK(stats.full_prompt_blocks == expected.at("full_prompt_blocks").get<std::uint64_t>());
  CHECK(stats.new_prompt_blocks == expected.at("unique_prompt_blocks").get<std::uint64_t>());
  CHECK(stats.hit_blocks == expected.at("hit_blocks").get<std::uint64_t>());
  CHECK(stats.hit_tokens == expected.at("hit_tokens").get<std::uint64_t>());
  CHECK(stats.removed == 0);
  CHECK(stats.dropped_batches == 0);
}

TEST_CASE("many at once in a small pool evict, preempt and finish, the same way every time") {
  std::vector<KVEventBatch> first;
  for (int run = 0; run < 2; ++run) {
    CollectingEventPublisher publisher;
    ManualClock clock;
    EngineConfig config = TraceConfig(400, 16);
    config.clock = &clock;
    auto engine = MakeEngine(config, &publisher);
    std::vector<std::uint64_t> ordinals;
    ReplayOptions options;
    options.on_batch = [&ordinals](std::uint64_t ordinal) { ordinals.push_back(ordinal); };
    const ReplaySummary summary = Replay(*engine, options);
    CHECK(summary.requests == kTraceRequests);
    CHECK(summary.finished == kTraceRequests);
    CHECK(engine->scheduler().stats().removed > 0);
    CHECK(engine->scheduler().stats().preemptions > 0);
    REQUIRE(ordinals.size() == publisher.batches().size());
    for (std::size_t i = 0; i < ordinals.size(); ++i) CHECK(ordinals[i] == i);
    if (run == 0) {
      first = publisher.TakeBatches();
    } else {
      CHECK(first == publisher.batches());
    }
  }
}

TEST_CASE("a request that can never fit is counted, named with both numbers and skipped") {
  CollectingEventPublisher publisher;
  auto engine = MakeEngine(TraceConfig(101, 4), &publisher);
  std::vector<std::pair<std::uint64_t, std::string>> refused;
  ReplayOptions options;
  options.on_refused = [&refused](const TraceRequest& request, const Error& error) {
    refused.emplace_back(request.line, error.message);
  };
  const ReplaySummary summary = Replay(*engine, options);
  CHECK(summary.refused == refused.size());
  CHECK(summary.refused > 0);
  CHECK(summary.finished == kTraceRequests - summary.refused);
  CHECK(refused.at(0).second.find("100") != std::string::npos);
}

TEST_CASE("a limit takes only the first requests") {
  CollectingEventPublisher publisher;
  auto engine = MakeEngine(TraceConfig(10000, 4), &publisher);
  ReplayOptions options;
  options.limit = 17;
  const ReplaySummary summary = Replay(*engine, options);
  CHECK(summary.requests == 17);
  CHECK(summary.finished == 17);
  CHECK_FALSE(summary.stopped);
}

TEST_CASE("a stop ends the replay with the figures so far") {
  CollectingEventPublisher publisher;
  auto engine = MakeEngine(TraceConfig(10000, 4), &publisher);
  ReplayOptions options;
  ManualClock clock;
  options.clock = &clock;
  options.on_batch = [&clock](std::uint64_t) { clock.Advance(std::chrono::milliseconds(20)); };
  options.stop = [&engine] { return engine->scheduler().stats().requests_finished >= 20; };
  const ReplaySummary summary = Replay(*engine, options);
  CHECK(summary.stopped);
  CHECK(summary.finished >= 20);
  CHECK(summary.finished < kTraceRequests);
}

TEST_CASE("a stop ends also a run of refused requests, with a speed and without") {
  for (const double speed : {0.0, 1e9}) {
    CollectingEventPublisher publisher;
    auto engine = MakeEngine(TraceConfig(2, 4), &publisher);
    ReplayOptions options;
    options.speed = speed;
    options.sleep = [](std::chrono::nanoseconds) {};
    std::uint64_t refused = 0;
    options.on_refused = [&refused](const TraceRequest&, const Error&) { ++refused; };
    options.stop = [&refused] { return refused >= 20; };
    const ReplaySummary summary = Replay(*engine, options);
    CHECK(summary.stopped);
    CHECK(summary.refused == 20);
  }
}

TEST_CASE("with a speed, requests come at their time and the engine sleeps in between") {
  CollectingEventPublisher publisher;
  ManualClock clock;
  auto engine = MakeEngine(TraceConfig(10000, 64), &publisher);
  ReplayOptions options;
  options.limit = 50;
  options.speed = 10;
  options.clock = &clock;
  std::chrono::nanoseconds slept{0};
  options.sleep = [&](std::chrono::nanoseconds time) {
    CHECK(time.count() > 0);
    CHECK(time <= std::chrono::milliseconds(20));
    slept += time;
    clock.Advance(time);
  };
  const ReplaySummary summary = Replay(*engine, options);
  CHECK(summary.finished == 50);
  double last_ms = 0;
  const auto reader = OpenTrace();
  for (int i = 0; i < 50; ++i) last_ms = reader->Next().value().value().timestamp_ms;
  CHECK(slept == summary.wall);
  CHECK(slept.count() == doctest::Approx(last_ms * 1e6 / 10).epsilon(0.001));
}

TEST_CASE("progress ends at the whole trace") {
  CollectingEventPublisher publisher;
  auto engine = MakeEngine(TraceConfig(10000, 64), &publisher);
  ReplayOptions options;
  std::vector<ReplayProgress> reports;
  options.progress = [&reports](const ReplayProgress& progress) { reports.push_back(progress); };
  Replay(*engine, options);
  REQUIRE_FALSE(reports.empty());
  CHECK(reports.front().requests == 0);
  CHECK(reports.back().share == 1.0);
  CHECK(reports.back().finished == kTraceRequests);
}

}  // namespace
}  // namespace kvwire::engine
