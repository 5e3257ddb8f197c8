// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "engine/serve/instance.h"
#include "tests/integration/serve/instance_bench.h"
#include "tests/integration/serve/instance_faults_bench.h"
#include "tests/support/stream_support.h"
#include "tests/support/watchdog.h"

namespace kvwire::test {
namespace {

using engine::Admission;
using engine::EngineCore;
using engine::FaultKind;
using engine::InstanceConfig;
using engine::OutputChunk;
using engine::SubmitResult;

TEST_CASE("a restart with the number past is told by the replay, and the new stream by its late beginning") {
  InstanceConfig config = SmallEngine();
  config.time_model.decode_per_request = std::chrono::milliseconds(1);
  FaultsBench bench(std::move(config));
  const auto consumer = bench.Join();
  bench.Batches(4);
  REQUIRE(consumer->UntilNumber(3));
  const std::vector<EventSourceInfo> before = bench.instance->sources();
  const Admission unfinished = bench.Submit(Request(10, 300));
  CHECK_FALSE(unfinished.output->Take(kLong).empty());
  REQUIRE(bench.instance->Restart(0).has_value());
  CHECK(Await(unfinished).refused);
  CHECK(bench.instance->num_requests() == 0);
  CHECK(bench.instance->sources() == before);
  CHECK(bench.Count(FaultKind::kRestart) == 1);
  REQUIRE(consumer->Until([&] { return consumer->notes.restarts == 1; }));
  CHECK(consumer->notes.clears == 0);
  CHECK(consumer->notes.checker.held().size() == 0);
  CHECK(bench.instance->publisher_stats(0).submitted == 0);
  // The first of the new numbers is above all of the old ones.
  std::uint64_t first = 0;
  REQUIRE(bench.instance->Call(0, [&](EngineCore& core) { first = core.next_batch(); }));
  CHECK(first > 4);
  REQUIRE(Eventually([&] { return bench.instance->publisher_stats(0).subscriptions == 1; }));
  const OutputChunk again = Await(bench.Submit(Request(8, 1, 1000)));
  REQUIRE(again.finished);
  CHECK(again.finished->num_cached_tokens == 0);
  REQUIRE(consumer->UntilNumber(first));
  CHECK(consumer->notes.numbers == Range(first, first));
  REQUIRE(consumer->notes.gaps.size() == 1);
  CHECK(consumer->notes.gaps[0].joined_late);
  CHECK(consumer->notes.violations.empty());
}

TEST_CASE("a restarted stream begins with the number that was asked for") {
  FaultsBench bench;
  const auto consumer = bench.Join();
  bench.Batches(3);
  REQUIRE(consumer->UntilNumber(2));
  REQUIRE(bench.instance->Restart(0, {0}).has_value());
  REQUIRE(consumer->Until([&] { return consumer->notes.restarts == 1; }));
  bench.Batches(2);
  REQUIRE(consumer->UntilNumber(1));
  CHECK(consumer->notes.numbers == Range(0, 1));
  CHECK(consumer->Confirmed());
  CHECK(consumer->notes.checker.Verdict() == CheckVerdict::kClean);
  const Status refused = bench.instance->Restart(0, {~SequenceNumber{0}});
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message == "first_number: 18446744073709551615; allowed: 0 to 9223372036854775807");
}

TEST_CASE("a rank that sleeps sleeps on when it is restarted: requests wait until it is woken") {
  FaultsBench bench;
  bench.Batches(1);
  REQUIRE(bench.instance->Sleep());
  for (int life = 0; life < 2; ++life) {
    REQUIRE(bench.instance->Restart(0).has_value());
    CHECK(bench.instance->asleep());
    CHECK(bench.instance->figures(0).asleep);
  }
  const Admission admission = bench.Submit(Request(8, 1));
  std::size_t waiting = 0;
  REQUIRE(bench.instance->Call(0, [&](EngineCore& core) {
    CHECK_FALSE(core.has_work());
    waiting = core.scheduler().num_waiting();
  }));
  CHECK(waiting == 1);
  REQUIRE(bench.instance->WakeUp());
  CHECK_FALSE(bench.instance->asleep());
  CHECK(Await(admission).finished);
  // One that is awake comes back awake.
  REQUIRE(bench.instance->Restart(0).has_value());
  CHECK_FALSE(bench.instance->asleep());
  bench.Batches(1);
}

TEST_CASE("a rank that falls asleep while a script restarts it is asleep afterwards") {
  FaultsBench bench;
  for (std::uint64_t round = 1; round <= 10; ++round) {
    CAPTURE(round);
    bench.Script(R"({"faults": [{"kind": "restart", "every": 1, "count": 1}]})");
    bench.Submit(Request(8, 1, static_cast<TokenId>(round * 100)));
    // Before, while or after it is replaced; while, it may say no.
    const bool slept = bench.instance->Sleep();
    if (!slept) CHECK(Eventually([&] { return bench.instance->Sleep(); }));
    // The batch of the request may not have come before the sleep.
    if (bench.Count(FaultKind::kRestart) < round) {
      Eventually([&] { return bench.Count(FaultKind::kRestart) == round || bench.instance->figures(0).waiting == 1; });
    }
    CHECK(bench.instance->asleep());
    CHECK(Eventually([&] { return bench.instance->WakeUp(); }));
    CHECK(Eventually([&] { return bench.Count(FaultKind::kRestart) == round; }));
    CHECK(Eventually([&] { return bench.instance->WakeUp(); }));
  }
}

TEST_CASE("everything that was published before a restart has left") {
  FaultsBench bench;
  const auto context = ZmqContext::Create();
  const auto subscriber = ConnectTo(context, LinkKind::kSub, bench.instance->sources()[0].endpoint);
  REQUIRE(Eventually([&] { return bench.instance->publisher_stats(0).subscriptions == 1; }));
  for (int life = 0; life < 3; ++life) {
    CAPTURE(life);
    std::uint64_t first = 0;
    REQUIRE(bench.instance->Call(0, [&](EngineCore& core) { first = core.next_batch(); }));
    // More than the publisher sends meanwhile.
    REQUIRE(bench.instance->Call(0, [](EngineCore& core) {
      for (int i = 0; i < 3000; ++i) core.ResetPrefixCache(scheduler::ResetMode::kFailWhileRunning);
    }));
    REQUIRE(bench.instance->Restart(0).has_value());
    CHECK(Numbers(ReadLive(subscriber.get(), 3000)) == Range(first, first + 2999));
    // A socket that connects again subscribes when its owner next uses it.
    REQUIRE(
        Eventually([&] { return !subscriber->TryReceive() && bench.instance->publisher_stats(0).subscriptions == 1; }));
  }
}

TEST_CASE("the faults of the engine come after the batch with their number") {
  FaultsBench bench;
  bench.Batches(1);
  const auto consumer = bench.Join();
  REQUIRE(consumer->notes.stored_hashes.size() == 2);
  const std::string block = BlockHash::FromUint64(consumer->notes.stored_hashes[1]).ToHex();
  // The removal is batch 3 itself, and the clear is due with it.
  bench.Script("{\"faults\":[{\"kind\":\"evict\",\"at\":2,\"block\":\"" + block +
               "\"},{\"kind\":\"reset\",\"at\":3},{\"kind\":\"reset\",\"every\":5}]}");
  bench.Batches(2);
  REQUIRE(consumer->UntilNumber(4));
  CHECK(consumer->notes.removed_hashes == std::vector<std::uint64_t>{consumer->notes.stored_hashes[1]});
  CHECK(consumer->notes.clears == 1);
  bench.Batches(1);  // 5, and the clear that it causes, which causes none
  REQUIRE(consumer->UntilNumber(6));
  CHECK(consumer->notes.clears == 2);
  bench.Batches(1);
  REQUIRE(consumer->UntilNumber(7));
  CHECK(consumer->notes.numbers == Range(0, 7));
  CHECK(bench.Count(FaultKind::kEvict) == 1);
  CHECK(bench.Count(FaultKind::kReset) == 2);
  CHECK(consumer->Confirmed());
  CHECK(consumer->notes.checker.Verdict() == CheckVerdict::kClean);
}

TEST_CASE("a scripted preemption meets the newest request that runs") {
  InstanceConfig config = SmallEngine();
  config.time_model.decode_per_request = std::chrono::milliseconds(1);
  FaultsBench bench(std::move(config));
  bench.Script(R"({"faults":[{"kind":"preempt","at":1}]})");
  const OutputChunk done = Await(bench.Submit(Request(10, 30)));
  REQUIRE(done.finished);
  CHECK(done.finished->num_preemptions == 1);
  CHECK(bench.Count(FaultKind::kPreempt) == 1);
}

TEST_CASE("a scripted restart cuts the stream right after its batch, and the script goes on in the next life") {
  InstanceConfig config = SmallEngine();
  config.time_model.decode_per_request = std::chrono::microseconds(100);
  FaultsBench bench(std::move(config));
  bench.Batches(1);
  const auto consumer = bench.Join();
  bench.Script(R"({"faults":[{"kind":"restart","at":3,"first_number":10},{"kind":"restart","at":12},)"
               R"({"kind":"overflow","at":11}]})");
  const Admission unfinished = bench.Submit(Request(10, 300));
  CHECK(Await(unfinished).refused);
  REQUIRE(Eventually([&] { return bench.Count(FaultKind::kRestart) == 1; }));
  REQUIRE(consumer->Until([&] { return consumer->notes.restarts == 1; }));
  const auto context = ZmqContext::Create();
  const auto subscriber = ConnectTo(context, LinkKind::kSub, bench.instance->sources()[0].endpoint);
  REQUIRE(Eventually([&] { return bench.instance->publisher_stats(0).subscriptions == 2; }));
  CHECK(Await(bench.Submit(Request(10, 300))).refused);
  CHECK(Numbers(ReadLive(subscriber.get(), 2)) == std::vector<SequenceNumber>{10, 12});
  REQUIRE(Eventually([&] { return bench.Count(FaultKind::kRestart) == 2; }));
  // Numbers that were reached before end nobody twice.
  REQUIRE(bench.instance->Restart(0, {0}).has_value());
  CHECK(Await(bench.Submit(Request(10, 100))).finished);
  CHECK(bench.Count(FaultKind::kRestart) == 3);
}

TEST_CASE("while one rank restarts again and again, the other serves, and nobody waits for ever") {
  FaultsBench bench(SmallEngine(2));
  std::atomic<bool> over{false};
  std::atomic<int> lost{0};
  std::atomic<int> served{0};
  std::vector<std::thread> threads;
  for (TokenId t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (TokenId i = 0; !over.load(); ++i) {
        // Half of them to rank 1, the others to whom it is.
        const bool steady = t % 2 == 0;
        const auto admission = bench.instance->Submit(Request(8, 3, t * 10'000 + i % 1000),
                                                      steady ? std::optional<std::uint32_t>(1) : std::nullopt);
        if (!admission) {
          if (steady || admission.error().reason != SubmitResult::kStopped) lost.fetch_add(1);
          continue;
        }
        const OutputChunk done = Await(*admission);
        if (!done.last() || (steady && !done.finished)) lost.fetch_add(1);
        if (done.finished) served.fetch_add(1);
      }
    });
  }
  threads.emplace_back([&] {
    while (!over.load()) {
      static_cast<void>(bench.instance->figures(0));
      static_cast<void>(bench.instance->publisher_stats(0));
      static_cast<void>(bench.instance->sources());
      static_cast<void>(bench.instance->num_requests());
      static_cast<void>(bench.instance->Call(0, [](EngineCore&) {}));
      static_cast<void>(bench.instance->Evict(0, "0011223344556677"));
    }
  });
  threads.emplace_back([&] {
    while (!over.load()) bench.Script(R"({"seed":3,"faults":[{"kind":"drop","probability":0.1}]})");
  });
  const Watchdog watchdog("restarting", kLong);
  for (int i = 0; i < 5; ++i) CHECK(bench.instance->Restart(0).has_value());
  over.store(true);
  for (std::thread& thread : threads) thread.join();
  CHECK(lost.load() == 0);
  CHECK(served.load() > 0);
  CHECK(bench.Count(FaultKind::kRestart) == 5);
  CHECK(bench.Count(FaultKind::kRestart, 1) == 0);
  bench.Batches(1, 0);
}

