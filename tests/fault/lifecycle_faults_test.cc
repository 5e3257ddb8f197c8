// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>

#include <doctest/doctest.h>

#include "tests/support/publisher_bench.h"
#include "tests/support/watchdog.h"

namespace kvwire::test {
namespace {

using std::chrono::milliseconds;

std::size_t Entries(const char* directory) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    static_cast<void>(entry);
    ++count;
  }
  return count;
}

struct Resources {
  std::size_t threads = Entries("/proc/self/task");
  std::size_t descriptors = Entries("/proc/self/fd");
  bool AtMost(const Resources& other) const { return threads <= other.threads && descriptors <= other.descriptors; }
};

// Runs the cycle and checks that it left no thread and no descriptor behind.
void Repeat(int times, const std::function<void()>& cycle) {
  cycle();  // what the first one makes for good is not a leak
  const Resources before;
  for (int i = 0; i < times; ++i) cycle();
  // Joined threads and closed sockets may still show for a moment, after the first cycle too.
  CHECK(Eventually([&] { return Resources().AtMost(before); }));
}

// Closes and destroys, each within a watchdog of its own: the publisher's bound of 2.5 s, and time for a busy machine.
void End(std::unique_ptr<ZmqPublisher> publisher, milliseconds deadline, std::uint64_t submitted) {
  {
    const Watchdog watchdog("Close");
    publisher->Close(deadline);
  }
  CHECK(publisher->stats().queued == 0);
  CHECK(Balanced(publisher->stats(), submitted));
  const Watchdog watchdog("the destructor after Close");
  publisher.reset();
}

constexpr milliseconds kInTime(2000);
constexpr milliseconds kHurried(50);

TEST_CASE("J4: a thousand publishers come and go without a subscriber") {
  Repeat(1000, [] {
    Result<std::unique_ptr<ZmqPublisher>> publisher = ZmqPublisher::Create(LoopbackConfig(), {});
    REQUIRE(publisher);
    for (int i = 0; i < 3; ++i) static_cast<void>((*publisher)->Publish(StoreBatch(1)));
    End(*std::move(publisher), kInTime, 3);
  });
}

TEST_CASE("J4: a subscriber that does not read delays no end") {
  Repeat(25, [] {
    PublisherBench bench(LoopbackConfig(), {},
                         [](const KVEventBatch&, std::vector<std::uint8_t>* out) { out->resize(200'000); });
    const auto stalled = bench.Subscribe("test", 1);
    SequenceNumber next = Join(bench.publisher.get(), stalled.get());
    for (int i = 0; i < 100; ++i, ++next) static_cast<void>(bench.publisher->Publish(StoreBatch(1)));
    End(std::move(bench.publisher), kHurried, next);
  });
}

TEST_CASE("J4: a stalled subscriber delays no end of a publisher that owns its context") {
  const auto context = ZmqContext::Create();
  Repeat(25, [&] {
    KVEventsConfig config = LoopbackConfig();
    config.replay_endpoint.reset();
    Result<std::unique_ptr<ZmqPublisher>> publisher = ZmqPublisher::Create(
        config, {}, [](const KVEventBatch&, std::vector<std::uint8_t>* out) { out->resize(200'000); });
    REQUIRE(publisher);
    LinkOptions slow;
    slow.receive_hwm = 1;
    const auto stalled = ConnectTo(context, LinkKind::kSub, (*publisher)->source()->endpoint, slow);
    SequenceNumber next = Join(publisher->get(), stalled.get());
    for (int i = 0; i < 100; ++i, ++next) static_cast<void>((*publisher)->Publish(StoreBatch(1)));
    End(*std::move(publisher), kHurried, next);
  });
}

TEST_CASE("J4: a peer that never comes up delays no end") {
  Repeat(25, [] {
    KVEventsConfig config = LoopbackConfig();
    config.endpoint = "ipc:///tmp/kvwire-never-up";
    config.kvwire.mode = SocketMode::kConnect;
    Result<std::unique_ptr<ZmqPublisher>> publisher = ZmqPublisher::Create(config, {});
    REQUIRE(publisher);
    for (int i = 0; i < 10; ++i) static_cast<void>((*publisher)->Publish(StoreBatch(1)));
    End(*std::move(publisher), kInTime, 10);
  });
}

TEST_CASE("J4: a client in the middle of a replay delays no end") {
  Repeat(25, [] {
    KVEventsConfig config = LoopbackConfig();
    config.buffer_steps = 1000;
    PublisherBench bench(config, {}, [](const KVEventBatch&, std::vector<std::uint8_t>* out) { out->resize(20'000); });
    for (int i = 0; i < 500; ++i) static_cast<void>(bench.publisher->Publish(StoreBatch(1)));
    const auto dealer = bench.Dealer("slow", 1);
    Ask(dealer.get(), 0);
    REQUIRE(Eventually([&] { return dealer->TryReceive().has_value(); }));
    End(std::move(bench.publisher), kInTime, 500);
  });
}

}  // namespace
}  // namespace kvwire::test
