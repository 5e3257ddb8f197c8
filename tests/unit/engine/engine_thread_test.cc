// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_thread.h"

#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include "tests/unit/engine/engine_fixture.h"

namespace kvwire::engine {
namespace {

using scheduler::RequestId;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kWatchdog{5};

class RecordingListener final : public EngineListener {
 public:
  void OnStep(EngineCore::StepResult&& step) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (scheduler::FinishedRequest& request : step.finished) finished_.push_back(std::move(request));
    for (const scheduler::SampledToken& token : step.sampled) sampled_[token.id].push_back(token.token);
    changed_.notify_all();
  }
  void OnRefused(RequestId id, const Error& error) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    refused_.emplace_back(id, error.message);
    changed_.notify_all();
  }

  bool WaitForFinished(std::size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kWatchdog, [this, count] { return finished_.size() >= count; });
  }
  bool WaitForRefused(std::size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kWatchdog, [this, count] { return refused_.size() >= count; });
  }
  std::vector<std::pair<RequestId, std::string>> refused() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return refused_;
  }
  std::map<RequestId, std::vector<TokenId>> sampled() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return sampled_;
  }
  std::vector<scheduler::FinishedRequest> finished() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return finished_;
  }
  std::size_t num_finished() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return finished_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<scheduler::FinishedRequest> finished_;
  std::map<RequestId, std::vector<TokenId>> sampled_;
  std::vector<std::pair<RequestId, std::string>> refused_;
};

// A publisher that wants something of the state, as its own thread would say.
class WantingPublisher final : public EventPublisher {
 public:
  PublishResult Publish(KVEventBatch&& batch) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool lost = std::exchange(lose_next_, false);
    if (!lost) batches_.push_back(std::move(batch));
    has_room_ = has_room_ && !lost;
    changed_.notify_all();
    return lost ? PublishResult::kDroppedQueueFull : PublishResult::kAccepted;
  }
  PublishResult PublishChunk(StateChunk&& chunk) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    num_walks_ += chunk.last ? 1 : 0;
    changed_.notify_all();
    return PublishResult::kAccepted;
  }
  bool HasRoom() const noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++num_looks_;
    return has_room_;
  }
  StateWants state_wants() const noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return wants_;
  }
  bool resyncs_after_loss() const noexcept override { return true; }
  void Wake() noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++num_wakes_;
    changed_.notify_all();
  }
  using EventPublisher::Close;
  void Close(std::chrono::milliseconds /*deadline*/) noexcept override {}
  PublisherStats stats() const noexcept override { return {}; }

  void Want(const StateWants& wants) {
    const std::lock_guard<std::mutex> lock(mutex_);
    wants_ = wants;
  }
  // The next batch finds the queue full, and so it stays until MakeRoom().
  void LoseNext() {
    const std::lock_guard<std::mutex> lock(mutex_);
    lose_next_ = true;
  }
  void MakeRoom() {
    const std::lock_guard<std::mutex> lock(mutex_);
    has_room_ = true;
  }
  bool WaitForWalks(std::uint64_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kWatchdog, [this, count] { return num_walks_ >= count && num_wakes_ >= count; });
  }
  bool WaitForClear() {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kWatchdog, [this] {
      return !batches_.empty() && std::holds_alternative<AllBlocksCleared>(batches_.back().at(0));
    });
  }
  std::size_t num_batches() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return batches_.size();
  }
  std::uint64_t num_looks() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return num_looks_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<KVEventBatch> batches_;
  StateWants wants_;
  bool lose_next_ = false;
  bool has_room_ = true;
  std::uint64_t num_walks_ = 0;
  std::uint64_t num_wakes_ = 0;
  mutable std::uint64_t num_looks_ = 0;
};

// Holds the step thread inside a step until it is opened.
class Gate {
 public:
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    entered_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, kWatchdog, [this] { return open_; });
  }
  bool WaitUntilEntered() {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kWatchdog, [this] { return entered_; });
  }
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool entered_ = false;
  bool open_ = false;
};

class GatedRunner final : public scheduler::ModelRunner {
 public:
  GatedRunner(std::unique_ptr<SimulatedRunner> runner, Gate* gate) : runner_(std::move(runner)), gate_(gate) {}
  scheduler::RunnerOutput Run(const scheduler::SchedulerOutput& step) override {
    gate_->Pass();
    return runner_->Run(step);
  }

 private:
  const std::unique_ptr<SimulatedRunner> runner_;
  Gate* const gate_;
};

TEST_CASE("requests from several threads are all finished, and an idle engine takes new ones") {
  CollectingEventPublisher publisher;
  RecordingListener listener;
  EngineThread engine(MakeEngine(SmallConfig(), &publisher), {1024, 1024, &listener});
  std::vector<std::thread> senders;
  for (RequestId sender = 0; sender < 4; ++sender) {
    senders.emplace_back([&engine, sender] {
      for (RequestId i = 0; i < 10; ++i) {
        (void)engine.Add(MakeRequest(sender * 100 + i, 12, 6, static_cast<TokenId>(1 + 1000 * i)));
      }
    });
  }
  for (std::thread& sender : senders) sender.join();
  CHECK(listener.WaitForFinished(40));
  CHECK(engine.Add(MakeRequest(999, 5, 1)) == SubmitResult::kAccepted);
  CHECK(listener.WaitForFinished(41));
  engine.Stop(milliseconds(2000));
  CHECK(publisher.closed());
  CHECK(engine.core().scheduler().stats().requests_finished == 41);
  CHECK(listener.refused().empty());
}

