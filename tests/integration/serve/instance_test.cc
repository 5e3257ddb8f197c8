// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/instance.h"

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/wire/decoder.h"
#include "tests/integration/serve/instance_bench.h"
#include "tests/support/stream_support.h"
#include "tests/support/watchdog.h"

namespace kvwire::test {
namespace {

using engine::Admission;
using engine::EngineCore;
using engine::Instance;
using engine::InstanceConfig;
using engine::OutputChunk;
using engine::SubmitResult;

TEST_CASE("the tokens that come out one by one are those of the finished request") {
  const auto egress = MustCreateEgress();
  const auto instance = MustCreate(SmallEngine(), egress.get());
  const OutputChunk first = Await(MustSubmit(instance.get(), Request(10, 20)));
  REQUIRE(first.finished);
  CHECK(first.tokens == first.finished->output);
  CHECK(first.tokens.size() == 20);
  CHECK(first.finished->num_cached_tokens == 0);
  const OutputChunk second = Await(MustSubmit(instance.get(), Request(10, 20)));
  CHECK(second.tokens == first.tokens);
  CHECK(second.finished->num_cached_tokens == 8);
  CHECK(instance->num_requests() == 0);
}

TEST_CASE("a request that can never fit is refused with the scheduler's reason") {
  const auto egress = MustCreateEgress();
  const auto instance = MustCreate(SmallEngine(), egress.get());
  const OutputChunk refused = Await(MustSubmit(instance.get(), Request(1000, 1)));
  REQUIRE(refused.refused);
  CHECK(refused.refused->message.find("blocks") != std::string::npos);
  CHECK(instance->num_requests() == 0);
}

TEST_CASE("ranks have caches, sockets and numbers of their own, and their batches carry the rank") {
  const auto egress = MustCreateEgress();
  const auto instance = MustCreate(SmallEngine(4), egress.get());
  const std::vector<EventSourceInfo> sources = instance->sources();
  REQUIRE(sources.size() == 4);
  std::set<std::string> endpoints;
  for (const EventSourceInfo& source : sources) {
    endpoints.insert(source.endpoint);
    endpoints.insert(*source.replay_endpoint);
  }
  CHECK(endpoints.size() == 8);
  const auto context = ZmqContext::Create();
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    CHECK(sources[rank].data_parallel_rank == rank);
    const OutputChunk done = Await(MustSubmit(instance.get(), Request(8, 1), rank));
    REQUIRE(done.finished);
    CHECK(done.finished->num_cached_tokens == 0);
    const auto dealer = ConnectTo(context, LinkKind::kDealer, *sources[rank].replay_endpoint);
    REQUIRE(Ask(dealer.get(), 0) == SendResult::kSent);
    const std::vector<Replayed> replayed = ReadReplay(dealer.get());
    CHECK(Numbers(replayed) == Range(0, 0));
    CHECK(RankOf(replayed.at(0).payload) == rank);
  }
}

TEST_CASE("without a rank the least loaded one takes the request") {
  const auto egress = MustCreateEgress();
  InstanceConfig config = SmallEngine(3);
  config.time_model.decode_per_request = std::chrono::hours(1);
  const auto instance = MustCreate(std::move(config), egress.get());
  std::map<std::uint32_t, int> taken;
  for (int i = 0; i < 6; ++i) ++taken[MustSubmit(instance.get(), Request(4, 10)).rank];
  CHECK(taken == std::map<std::uint32_t, int>{{0, 2}, {1, 2}, {2, 2}});
  const Watchdog watchdog("the end of an engine in a long step");
  instance->Shutdown(std::chrono::milliseconds(1000));
}

TEST_CASE("B3: a port that is taken fails the start of every rank, naming socket and address, and frees the others") {
  const auto egress = MustCreateEgress();
  const auto holder = MustCreate(SmallEngine(), egress.get());
  for (const bool replay : {false, true}) {
    CAPTURE(replay);
    InstanceConfig config = SmallEngine();
    std::string& taken = replay ? *config.events.replay_endpoint : config.events.endpoint;
    taken = replay ? *holder->sources()[0].replay_endpoint : holder->sources()[0].endpoint;
    const auto second = Instance::Create(config, egress.get(), ZmqContext::Create());
    REQUIRE_FALSE(second.has_value());
    CHECK(second.error().code == ErrorCode::kAddressInUse);
    CHECK(second.error().message.find(taken) != std::string::npos);
    CHECK(second.error().message.find(replay ? "ROUTER" : "PUB") != std::string::npos);
  }
}

TEST_CASE("A9: reset, sleep and wake of an idle and of a busy engine reach the wire at once") {
  const auto egress = MustCreateEgress();
  for (const bool busy : {false, true}) {
    CAPTURE(busy);
    InstanceConfig config = SmallEngine();
    if (busy) config.time_model.decode_per_request = std::chrono::milliseconds(1);
    const auto instance = MustCreate(std::move(config), egress.get());
    const auto context = ZmqContext::Create();
    const auto dealer = ConnectTo(context, LinkKind::kDealer, *instance->sources()[0].replay_endpoint);
    const auto clears = [&] {
      REQUIRE(Ask(dealer.get(), 0) == SendResult::kSent);
      int count = 0;
      for (const Replayed& message : ReadReplay(dealer.get())) {
        if (message.end) continue;
        const auto decoded = DecodeBatch(message.payload);
        REQUIRE(decoded.has_value());
        for (std::size_t i = 0; i < decoded->batch.size(); ++i) {
          count += std::holds_alternative<AllBlocksCleared>(decoded->batch.at(i)) ? 1 : 0;
        }
      }
      return count;
    };
    std::optional<Admission> running;
    if (busy) {
      running = MustSubmit(instance.get(), Request(10, 200));
      CHECK_FALSE(running->output->Take(std::chrono::seconds(5)).empty());
      CHECK_FALSE(instance->ResetPrefixCache(scheduler::ResetMode::kFailWhileRunning));
    }
    CHECK(instance->ResetPrefixCache(scheduler::ResetMode::kPreemptRunning));
    CHECK(Eventually([&] { return clears() == 1; }));
    CHECK(instance->Sleep());
    CHECK(instance->asleep());
    CHECK(Eventually([&] { return clears() == 2; }));
    const Admission waiting = MustSubmit(instance.get(), Request(10, 3, 50));
    CHECK(instance->num_requests() == (busy ? 2 : 1));
    CHECK(instance->WakeUp());
    CHECK_FALSE(instance->asleep());
    CHECK(Await(waiting).finished);
    if (running) CHECK(Await(*running).finished);
  }
}

TEST_CASE("an aborted request leaves the engine, and says nothing more") {
  const auto egress = MustCreateEgress();
  InstanceConfig config = SmallEngine();
  config.time_model.decode_per_request = std::chrono::milliseconds(1);
  const auto instance = MustCreate(std::move(config), egress.get());
  const Admission admission = MustSubmit(instance.get(), Request(10, 300));
  CHECK_FALSE(admission.output->Take(std::chrono::seconds(5)).empty());
  instance->Abort(admission);
  instance->Abort(admission);
  CHECK(instance->num_requests() == 0);
  CHECK(Eventually(
      [&] { return instance->figures(0).running == 0 && instance->figures(0).stats.requests_aborted == 1; }));
}

TEST_CASE("the inbox is bounded, and a closed or stopped instance takes nothing") {
  const auto egress = MustCreateEgress();
  InstanceConfig config = SmallEngine();
  config.max_requests = 2;
  config.time_model.decode_per_request = std::chrono::hours(1);
  const auto instance = MustCreate(std::move(config), egress.get());
  const Admission first = MustSubmit(instance.get(), Request(4, 2));
  // It decodes, or is about to: the second one gets one token at most.
  CHECK_FALSE(first.output->Take(std::chrono::seconds(5)).empty());
  const Admission second = MustSubmit(instance.get(), Request(4, 2));
  const auto third = instance->Submit(Request(4, 2), std::nullopt);
  REQUIRE_FALSE(third.has_value());
  CHECK(third.error().reason == SubmitResult::kFull);
  instance->Close();
  const auto closed = instance->Submit(Request(4, 2), std::nullopt);
  REQUIRE_FALSE(closed.has_value());
  CHECK(closed.error().reason == SubmitResult::kStopped);
  instance->Shutdown(std::chrono::milliseconds(1000));
  CHECK(Await(first).last());
  CHECK(Await(second).refused);
  CHECK_FALSE(instance->Call(0, [](EngineCore&) {}));
}

TEST_CASE("shutdown loses nothing that was announced") {
  const auto egress = MustCreateEgress();
  auto instance = MustCreate(SmallEngine(), egress.get());
  const auto context = ZmqContext::Create();
  const auto subscriber = ConnectTo(context, LinkKind::kSub, instance->sources()[0].endpoint);
  // Until the subscription has arrived.
  TokenId first = 1000;
  while (!ReceiveLive(subscriber.get())) Await(MustSubmit(instance.get(), Request(4, 1, first += 10)));
  for (int i = 0; i < 50; ++i) Await(MustSubmit(instance.get(), Request(8, 1, first += 10)));
  std::uint64_t stored = 0;
  REQUIRE(instance->Call(0, [&](EngineCore& core) { stored = core.batches_published(); }));
  instance->Shutdown(std::chrono::milliseconds(2000));
  SequenceNumber last = 0;
  while (const auto live = ReceiveLive(subscriber.get())) last = live->number;
  CHECK(last + 1 == stored);
  const PublisherStats stats = instance->publisher_stats(0);
  CHECK(stats.sent == stats.submitted);
}

TEST_CASE("64 threads at once get what one alone gets") {
  const auto egress = MustCreateEgress();
  InstanceConfig config = SmallEngine();
  config.scheduler.num_blocks = 60;
  config.events.enable_kv_cache_events = false;
  config.scheduler.enable_prefix_caching = false;
  std::map<TokenId, std::vector<TokenId>> expected;
  {
    const auto reference = MustCreate(config, egress.get());
    for (TokenId i = 0; i < 8; ++i) {
      expected[i] = Await(MustSubmit(reference.get(), Request(12 + i, 10, i * 3))).tokens;
    }
  }
  config.events.enable_kv_cache_events = true;
  config.scheduler.enable_prefix_caching = true;
  const auto instance = MustCreate(config, egress.get());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (TokenId t = 0; t < 64; ++t) {
    threads.emplace_back([&, t] {
      for (TokenId i = 0; i < 8; ++i) {
        const TokenId which = (t + i) % 8;
        auto admission = instance->Submit(Request(12 + which, 10, which * 3), std::nullopt);
        if (!admission || Await(*admission).tokens != expected.at(which)) wrong.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong.load() == 0);
  CHECK(instance->figures(0).stats.hit_tokens > 0);
}

}  // namespace
}  // namespace kvwire::test
