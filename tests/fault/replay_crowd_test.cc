// SPDX-License-Identifier: Apache-2.0
// A hundred clients of one replay at once, half of which behave badly.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
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

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kClients = 100;
constexpr std::size_t kPayload = 4096;

enum class Manner : std::uint8_t { kReads, kVanishes, kStopsReading };

struct CrowdClient {
  Manner manner = Manner::kReads;
  std::unique_ptr<ZmqLink> dealer;
  std::vector<SequenceNumber> numbers;
  bool whole = false;

  bool done() const { return manner != Manner::kReads || whole; }

  // Some messages, if they are there. An end without messages is that of a crowded service: asked again, as a consumer
  // does.
  void Read(std::size_t wanted) {
    for (int i = 0; i < 16 && !done(); ++i) {
      const std::optional<Replayed> message = ReceiveReplayed(dealer.get());
      if (!message) return;
      if (!message->end) {
        numbers.push_back(message->number);
      } else if (numbers.empty()) {
        Ask(dealer.get(), 0);
      } else {
        whole = numbers.size() >= wanted && numbers == Range(0, numbers.back());
        REQUIRE(whole);
      }
    }
  }
};

using Crowd = std::vector<CrowdClient>;

// All have asked for everything; `connect` makes their links.
Crowd MakeCrowd(const std::function<std::unique_ptr<ZmqLink>()>& connect) {
  Crowd crowd(kClients);
  for (std::size_t i = 0; i < kClients; ++i) {
    crowd[i].manner = i % 2 == 0 ? Manner::kReads : i % 4 == 1 ? Manner::kVanishes : Manner::kStopsReading;
    crowd[i].dealer = connect();
    Ask(crowd[i].dealer.get(), 0);
  }
  return crowd;
}

void Vanish(Crowd* crowd, Manner manner) {
  for (CrowdClient& client : *crowd) {
    if (client.manner == manner) client.dealer.reset();
  }
}

bool Served(const Crowd& crowd) {
  return std::all_of(crowd.begin(), crowd.end(), [](const CrowdClient& client) { return client.done(); });
}

TEST_CASE(
    "J1, J3: a hundred clients at once, half of which vanish or stop reading, hold up neither others nor stream") {
  constexpr std::size_t kBatches = 2000;
  ManualClock clock;
  PublisherOptions options;
  options.clock = &clock;
  KVEventsConfig config = LoopbackConfig();
  config.buffer_steps = 1'000'000;
  PublisherBench bench(config, options, [](const KVEventBatch&, Bytes* out) { out->resize(kPayload, 1); });
  for (std::size_t i = 0; i < kBatches; ++i) REQUIRE(bench.publisher->Publish({}) == PublishResult::kAccepted);
  REQUIRE(bench.Settled());
  const auto subscriber = bench.Subscribe("test");
  SequenceNumber next = Join(bench.publisher.get(), subscriber.get(), kBatches);
  Crowd crowd = MakeCrowd([&] { return bench.Dealer("", 10); });
  REQUIRE(Eventually([&] { return bench.publisher->stats().replay_requests >= kClients; }));
  Vanish(&crowd, Manner::kVanishes);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
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

// A service over sockets, and whether it still holds what it served.
class ServedBuffer {
 public:
  ServedBuffer()
      : router_(Bind(context_)),
        buffer_(kBatches, std::size_t{1} << 30),
        service("test", ReplayLayout::kTopic, router_.get(), &buffer_) {
    for (SequenceNumber number = 0; number < kBatches; ++number) {
      auto payload = std::make_shared<const Bytes>(kPayload);
      payloads_.push_back(payload);
      buffer_.Append(number, std::move(payload));
    }
  }

  std::unique_ptr<ZmqLink> Connect() const {
    LinkOptions reading;
    reading.receive_hwm = 10;
    return ConnectTo(context_, LinkKind::kDealer, "inproc://crowd", reading);
  }
  // Every batch falls out of the buffer.
  void Turn() {
    for (SequenceNumber number = kBatches; number < 2 * kBatches; ++number) {
      buffer_.Append(number, std::make_shared<const Bytes>(1));
    }
  }
  std::size_t alive() const {
    return static_cast<std::size_t>(
        std::count_if(payloads_.begin(), payloads_.end(), [](const auto& payload) { return !payload.expired(); }));
  }

  static constexpr SequenceNumber kBatches = 1000;

 private:
  static std::unique_ptr<ZmqLink> Bind(const std::shared_ptr<ZmqContext>& context) {
    LinkOptions serving;
    serving.send_hwm = 64;
    auto link = ZmqLink::Bind(context, LinkKind::kRouter, *Endpoint::Parse("inproc://crowd", "endpoint"), serving);
    REQUIRE(link.has_value());
    return *std::move(link);
  }

  const std::shared_ptr<ZmqContext> context_ = ZmqContext::Create();
  const std::unique_ptr<ZmqLink> router_;
  ReplayBuffer buffer_;
  std::vector<std::weak_ptr<const Bytes>> payloads_;

 public:
  ReplayService service;
};

TEST_CASE("C5, J3: the memory that a hundred clients took comes back, also of those that vanish or stop reading") {
  ServedBuffer served;
  Crowd crowd = MakeCrowd([&] { return served.Connect(); });
  MonotonicNanos now = 0;
  REQUIRE(Eventually([&] {
    served.service.DoWork(now);
    return served.service.clients() == ReplayService::kMaxClients;
  }));
  Vanish(&crowd, Manner::kVanishes);
  REQUIRE(Eventually([&] {
    served.service.DoWork(now);
    for (CrowdClient& client : crowd) client.Read(ServedBuffer::kBatches);
    return Served(crowd);
  }));
  CHECK(Eventually([&] {
    served.service.DoWork(now += ReplayService::kProgressDeadline + 1);
    return served.service.clients() == 0;
  }));
  served.Turn();
  // What is in the pipes of those that are there and do not read.
  CHECK(served.alive() <= 64 + 10);
  Vanish(&crowd, Manner::kStopsReading);
  CHECK(Eventually([&] {
    served.service.DoWork(now);
    return served.alive() == 0;
  }));
}

}  // namespace
}  // namespace kvwire::test
