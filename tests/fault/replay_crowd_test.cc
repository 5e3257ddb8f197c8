// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/replay_crowd.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/manual_clock.h"
#include "tests/support/publisher_bench.h"

namespace kvwire::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

TEST_CASE(
    "J1, J3: a hundred clients at once, half of which vanish or stop reading, hold up neither others nor stream") {
  constexpr std::size_t kBatches = 2000;
  ManualClock clock;
  PublisherOptions options;
  options.clock = &clock;
  KVEventsConfig config = LoopbackConfig();
  config.buffer_steps = 1'000'000;
  PublisherBench bench(config, options, [](const KVEventBatch&, Bytes* out) { out->resize(kCrowdPayload, 1); });
  for (std::size_t i = 0; i < kBatches; ++i) REQUIRE(bench.publisher->Publish({}) == PublishResult::kAccepted);
  REQUIRE(bench.Settled());
  const auto subscriber = bench.Subscribe("test");
  SequenceNumber next = Join(bench.publisher.get(), subscriber.get(), kBatches);
  Crowd crowd = MakeCrowd([&] { return bench.Dealer("", 10); });
  REQUIRE(Eventually([&] {
    const PublisherStats stats = bench.publisher->stats();
    return stats.replay_requests + stats.replay_dropped >= kCrowdClients;
  }));
  Vanish(&crowd, Manner::kVanishes);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(100);
  while (!Served(crowd)) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    REQUIRE(bench.publisher->Publish({}) == PublishResult::kAccepted);
    REQUIRE(Numbers(ReadLive(subscriber.get(), 1)) == Range(next, next));
    ++next;
    for (CrowdClient& client : crowd) client.Read(kBatches);
  }
  // By the clock those that stopped are given up, and whoever comes then has room.
  CHECK(Eventually([&] {
    clock.Advance(std::chrono::seconds(31));
    const std::uint64_t before = bench.publisher->stats().replay_dropped;
    const auto late = bench.Dealer();
    Ask(late.get(), 0);
    const std::vector<Replayed> answer = ReadReplay(late.get());
    return answer.size() > kBatches && bench.publisher->stats().replay_dropped == before;
  }));
  CHECK(bench.publisher->stats().replay_dropped > 0);
  CHECK(Balanced(bench.publisher->stats(), next));
}

}  // namespace
}  // namespace kvwire::test
