// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/publish/replay_service.h"
#include "tests/fault/replay_crowd.h"
#include "tests/support/publisher_bench.h"

namespace kvwire::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

// A service over sockets, and whether it still holds what it served.
class ServedBuffer {
 public:
  ServedBuffer()
      : router_(Bind(context_)),
        buffer_(kBatches, std::size_t{1} << 30),
        service("test", ReplayLayout::kTopic, router_.get(), &buffer_) {
    for (SequenceNumber number = 0; number < kBatches; ++number) {
      auto payload = std::make_shared<const Bytes>(kCrowdPayload);
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