TEST_CASE("an instance without events can be restarted, too") {
  InstanceConfig config = SmallEngine();
  config.events.enable_kv_cache_events = false;
  FaultsBench bench(std::move(config));
  REQUIRE(bench.instance->Restart(0).has_value());
  CHECK(Await(bench.Submit(Request(8, 2))).finished);
}

TEST_CASE("after the end there is nothing to break or to restart") {
  FaultsBench bench;
  bench.Script(R"({"faults":[{"kind":"restart","at":0}]})");
  bench.instance->Shutdown(std::chrono::milliseconds(1000));
  CHECK(bench.instance->Restart(0).error().code == ErrorCode::kUnavailable);
  CHECK(bench.instance->Evict(0, "0011223344556677").error().code == ErrorCode::kUnavailable);
  CHECK(bench.instance->Preempt(0).error().code == ErrorCode::kUnavailable);
  CHECK(bench.instance->Reset(0).error().message ==
        "data-parallel rank 0 is stopped, is being replaced, or has too many commands");
}

TEST_CASE("an address that somebody else took meanwhile leaves the rank stopped until it is free") {
  FaultsBench bench;
  const EventSourceInfo source = bench.instance->sources()[0];
  const auto endpoint = Endpoint::Parse(source.endpoint, "endpoint");
  REQUIRE(endpoint.has_value());
  std::atomic<bool> over{false};
  std::unique_ptr<ZmqLink> thief;
  std::thread stealing([&, context = ZmqContext::Create()] {
    while (!over.load() && !thief) {
      if (auto bound = ZmqLink::Bind(context, LinkKind::kPub, *endpoint, {})) thief = *std::move(bound);
    }
  });
  // The address is free for a moment each time.
  Status restarted;
  for (int i = 0; i < 100 && restarted; ++i) restarted = bench.instance->Restart(0);
  over.store(true);
  stealing.join();
  REQUIRE_FALSE(restarted.has_value());
  CHECK(restarted.error().code == ErrorCode::kAddressInUse);
  CHECK(restarted.error().message.find(source.endpoint) != std::string::npos);
  const auto refused = bench.instance->Submit(Request(8, 1), std::nullopt);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().reason == SubmitResult::kStopped);
  thief.reset();
  REQUIRE(bench.instance->Restart(0).has_value());
  bench.Batches(1);
  CHECK(bench.instance->sources()[0] == source);
}

