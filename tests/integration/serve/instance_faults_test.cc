// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "engine/serve/instance.h"
#include "tests/integration/serve/instance_bench.h"
#include "tests/integration/serve/instance_faults_bench.h"
#include "tests/support/stream_support.h"

namespace kvwire::test {
namespace {

using engine::Admission;
using engine::EngineCore;
using engine::FaultKind;
using engine::FaultScript;
using engine::InstanceConfig;
using engine::OutputChunk;

TEST_CASE("a dropped message is healed by the replay") {
  FaultsBench bench;
  bench.Batches(1);
  const auto consumer = bench.Join();
  bench.Script(R"({"faults":[{"kind":"drop","at":3}]})");
  bench.Batches(5);
  REQUIRE(consumer->UntilNumber(5));
  CHECK(consumer->notes.numbers == Range(0, 5));
  CHECK(consumer->stats().healed == 1);
  CHECK(consumer->stats().gaps == 0);
  CHECK(bench.Count(FaultKind::kDrop) == 1);
  CHECK(consumer->Confirmed());
  CHECK(consumer->notes.checker.Verdict() == CheckVerdict::kClean);
}

TEST_CASE("an overflow is a gap that no replay closes") {
  InstanceConfig config = SmallEngine();
  config.events.kvwire.overflow = Overflow::kDrop;
  FaultsBench bench(std::move(config));
  bench.Batches(1);
  const auto consumer = bench.Join();
  bench.Script(R"({"faults":[{"kind":"overflow","at":3}]})");
  bench.Batches(5);
  REQUIRE(consumer->UntilNumber(5));
  CHECK(consumer->notes.numbers == std::vector<SequenceNumber>{0, 1, 2, 4, 5});
  REQUIRE(consumer->notes.gaps.size() == 1);
  CHECK(consumer->notes.gaps[0].from == 3);
  CHECK(consumer->notes.gaps[0].to == 3);
  CHECK(consumer->notes.gaps[0].reason == GapReason::kNotInReplay);
  CHECK(bench.Count(FaultKind::kOverflow) == 1);
  CHECK(bench.instance->publisher_stats(0).dropped_full == 1);
  CHECK(consumer->notes.checker.Verdict() == CheckVerdict::kIncomplete);
}

TEST_CASE("a duplicated message is counted by the consumer, and changes nothing") {
  FaultsBench bench;
  bench.Batches(1);
  const auto consumer = bench.Join();
  bench.Script(R"({"faults":[{"kind":"duplicate","every":2}]})");
  bench.Batches(5);
  REQUIRE(consumer->UntilNumber(5));
  CHECK(consumer->notes.numbers == Range(0, 5));
  CHECK(consumer->stats().duplicates == 2);
  CHECK(consumer->stats().recoveries == 0);
  CHECK(bench.Count(FaultKind::kDuplicate) == 2);
  CHECK(consumer->Confirmed());
  CHECK(consumer->notes.checker.Verdict() == CheckVerdict::kClean);
}

TEST_CASE("an undecodable message is a violation of readability, at its number") {
  FaultsBench bench;
  bench.Batches(1);
  const auto consumer = bench.Join();
  bench.Script(R"({"faults":[{"kind":"undecodable","at":3}]})");
  bench.Batches(5);
  REQUIRE(consumer->UntilNumber(5));
  CHECK(consumer->stats().undecodable == 1);
  REQUIRE(consumer->notes.violations.size() == 1);
  CHECK(consumer->notes.violations[0].rule == CheckRule::kReadable);
  CHECK(consumer->notes.violations[0].sequence == 3);
  // The replay has the true one.
  const auto context = ZmqContext::Create();
  const auto dealer = ConnectTo(context, LinkKind::kDealer, *bench.instance->sources()[0].replay_endpoint);
  REQUIRE(Ask(dealer.get(), 3) == SendResult::kSent);
  const std::vector<Replayed> replayed = ReadReplay(dealer.get());
  REQUIRE_FALSE(replayed.empty());
  CHECK(DecodeBatch(replayed[0].payload).has_value());
}

TEST_CASE("delayed messages arrive whole and in order, also at an engine that falls silent") {
  FaultsBench bench;
  bench.Batches(1);
  const auto consumer = bench.Join();
  bench.Script(R"({"faults":[{"kind":"delay","every":2,"ms":20}]})");
  bench.Batches(4);
  REQUIRE(consumer->UntilNumber(4));
  CHECK(consumer->notes.numbers == Range(0, 4));
  CHECK(bench.Count(FaultKind::kDelay) == 2);
  CHECK(consumer->Confirmed());
  CHECK(consumer->notes.checker.Verdict() == CheckVerdict::kClean);
}

TEST_CASE("what is delayed when the engine ends leaves before its sockets close") {
  FaultsBench bench;
  const auto context = ZmqContext::Create();
  const auto subscriber = ConnectTo(context, LinkKind::kSub, bench.instance->sources()[0].endpoint);
  REQUIRE(Eventually([&] { return bench.instance->publisher_stats(0).subscriptions == 1; }));
  bench.Script(R"({"faults":[{"kind":"delay","every":1,"ms":60000}]})");
  bench.Batches(3);
  bench.instance->Shutdown(std::chrono::milliseconds(2000));
  CHECK(Numbers(ReadLive(subscriber.get(), 3)) == Range(0, 2));
}

TEST_CASE("faults go to the rank that was asked for, or to all, and end with an empty script") {
  InstanceConfig config = SmallEngine(2);
  config.events.kvwire.overflow = Overflow::kDrop;
  FaultsBench bench(std::move(config));
  bench.Script(R"({"faults":[{"kind":"overflow","every":1}]})", 1);
  bench.Batches(2, 0);
  bench.Batches(2, 1);
  CHECK(bench.Count(FaultKind::kOverflow, 0) == 0);
  CHECK(bench.Count(FaultKind::kOverflow, 1) == 2);
  bench.Script(R"({"faults":[{"kind":"overflow","every":1}]})");
  bench.Batches(1, 0);
  bench.Batches(1, 1);
  CHECK(bench.Count(FaultKind::kOverflow, 0) == 1);
  CHECK(bench.Count(FaultKind::kOverflow, 1) == 3);
  bench.Script("{}");
  bench.Batches(1, 0);
  bench.Batches(1, 1);
  CHECK(bench.Count(FaultKind::kOverflow, 0) == 1);
  CHECK(bench.Count(FaultKind::kOverflow, 1) == 3);
}

TEST_CASE("a script that was filled in wrongly by hand is refused and changes nothing") {
  FaultsBench bench;
  FaultScript script;
  script.faults.push_back({});
  const Status refused = bench.instance->SetFaults(script, std::nullopt);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message == "faults[0]: 0 of at, every and probability; allowed: exactly one of them");
}

TEST_CASE("an evicted block is removed on the wire, by its 64 bits or its whole hash") {
  FaultsBench bench;
  const auto consumer = bench.Join();
  bench.Batches(2);
  REQUIRE(consumer->UntilNumber(1));
  REQUIRE(consumer->notes.stored_hashes.size() == 4);
  std::vector<std::string> whole;
  REQUIRE(bench.instance->Call(0, [&](EngineCore& core) {
    core.scheduler().pool().Walk([&](const ResidentBlock& block) {
      if (block.hash.Low64() == consumer->notes.stored_hashes[3]) whole.push_back(block.hash.ToHex());
    });
  }));
  REQUIRE(whole.size() == 1);
  const std::string low = BlockHash::FromUint64(consumer->notes.stored_hashes[1]).ToHex();
  CHECK(bench.instance->Evict(0, low) == 1);
  CHECK(bench.instance->Evict(0, whole[0]) == 1);
  REQUIRE(consumer->UntilNumber(3));
  CHECK(consumer->notes.removed_hashes ==
        std::vector<std::uint64_t>{consumer->notes.stored_hashes[1], consumer->notes.stored_hashes[3]});
  CHECK(bench.Count(FaultKind::kEvict) == 2);
  CHECK(bench.instance->Evict(0, low) == 0);
  CHECK(bench.Count(FaultKind::kEvict) == 2);
  const auto refused = bench.instance->Evict(0, "xyz");
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message == "block: \"xyz\"; allowed: 16, 32 or 64 hexadecimal digits");
  CHECK(consumer->Confirmed());
  CHECK(consumer->notes.checker.Verdict() == CheckVerdict::kClean);
}

