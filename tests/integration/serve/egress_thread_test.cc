// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/egress_thread.h"

#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/publish/factory.h"
#include "tests/support/stream_support.h"
#include "tests/support/watchdog.h"

namespace kvwire::test {
namespace {

using engine::Delivery;
using engine::EgressThread;
using engine::OutputChunk;
using engine::OutputStream;

std::unique_ptr<EgressThread> MustCreate() {
  auto egress = EgressThread::Create();
  REQUIRE(egress.has_value());
  return *std::move(egress);
}

// What has come until the last chunk; less when it does not come.
OutputChunk TakeAll(OutputStream* stream) {
  OutputChunk all;
  for (int i = 0; i < 500 && !all.last(); ++i) {
    OutputChunk chunk = stream->Take(std::chrono::milliseconds(10));
    all.tokens.insert(all.tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
    all.finished = std::move(chunk.finished);
    all.refused = std::move(chunk.refused);
  }
  return all;
}

TEST_CASE("tokens arrive in the order in which they were delivered, to whom they belong") {
  const auto egress = MustCreate();
  const auto a = std::make_shared<OutputStream>();
  const auto b = std::make_shared<OutputStream>();
  std::vector<TokenId> expected;
  for (TokenId token = 0; token < 1000; ++token) {
    std::vector<Delivery> step;
    step.push_back({a, {{token}, {}, {}}});
    step.push_back({b, {{token + 5000}, {}, {}}});
    egress->Deliver(std::move(step));
    egress->Wake();
    expected.push_back(token);
  }
  std::vector<Delivery> last;
  scheduler::FinishedRequest finished;
  finished.id = 7;
  last.push_back({a, {{}, finished, {}}});
  last.push_back({b, {{}, {}, Error{ErrorCode::kUnavailable, "stopped"}}});
  egress->Deliver(std::move(last));
  egress->Wake();
  const OutputChunk of_a = TakeAll(a.get());
  CHECK(of_a.tokens == expected);
  REQUIRE(of_a.finished);
  CHECK(of_a.finished->id == 7);
  const OutputChunk of_b = TakeAll(b.get());
  CHECK(of_b.tokens.size() == 1000);
  CHECK(of_b.tokens.front() == 5000);
  CHECK(of_b.refused->message == "stopped");
}

TEST_CASE("what was delivered before the end arrives") {
  const auto stream = std::make_shared<OutputStream>();
  {
    const auto egress = MustCreate();
    std::vector<Delivery> step;
    step.push_back({stream, {{1, 2, 3}, {}, {}}});
    egress->Deliver(std::move(step));
  }
  CHECK(stream->Take(std::chrono::milliseconds(0)).tokens == std::vector<TokenId>{1, 2, 3});
}

TEST_CASE("a stream without news gives an empty chunk") {
  OutputStream stream;
  CHECK(stream.Take(std::chrono::milliseconds(1)).empty());
}

// Publishers that share one egress thread, each with a subscriber and a replay client.
TEST_CASE("publishers on the egress thread publish, replay and close as on a thread of their own") {
  constexpr std::size_t kPublishers = 6;  // more links than a small poll set holds
  const auto egress = MustCreate();
  const auto context = ZmqContext::Create();
  struct Bench {
    std::unique_ptr<EventPublisher> publisher;
    std::unique_ptr<ZmqLink> subscriber;
    SequenceNumber next = 0;
  };
  std::vector<Bench> benches;
  for (std::size_t i = 0; i < kPublishers; ++i) {
    KVEventsConfig config;
    config.enable_kv_cache_events = true;
    config.endpoint = "tcp://127.0.0.1:0";
    config.replay_endpoint = "tcp://127.0.0.1:0";
    config.kvwire.mode = SocketMode::kBind;
    PublisherOptions options;
    options.runner = egress.get();
    options.context = context;
    auto made = CreateEventPublisher(config, options);
    REQUIRE(made.has_value());
    Bench bench;
    bench.publisher = *std::move(made);
    bench.subscriber = ConnectTo(context, LinkKind::kSub, bench.publisher->source()->endpoint);
    bench.next = Join(bench.publisher.get(), bench.subscriber.get());
    benches.push_back(std::move(bench));
  }
  for (Bench& bench : benches) {
    for (std::size_t i = 0; i < 100; ++i) {
      REQUIRE(bench.publisher->Publish(StoreBatch(1, i)) == PublishResult::kAccepted);
      bench.publisher->Wake();
    }
  }
  for (Bench& bench : benches) {
    CHECK(Numbers(ReadLive(bench.subscriber.get(), 100)) == Range(bench.next, bench.next + 99));
    const auto dealer = ConnectTo(context, LinkKind::kDealer, *bench.publisher->source()->replay_endpoint);
    REQUIRE(Ask(dealer.get(), bench.next) == SendResult::kSent);
    CHECK(Numbers(ReadReplay(dealer.get())) == Range(bench.next, bench.next + 99));
  }
  // What is queued at the close still leaves.
  for (Bench& bench : benches) {
    REQUIRE(bench.publisher->Publish(StoreBatch(1, 7)) == PublishResult::kAccepted);
    const Watchdog watchdog("Close");
    bench.publisher->Close();
    CHECK(bench.publisher->Publish(StoreBatch(1, 8)) == PublishResult::kDroppedClosed);
    CHECK(ReadLive(bench.subscriber.get(), 1).size() == 1);
    CHECK(Balanced(bench.publisher->stats(), bench.publisher->stats().submitted));
  }
}

TEST_CASE("publishers come and go while others publish") {
  const auto egress = MustCreate();
  KVEventsConfig config;
  config.enable_kv_cache_events = true;
  config.endpoint = "tcp://127.0.0.1:0";
  config.kvwire.mode = SocketMode::kBind;
  PublisherOptions options;
  options.runner = egress.get();
  options.context = ZmqContext::Create();
  auto busy = CreateEventPublisher(config, options);
  REQUIRE(busy.has_value());
  for (int i = 0; i < 50; ++i) {
    auto other = CreateEventPublisher(config, options);
    REQUIRE(other.has_value());
    REQUIRE((*busy)->Publish(StoreBatch(1)) == PublishResult::kAccepted);
    (*busy)->Wake();
    const Watchdog watchdog("the destructor");
    other->reset();
  }
  CHECK(Eventually([&] { return (*busy)->stats().sent == 50; }));
}

}  // namespace
}  // namespace kvwire::test
