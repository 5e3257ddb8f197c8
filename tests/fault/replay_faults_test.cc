// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/publish/replay_service.h"
#include "tests/support/manual_clock.h"
#include "tests/support/publisher_bench.h"

namespace kvwire::test {
namespace {

using std::chrono::seconds;
using Bytes = std::vector<std::uint8_t>;

PublisherAgent::EncodeFunction Wide(std::size_t size) {
  return [size](const KVEventBatch&, std::vector<std::uint8_t>* out) { out->resize(size, 1); };
}

void Fill(PublisherBench* bench, int batches) {
  for (int i = 0; i < batches; ++i) {
    REQUIRE(bench->publisher->Publish(KVEventBatch()) == PublishResult::kAccepted);
  }
  REQUIRE(bench->Settled());
}

TEST_CASE("C1: both layouts arrive as a client of theirs expects") {
  for (const ReplayLayout layout : {ReplayLayout::kTopic, ReplayLayout::kLegacy}) {
    KVEventsConfig config = LoopbackConfig();
    config.kvwire.replay_layout = layout;
    PublisherBench bench(config);
    Fill(&bench, 5);
    const auto dealer = bench.Dealer();
    Ask(dealer.get(), 2);
    const std::vector<Replayed> messages = ReadReplay(dealer.get());
    REQUIRE(Numbers(messages) == Range(2, 4));
    for (const Replayed& message : messages) {
      CHECK(message.frames == (layout == ReplayLayout::kTopic ? 4 : 3));
      CHECK(message.topic.has_value() == (layout == ReplayLayout::kTopic));
      if (message.topic) CHECK(*message.topic == (message.end ? "" : "test"));
    }
    CHECK(messages.back().number == kEndOfReplay);
    CHECK(messages.back().payload.empty());
  }
}

TEST_CASE("C2: requests of any shape leave the publisher running and the asker answered") {
  PublisherBench bench;
  Fill(&bench, 4);
  const std::pair<InFrames, std::vector<SequenceNumber>> cases[] = {
      {{{}, {0, 0, 0, 0, 0, 0, 0, 2}}, {2, 3}},
      {{{0, 0, 0, 0, 0, 0, 0, 2}}, {2, 3}},
      {{{}, {}}, {0, 1, 2, 3}},
      {{{}, {0, 0, 0, 0, 0, 0, 3}}, {3}},
      {{{}, {0, 0, 0, 0, 0, 0, 0, 0, 3}}, {3}},
      {{{}, {9, 0, 0, 0, 0, 0, 0, 0, 0}}, {}},
      {{{}, Bytes(17)}, {}},
      {{{'x'}, {0}}, {}},
      {{{}, {0}, {0}}, {}},
      {InFrames(100, Bytes{1}), {}},
      {{{}, Bytes(4096)}, {}},
  };
  std::uint64_t malformed = 0;
  for (const auto& [frames, numbers] : cases) {
    const auto dealer = bench.Dealer();
    SendFrames(dealer.get(), frames);
    const std::vector<Replayed> messages = ReadReplay(dealer.get());
    REQUIRE_FALSE(messages.empty());
    CHECK(messages.back().end);
    CHECK(Numbers(messages) == numbers);
    if (numbers.empty()) ++malformed;
  }
  CHECK(bench.publisher->stats().replay_malformed == malformed - 1);  // a huge start is not malformed
  // A frame above the limit ends that connection and nobody else's.
  const auto hostile = bench.Dealer();
  SendFrames(hostile.get(), {{}, Bytes(100000)});
  Fill(&bench, 1);
  const auto dealer = bench.Dealer();
  Ask(dealer.get(), 0);
  CHECK(Numbers(ReadReplay(dealer.get())) == Range(0, 4));
  CHECK(Balanced(bench.publisher->stats(), 5));
}

TEST_CASE("C5: a client that stops reading is given up by the clock, and the others are served") {
  ManualClock clock;
  PublisherOptions options;
  options.clock = &clock;
  KVEventsConfig config = LoopbackConfig();
  config.buffer_steps = 4000;
  PublisherBench bench(config, options, Wide(4096));
  Fill(&bench, 4000);
  const auto stalled = bench.Dealer("stalled", 10);
  Ask(stalled.get(), 0);
  CHECK(Eventually([&] {
    clock.Advance(seconds(31));
    return bench.publisher->stats().replay_dropped == 1;
  }));
  CHECK(bench.publisher->stats().replay_messages < 4000);
  const auto dealer = bench.Dealer("reads");
  Ask(dealer.get(), 3900);
  CHECK(Numbers(ReadReplay(dealer.get())) == Range(3900, 3999));
}

TEST_CASE("C5: what a given-up client held in the pipes is bounded, and comes back when it goes") {
  const auto context = ZmqContext::Create();
  LinkOptions serving;
  serving.send_hwm = 64;
  Result<std::unique_ptr<ZmqLink>> router =
      ZmqLink::Bind(context, LinkKind::kRouter, *Endpoint::Parse("inproc://memory", "endpoint"), serving);
  REQUIRE(router);
  ReplayBuffer buffer(1000, std::size_t{1} << 30);
  ReplayService service("test", ReplayLayout::kTopic, router->get(), &buffer);
  std::vector<std::weak_ptr<const Bytes>> payloads;
  for (SequenceNumber number = 0; number < 1000; ++number) {
    auto payload = std::make_shared<const Bytes>(4096);
    payloads.push_back(payload);
    buffer.Append(number, std::move(payload));
  }
  LinkOptions reading;
  reading.receive_hwm = 10;
  auto stalled = ConnectTo(context, LinkKind::kDealer, "inproc://memory", reading);
  Ask(stalled.get(), 0);
  MonotonicNanos now = 0;
  REQUIRE(Eventually([&] {
    service.DoWork(now += ReplayService::kProgressDeadline + 1);
    return service.dropped() == 1;
  }));
  CHECK(service.clients() == 0);
  for (SequenceNumber number = 1000; number < 2000; ++number) buffer.Append(number, std::make_shared<const Bytes>(1));
  const auto alive = [&] {
    return std::count_if(payloads.begin(), payloads.end(), [](const auto& payload) { return !payload.expired(); });
  };
  CHECK(alive() > 0);
  CHECK(alive() <= 64 + 10);
  stalled.reset();
  CHECK(Eventually([&] {
    service.DoWork(now);
    return alive() == 0;
  }));
}

TEST_CASE("J3: a client killed in the middle of a replay holds nobody up") {
  KVEventsConfig config = LoopbackConfig();
  config.buffer_steps = 3000;
  PublisherBench bench(config, {}, Wide(4096));
  Fill(&bench, 3000);
  for (int round = 0; round < 5; ++round) {
    // A name of its own: a later client of the same name would take the place of one not yet given up.
    auto killed = bench.Dealer("killed" + std::to_string(round), 10);
    Ask(killed.get(), 0);
    REQUIRE(Eventually([&] { return killed->TryReceive().has_value(); }));
    killed.reset();
    const auto subscriber = bench.Subscribe("test");
    static_cast<void>(bench.publisher->Publish(KVEventBatch()));
    REQUIRE(bench.Settled());
    const auto dealer = bench.Dealer("other");
    Ask(dealer.get(), 2900);
    const std::vector<Replayed> messages = ReadReplay(dealer.get());
    REQUIRE_FALSE(messages.empty());
    CHECK(messages.back().end);
    CHECK(Numbers(messages) == Range(2900, 3000 + static_cast<SequenceNumber>(round)));
  }
  CHECK(Eventually([&] { return bench.publisher->stats().replay_dropped == 5; }));
}

TEST_CASE("J3: of two clients with one identity the later is served") {
  PublisherBench bench(LoopbackConfig(), {}, Wide(4096));
  Fill(&bench, 100);
  const auto first = bench.Dealer("same");
  Ask(first.get(), 0);
  CHECK(Numbers(ReadReplay(first.get())) == Range(0, 99));
  const auto second = bench.Dealer("same");
  Ask(second.get(), 50);
  CHECK(Numbers(ReadReplay(second.get())) == Range(50, 99));
  CHECK_FALSE(first->TryReceive());
}

TEST_CASE("J3: a client that comes back under its identity in the middle of its replay gets a whole one") {
  constexpr SequenceNumber kBatches = 1000;
  constexpr SequenceNumber kRounds = 50;
  KVEventsConfig config = LoopbackConfig();
  config.buffer_steps = 2000;  // nothing falls out
  PublisherBench bench(config, {}, Wide(4096));
  Fill(&bench, kBatches);
  const auto subscriber = bench.Subscribe("test");
  SequenceNumber next = Join(bench.publisher.get(), subscriber.get(), kBatches);
  for (SequenceNumber round = 0; round < kRounds; ++round) {
    CAPTURE(round);
    auto before = bench.Dealer("same", round % 2 == 0 ? 10 : 1000);
    Ask(before.get(), 0);
    // Cut off at another place each time.
    for (SequenceNumber number = 0; number <= round * 7; ++number) {
      REQUIRE(Eventually([&] { return before->TryReceive().has_value(); }));
    }
    before.reset();
    const auto again = bench.Dealer("same");
    Ask(again.get(), 0);
    // The live stream goes on meanwhile.
    REQUIRE(bench.publisher->Publish(KVEventBatch()) == PublishResult::kAccepted);
    CHECK(Numbers(ReadLive(subscriber.get(), 1)) == Range(next, next));
    ++next;
    // The rest of the answer that was cut off may come first. Number 0 was sent before the cut.
    std::vector<SequenceNumber> rest;
    std::vector<SequenceNumber> whole;
    bool ended = false;
    CHECK(Eventually([&] {
      while (const std::optional<Replayed> message = ReceiveReplayed(again.get())) {
        const bool own = !whole.empty() || message->number == 0;
        if (message->end) {
          if (own) ended = true;
          continue;
        }
        (own ? whole : rest).push_back(message->number);
      }
      return ended;
    }));
    // The batch published meanwhile may be part of it.
    CHECK((whole == Range(0, next - 1) || whole == Range(0, next - 2)));
    if (!rest.empty()) CHECK(rest == Range(rest.front(), rest.back()));
  }
  CHECK(Balanced(bench.publisher->stats(), next));
}

}  // namespace
}  // namespace kvwire::test