TEST_CASE("a request that can never fit is refused with both numbers") {
  CollectingEventPublisher publisher;
  RecordingListener listener;
  EngineThread engine(MakeEngine(SmallConfig(8), &publisher), {1024, 1024, &listener});
  REQUIRE(engine.Add(MakeRequest(1, 100, 20)) == SubmitResult::kAccepted);
  REQUIRE(listener.WaitForRefused(1));
  const std::string message = listener.refused()[0].second;
  CHECK(message.find("30") != std::string::npos);  // blocks it needs
  CHECK(message.find("7") != std::string::npos);   // blocks there are
}

TEST_CASE("the inbox is bounded, and a finished, refused or aborted request makes room") {
  CollectingEventPublisher publisher;
  RecordingListener listener;
  Gate gate;
  const EngineConfig config = SmallConfig();
  EngineThread engine(MakeEngine(config, &publisher, std::make_unique<GatedRunner>(RunnerFor(config), &gate)),
                      {2, 2, &listener});
  CHECK(engine.Add(MakeRequest(1, 5, 1)) == SubmitResult::kAccepted);
  REQUIRE(gate.WaitUntilEntered());
  CHECK(engine.Add(MakeRequest(2, 5, 200)) == SubmitResult::kAccepted);
  CHECK(engine.Add(MakeRequest(3, 5, 1)) == SubmitResult::kFull);
  CHECK(engine.Call([](EngineCore*) {}) == SubmitResult::kAccepted);
  CHECK(engine.Call([](EngineCore*) {}) == SubmitResult::kAccepted);
  CHECK(engine.Call([](EngineCore*) {}) == SubmitResult::kFull);
  // An abort that got lost would leave its request behind.
  CHECK(engine.Abort(2) == SubmitResult::kAccepted);
  CHECK(engine.Abort(77) == SubmitResult::kAccepted);
  gate.Open();
  REQUIRE(listener.WaitForFinished(1));
  // The aborts were in the inbox before the step that follows.
  std::promise<bool> reset;
  SubmitResult submitted = SubmitResult::kFull;
  for (int i = 0; i < 1000 && submitted == SubmitResult::kFull; ++i) {
    submitted = engine.ResetPrefixCache(scheduler::ResetMode::kFailWhileRunning,
                                        [&reset](bool done) { reset.set_value(done); });
    std::this_thread::yield();
  }
  REQUIRE(submitted == SubmitResult::kAccepted);
  std::future<bool> done = reset.get_future();
  REQUIRE(done.wait_for(kWatchdog) == std::future_status::ready);
  CHECK(done.get());
  CHECK(engine.Add(MakeRequest(4, 5, 1)) == SubmitResult::kAccepted);
  CHECK(engine.Add(MakeRequest(5, 5, 1)) == SubmitResult::kAccepted);
  CHECK(listener.WaitForFinished(3));
}

TEST_CASE("the listener gets every token as it is drawn") {
  CollectingEventPublisher publisher;
  RecordingListener listener;
  EngineThread engine(MakeEngine(SmallConfig(), &publisher), {16, 16, &listener});
  CHECK(engine.Add(MakeRequest(1, 5, 7)) == SubmitResult::kAccepted);
  CHECK(engine.Add(MakeRequest(2, 9, 3)) == SubmitResult::kAccepted);
  REQUIRE(listener.WaitForFinished(2));
  const auto sampled = listener.sampled();
  for (const scheduler::FinishedRequest& request : listener.finished()) {
    CHECK(sampled.at(request.id) == request.output);
  }
}

TEST_CASE("a call runs between steps with the core, and with nothing when the engine has stopped") {
  CollectingEventPublisher publisher;
  RecordingListener listener;
  EngineThread engine(MakeEngine(SmallConfig(), &publisher), {16, 16, &listener});
  std::promise<bool> in_flight;
  REQUIRE(engine.Call([&](EngineCore* core) { in_flight.set_value(core->scheduler().step_in_flight()); }) ==
          SubmitResult::kAccepted);
  std::future<bool> result = in_flight.get_future();
  REQUIRE(result.wait_for(kWatchdog) == std::future_status::ready);
  CHECK_FALSE(result.get());
  engine.Stop(milliseconds(2000));
  CHECK(engine.Call([](EngineCore*) {}) == SubmitResult::kStopped);
}

