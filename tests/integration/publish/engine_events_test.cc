// SPDX-License-Identifier: Apache-2.0
// An engine with a real publisher.
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include "engine/engine_thread.h"
#include "kv_events/wire/decoder.h"
#include "tests/support/publisher_bench.h"
#include "tests/support/watchdog.h"
#include "tests/unit/engine/engine_fixture.h"

namespace kvwire::test {
namespace {

using engine::EngineConfig;
using engine::EngineCore;
using engine::EngineThread;
using engine::MakeEngine;
using engine::MakeRequest;
using engine::SmallConfig;
using engine::SubmitResult;
using scheduler::RequestId;
using scheduler::ResetMode;

using Outputs = std::map<RequestId, std::vector<TokenId>>;

// Requests that share prefixes, in a pool so small that blocks are evicted and requests preempted.
Outputs RunWorkload(EventPublisher* publisher) {
  EngineConfig config = SmallConfig(24);
  config.scheduler.enable_kv_cache_events = publisher != nullptr;
  const auto core = MakeEngine(std::move(config), publisher);
  constexpr RequestId kRequests = 60;
  for (RequestId id = 0; id < kRequests; ++id) {
    const auto shape = static_cast<std::uint32_t>(id);
    REQUIRE(core->Add(MakeRequest(id, 8 + shape % 5 * 4, 6 + shape % 7, 1 + shape % 6 * 100)));
  }
  Outputs outputs;
  while (core->has_work()) {
    for (scheduler::FinishedRequest& request : core->Step().finished) {
      outputs[request.id] = std::move(request.output);
    }
  }
  CHECK(outputs.size() == kRequests);
  CHECK(core->scheduler().stats().hit_blocks > 0);
  CHECK(core->scheduler().stats().preemptions > 0);
  if (publisher != nullptr) CHECK(core->scheduler().stats().removed > 0);
  return outputs;
}

// Batches come before the subscription here, and nothing is to be announced again for it.
KVEventsConfig Unguarded() {
  KVEventsConfig config = LoopbackConfig();
  config.kvwire.restart_guard_s = 0;
  return config;
}

TEST_CASE("A1: with events and a full queue the engine says what it says without events") {
  const Outputs without = RunWorkload(nullptr);

  Gate gate;
  KVEventsConfig events = LoopbackConfig();
  events.max_queue_size = 1;
  events.kvwire.overflow = Overflow::kDrop;  // else nothing is handed over until the queue has room
  PublisherOptions options;
  options.host_wakes = true;
  PublisherBench bench(events, options, gate.encoder());
  {
    const Watchdog watchdog("the engine with a full event queue", std::chrono::seconds(60));
    CHECK(RunWorkload(bench.publisher.get()) == without);
  }
  const PublisherStats stats = bench.publisher->stats();
  CHECK(stats.queued == 1);
  CHECK(stats.dropped_full > 10);
  gate.Open();
}

// The kinds of a payload's events, as one letter each.
std::string Kinds(const std::vector<std::uint8_t>& payload) {
  const auto decoded = DecodeBatch(payload);
  REQUIRE(decoded);
  std::string kinds;
  for (std::size_t i = 0; i < decoded->batch.size(); ++i) {
    const KVEventBatch::Event event = decoded->batch.at(i);
    kinds += std::holds_alternative<BlockStored>(event) ? 'S' : std::holds_alternative<BlockRemoved>(event) ? 'R' : 'C';
  }
  return kinds;
}

TEST_CASE("A9: a reset of an idle engine reaches a subscriber without another step") {
  // With the request the pool holds something to clear; without, it is empty.
  for (const bool with_request : {true, false}) {
    CAPTURE(with_request);
    PublisherOptions options;
    options.host_wakes = true;
    PublisherBench bench(Unguarded(), options);
    const auto subscriber = bench.Subscribe("test");
    const SequenceNumber first = Join(bench.publisher.get(), subscriber.get());
    EngineThread thread(MakeEngine(SmallConfig(), bench.publisher.get()), {});
    SequenceNumber next = first;
    if (with_request) {
      REQUIRE(thread.Add(MakeRequest(1, 9, 1)) == SubmitResult::kAccepted);
      const std::vector<Live> stored = ReadLive(subscriber.get(), 1);
      REQUIRE(stored.size() == 1);
      CHECK(Kinds(stored[0].payload).find('S') == 0);
      ++next;
    }
    // More than one: nothing is left to a later one either.
    for (int i = 0; i < 3; ++i, ++next) {
      std::promise<bool> done;
      REQUIRE(thread.ResetPrefixCache(ResetMode::kFailWhileRunning, [&](bool reset) { done.set_value(reset); }) ==
              SubmitResult::kAccepted);
      const std::vector<Live> cleared = ReadLive(subscriber.get(), 1);
      REQUIRE(cleared.size() == 1);
      CHECK(cleared[0].number == next);
      CHECK(Kinds(cleared[0].payload) == "C");
      CHECK(done.get_future().get());
    }
    thread.Stop(std::chrono::milliseconds(2000));
    CHECK(thread.core().scheduler().stats().steps == (with_request ? 1 : 0));
    CHECK_FALSE(subscriber->TryReceive());
  }
}

TEST_CASE("the time stamp that a subscriber reads is the one of the engine's clock") {
  ManualClock clock;
  PublisherBench bench(Unguarded(), {});
  const auto subscriber = bench.Subscribe("test");
  Join(bench.publisher.get(), subscriber.get());
  EngineConfig config = SmallConfig();
  config.clock = &clock;
  const auto core = MakeEngine(std::move(config), bench.publisher.get());
  for (RequestId id = 0; id < 3; ++id) {
    clock.Advance(std::chrono::microseconds(1'234'567));
    REQUIRE(core->Add(MakeRequest(id, 8, 1, 1 + static_cast<TokenId>(id) * 100)));
    REQUIRE(core->Step().published);
    const std::vector<Live> live = ReadLive(subscriber.get(), 1);
    REQUIRE(live.size() == 1);
    const auto decoded = DecodeBatch(live[0].payload);
    REQUIRE(decoded);
    CHECK(decoded->batch.ts == clock.WallSeconds());
  }
}

}  // namespace
}  // namespace kvwire::test
