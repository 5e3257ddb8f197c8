// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_core.h"

#include <chrono>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/unit/engine/engine_fixture.h"

namespace kvwire::engine {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// Counts what is asked of it and lets time pass in its calls.
class CountingPublisher final : public EventPublisher {
 public:
  explicit CountingPublisher(ManualClock* clock = nullptr) : clock_(clock) {}

  PublishResult Publish(KVEventBatch&& batch) noexcept override {
    if (clock_ != nullptr) clock_->Advance(nanoseconds(100));
    batches.push_back(std::move(batch));
    return PublishResult::kAccepted;
  }
  void Wake() noexcept override {
    if (clock_ != nullptr) clock_->Advance(nanoseconds(7));
    ++wakes;
  }
  using EventPublisher::Close;
  void Close(milliseconds deadline) noexcept override { deadlines.push_back(deadline); }
  PublisherStats stats() const noexcept override { return {}; }

  std::vector<KVEventBatch> batches;
  std::vector<milliseconds> deadlines;
  int wakes = 0;

 private:
  ManualClock* const clock_;
};

TEST_CASE("events without a publisher are refused") {
  EngineConfig config = SmallConfig();
  config.scheduler.enable_kv_cache_events = true;
  auto hasher = BlockHasher::Create(HashAlgorithm::kSha256Cbor, "0");
  REQUIRE(hasher.has_value());
  const auto engine = EngineCore::Create(config, *std::move(hasher), nullptr, nullptr);
  REQUIRE_FALSE(engine.has_value());
  CHECK(engine.error().code == ErrorCode::kInvalidArgument);
}

TEST_CASE("the engine computes a request, publishes its blocks and wakes the publisher once per batch") {
  CountingPublisher publisher;
  auto engine = MakeEngine(SmallConfig(), &publisher);
  REQUIRE(engine->Add(MakeRequest(1, 9, 5)).has_value());

  EngineCore::StepResult step = engine->Step();
  CHECK(step.num_scheduled_tokens == 9);
  CHECK(step.published);  // two full blocks
  CHECK(engine->batches_published() == 1);
  CHECK(publisher.wakes == 1);
  step = engine->Step();
  CHECK(step.num_scheduled_tokens == 1);
  CHECK_FALSE(step.published);
  CHECK(publisher.wakes == 1);
  std::vector<scheduler::FinishedRequest> finished;
  while (engine->has_work()) {
    for (auto& request : engine->Step().finished) finished.push_back(std::move(request));
  }
  REQUIRE(finished.size() == 1);
  CHECK(finished[0].id == 1);
  CHECK(finished[0].output.size() == 5);
  CHECK(publisher.batches.size() == 2);  // 13 of the 14 tokens are computed: a third block
  CHECK(publisher.wakes == 2);
  CHECK(engine->batches_published() == 2);
}

TEST_CASE("a step without work publishes nothing") {
  CountingPublisher publisher;
  auto engine = MakeEngine(SmallConfig(), &publisher);
  const EngineCore::StepResult step = engine->Step();
  CHECK(step.num_scheduled_tokens == 0);
  CHECK_FALSE(step.published);
  CHECK(publisher.wakes == 0);
}

TEST_CASE("a reset outside a step is published and the publisher woken") {
  CountingPublisher publisher;
  auto engine = MakeEngine(SmallConfig(), &publisher);
  CHECK(engine->ResetPrefixCache(scheduler::ResetMode::kFailWhileRunning));
  CHECK(publisher.batches.size() == 1);
  CHECK(publisher.wakes == 1);
  REQUIRE(engine->Add(MakeRequest(1, 9, 5)).has_value());
  engine->Step();
  CHECK(publisher.wakes == 2);
  CHECK_FALSE(engine->ResetPrefixCache(scheduler::ResetMode::kFailWhileRunning));
  CHECK(publisher.wakes == 2);
}

TEST_CASE("time is charged to schedule, run, update and event calls") {
  class SlowRunner final : public scheduler::ModelRunner {
   public:
    SlowRunner(std::unique_ptr<SimulatedRunner> runner, ManualClock* clock)
        : runner_(std::move(runner)), clock_(clock) {}
    scheduler::RunnerOutput Run(const scheduler::SchedulerOutput& step) override {
      clock_->Advance(nanoseconds(5000));
      return runner_->Run(step);
    }

   private:
    const std::unique_ptr<SimulatedRunner> runner_;
    ManualClock* const clock_;
  };
  ManualClock clock;
  CountingPublisher publisher(&clock);
  EngineConfig config = SmallConfig();
  config.clock = &clock;
  auto runner = std::make_unique<SlowRunner>(RunnerFor(config), &clock);
  auto engine = MakeEngine(config, &publisher, std::move(runner));
  REQUIRE(engine->Add(MakeRequest(1, 8, 1)).has_value());
  engine->Step();
  CHECK(engine->times().schedule == nanoseconds(0));
  CHECK(engine->times().run == nanoseconds(5000));
  CHECK(engine->times().update == nanoseconds(0));
  CHECK(engine->times().event_calls == nanoseconds(107));
}

TEST_CASE("the time model's time passes through the sleeper, less what the runner took") {
  ManualClock clock;
  EngineConfig config = SmallConfig();
  config.clock = &clock;
  config.time_model.prefill_overhead = nanoseconds(1000);
  config.time_model.prefill_per_token = nanoseconds(10);
  config.time_model.decode_per_request = nanoseconds(3);
  std::vector<nanoseconds> sleeps;
  config.sleep = [&sleeps](nanoseconds time) { sleeps.push_back(time); };
  CountingPublisher publisher;
  auto engine = MakeEngine(config, &publisher);
  REQUIRE(engine->Add(MakeRequest(1, 8, 2)).has_value());
  engine->Step();
  engine->Step();
  CHECK(sleeps == std::vector<nanoseconds>{nanoseconds(1080), nanoseconds(3)});
}

TEST_CASE("a time model without a sleeper is refused") {
  EngineConfig config = SmallConfig();
  config.time_model.decode_per_request = nanoseconds(1);
  auto hasher = BlockHasher::Create(HashAlgorithm::kSha256Cbor, kDefaultHashSeed);
  REQUIRE(hasher.has_value());
  CountingPublisher publisher;
  CHECK_FALSE(EngineCore::Create(config, std::move(*hasher), RunnerFor(config), &publisher).has_value());
}

TEST_CASE("an engine whose events are off needs no publisher") {
  EngineConfig config = SmallConfig();
  config.scheduler.enable_kv_cache_events = false;
  auto engine = MakeEngine(config, nullptr);
  REQUIRE(engine->Add(MakeRequest(1, 9, 3)).has_value());
  while (engine->has_work()) engine->Step();
  CHECK(engine->scheduler().stats().requests_finished == 1);
  CHECK(engine->batches_published() == 0);
  engine->Shutdown(milliseconds(10));
}

TEST_CASE("D11: what was drawn for a request that a failed load has undone is not in the step's result") {
  EngineConfig config = SmallConfig(17);
  config.scheduler.host_blocks = 16;
  SimulatedRunner::Options copying;
  copying.failed_load_percent = 100;
  CollectingEventPublisher publisher;
  const auto engine = MakeEngine(config, &publisher, RunnerFor(config, copying));
  REQUIRE(engine->Add(MakeRequest(1, 9, 1)).has_value());
  while (engine->has_work()) engine->Step();
  REQUIRE(engine->Add(MakeRequest(2, 2, 1, 500)).has_value());
  while (engine->has_work()) engine->Step();
  REQUIRE(engine->scheduler().stats().host.stored == 2);
  std::vector<BlockHash> hashes;
  engine->scheduler().pool().Walk([&hashes](const ResidentBlock& block) { hashes.push_back(block.hash); });
  for (const BlockHash& hash : hashes) engine->EvictHash(hash);

  REQUIRE(engine->Add(MakeRequest(3, 9, 1)).has_value());
  EngineCore::StepResult step = engine->Step();
  REQUIRE(engine->scheduler().stats().failed_loads == 1);
  CHECK(step.sampled.empty());
  CHECK(step.finished.empty());
  step = engine->Step();
  REQUIRE(step.sampled.size() == 1);
  CHECK(step.finished.size() == 1);
}

TEST_CASE("shutdown closes the publisher once, within the deadline given") {
  CountingPublisher publisher;
  auto engine = MakeEngine(SmallConfig(), &publisher);
  engine->Shutdown(milliseconds(123));
  engine->Shutdown(milliseconds(456));
  CHECK(publisher.deadlines == std::vector<milliseconds>{milliseconds(123)});
}

}  // namespace
}  // namespace kvwire::engine