TEST_CASE("asleep, requests wait; the figures say so") {
  CollectingEventPublisher publisher;
  RecordingListener listener;
  EngineThread engine(MakeEngine(SmallConfig(), &publisher), {16, 16, &listener});
  const auto set_asleep = [&engine](bool asleep) {
    std::promise<void> done;
    REQUIRE(engine.Call([&](EngineCore* core) {
      core->set_asleep(asleep);
      done.set_value();
    }) == SubmitResult::kAccepted);
    REQUIRE(done.get_future().wait_for(kWatchdog) == std::future_status::ready);
  };
  set_asleep(true);
  CHECK(engine.Add(MakeRequest(1, 5, 3)) == SubmitResult::kAccepted);
  set_asleep(true);  // behind the request
  CHECK(listener.num_finished() == 0);
  set_asleep(false);
  REQUIRE(listener.WaitForFinished(1));
  const EngineThread::Figures figures = engine.figures();
  CHECK(figures.stats.requests_finished == 1);
  CHECK(figures.running == 0);
  CHECK(figures.cache_usage == 0);
  CHECK_FALSE(figures.asleep);
}

TEST_CASE("stopping ends the step, refuses what is unfinished and closes the publisher") {
  CollectingEventPublisher publisher;
  RecordingListener listener;
  Gate gate;
  const EngineConfig config = SmallConfig();
  EngineThread engine(MakeEngine(config, &publisher, std::make_unique<GatedRunner>(RunnerFor(config), &gate)),
                      {16, 16, &listener});
  CHECK(engine.Add(MakeRequest(1, 5, 100)) == SubmitResult::kAccepted);
  REQUIRE(gate.WaitUntilEntered());
  CHECK(engine.Add(MakeRequest(2, 5, 100)) == SubmitResult::kAccepted);
  std::optional<bool> reset;
  CHECK(engine.ResetPrefixCache(scheduler::ResetMode::kPreemptRunning, [&reset](bool done) { reset = done; }) ==
        SubmitResult::kAccepted);
  std::thread stopper([&engine] { engine.Stop(milliseconds(2000)); });
  // Stopping has begun when commands are no longer taken; only then may the step go on.
  while (engine.Abort(1000) != SubmitResult::kStopped) std::this_thread::yield();
  gate.Open();
  stopper.join();
  CHECK(publisher.closed());
  CHECK(reset == std::optional<bool>(false));
  const auto refused = listener.refused();
  REQUIRE(refused.size() == 2);
  CHECK(refused[0].first == 1);
  CHECK(refused[1].first == 2);
  CHECK(refused[0].second == "the engine was stopped");
  CHECK_FALSE(engine.core().has_work());
  CHECK(engine.Add(MakeRequest(3, 5, 1)) == SubmitResult::kStopped);
  engine.Stop(milliseconds(2000));
}

TEST_CASE("an idle engine stops at once, also by its destructor") {
  CollectingEventPublisher publisher;
  { const EngineThread engine(MakeEngine(SmallConfig(), &publisher), {16, 16, nullptr}); }
  CHECK(publisher.closed());
}

TEST_CASE("C9: an engine without work hands out a snapshot when it is nudged, and wakes the publisher") {
  WantingPublisher publisher;
  RecordingListener listener;
  EngineThread engine(MakeEngine(SmallConfig(), &publisher), {8, 8, &listener});
  REQUIRE(engine.Add(MakeRequest(1, 12, 2)) == SubmitResult::kAccepted);
  REQUIRE(listener.WaitForFinished(1));
  for (std::uint64_t walk = 1; walk <= 3; ++walk) {
    publisher.Want({0, walk, 100});
    engine.Nudge();
    CHECK(publisher.WaitForWalks(walk));
  }
  engine.Stop(milliseconds(2000));
  CHECK(engine.core().scheduler().stats().stream.walks == 3);
  CHECK(engine.core().scheduler().stats().stream.walked == 9);
}

TEST_CASE("A12: an engine without work heals a loss by itself once the queue has room, and does not spin until then") {
  WantingPublisher publisher;
  RecordingListener listener;
  EngineThread engine(MakeEngine(SmallConfig(), &publisher), {8, 8, &listener});
  publisher.LoseNext();
  REQUIRE(engine.Add(MakeRequest(1, 12, 1)) == SubmitResult::kAccepted);
  REQUIRE(listener.WaitForFinished(1));
  CHECK(publisher.num_batches() == 0);
  // Commands go on meanwhile. A look per millisecond is none that spins: thousands would be.
  const std::uint64_t looks = publisher.num_looks();
  std::promise<void> done;
  REQUIRE(engine.ResetPrefixCache(scheduler::ResetMode::kFailWhileRunning, [&done](bool) { done.set_value(); }) ==
          SubmitResult::kAccepted);
  CHECK(done.get_future().wait_for(kWatchdog) == std::future_status::ready);
  CHECK(publisher.num_looks() - looks < 100000);
  publisher.MakeRoom();
  CHECK(publisher.WaitForClear());
  engine.Stop(milliseconds(2000));
  const StatePublisherStats stats = engine.core().scheduler().stats().stream;
  CHECK(stats.losses == 1);
  CHECK(stats.resyncs == 1);
  CHECK(stats.suppressed > 0);
}

}  // namespace
}  // namespace kvwire::engine