TEST_CASE("a preempted request starts again and ends with the same tokens") {
  std::vector<TokenId> expected;
  {
    FaultsBench undisturbed;
    expected = Await(undisturbed.Submit(Request(10, 100))).tokens;
  }
  InstanceConfig config = SmallEngine();
  config.time_model.decode_per_request = std::chrono::milliseconds(1);
  FaultsBench bench(std::move(config));
  CHECK_FALSE(bench.instance->Preempt(0).value().has_value());
  const Admission admission = bench.Submit(Request(10, 100));
  OutputChunk all = admission.output->Take(kLong);
  REQUIRE_FALSE(all.empty());
  CHECK(bench.instance->Preempt(0) == admission.id);
  const OutputChunk rest = Await(admission);
  all.tokens.insert(all.tokens.end(), rest.tokens.begin(), rest.tokens.end());
  REQUIRE(rest.finished);
  CHECK(rest.finished->num_preemptions == 1);
  CHECK(all.tokens == expected);
  CHECK(bench.Count(FaultKind::kPreempt) == 1);
}

TEST_CASE("a reset is an AllBlocksCleared, whether the engine is idle or busy") {
  for (const bool busy : {false, true}) {
    CAPTURE(busy);
    InstanceConfig config = SmallEngine();
    config.time_model.decode_per_request = std::chrono::milliseconds(1);
    FaultsBench bench(std::move(config));
    const auto consumer = bench.Join();
    bench.Batches(2);
    std::optional<Admission> running;
    if (busy) {
      running = bench.Submit(Request(10, 100));
      CHECK_FALSE(running->output->Take(kLong).empty());
    }
    CHECK(bench.instance->Reset(0).has_value());
    CHECK(consumer->Until([&] { return consumer->notes.clears == 1; }));
    if (running) CHECK(Await(*running).finished);
    CHECK(consumer->Confirmed());
    CHECK(consumer->notes.checker.Verdict() == CheckVerdict::kClean);
    CHECK(bench.Count(FaultKind::kReset) == 1);
  }
}

}  // namespace
}  // namespace kvwire::test