// Numbers and readability of all that a subscriber gets from the same requests.
std::vector<std::pair<SequenceNumber, bool>> Run(const std::string& script) {
  InstanceConfig config = SmallEngine();
  config.events.kvwire.overflow = Overflow::kDrop;  // when a resync comes depends on the queue
  FaultsBench bench(std::move(config));
  const auto context = ZmqContext::Create();
  const auto subscriber = ConnectTo(context, LinkKind::kSub, bench.instance->sources()[0].endpoint);
  REQUIRE(Eventually([&] { return bench.instance->publisher_stats(0).subscriptions == 1; }));
  bench.Script(script);
  bench.Batches(100);
  // The last message comes unharmed.
  bench.Script("{}");
  std::uint64_t last = 0;
  REQUIRE(bench.instance->Call(0, [&](EngineCore& core) { last = core.next_batch(); }));
  bench.Batches(1);
  std::vector<std::pair<SequenceNumber, bool>> seen;
  while (seen.empty() || seen.back().first != last) {
    const std::vector<Live> some = ReadLive(subscriber.get(), 1);
    REQUIRE_FALSE(some.empty());
    for (const Live& live : some) seen.emplace_back(live.number, DecodeBatch(live.payload).has_value());
  }
  return seen;
}

TEST_CASE("the same requests under the same script break at the same places") {
  const auto script = [](int seed) {
    return "{\"seed\":" + std::to_string(seed) +
           R"(,"faults":[{"kind":"drop","probability":0.1},{"kind":"duplicate","probability":0.1},)"
           R"({"kind":"undecodable","probability":0.1},{"kind":"overflow","probability":0.1},)"
           R"({"kind":"delay","probability":0.05,"ms":3},{"kind":"reset","probability":0.05}]})";
  };
  const auto first = Run(script(7));
  CHECK(first.size() > 80);
  CHECK(first == Run(script(7)));
  CHECK(first != Run(script(8)));
}

}  // namespace
}  // namespace kvwire::test
