// SPDX-License-Identifier: Apache-2.0
// C5: clients of the replay that take one message a millisecond and have no room for more than ten.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/publisher_bench.h"

namespace kvwire::test {
namespace {

using std::chrono::milliseconds;

constexpr int kReceiveHwm = 10;

// Clients side by side, each until its end mark; stops when no message comes for five seconds.
std::vector<std::vector<Replayed>> ReadSlowly(const std::vector<std::unique_ptr<ZmqLink>>& dealers) {
  std::vector<std::vector<Replayed>> answers(dealers.size());
  const auto ended = [&](std::size_t i) { return !answers[i].empty() && answers[i].back().end; };
  for (std::size_t open = dealers.size(); open > 0;) {
    const bool came = Eventually([&] {
      bool any = false;
      for (std::size_t i = 0; i < dealers.size(); ++i) {
        if (ended(i)) continue;
        std::optional<Replayed> message = ReceiveReplayed(dealers[i].get());
        if (!message) continue;
        any = true;
        answers[i].push_back(*std::move(message));
        if (ended(i)) --open;
      }
      return any;
    });
    if (!came) break;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return answers;
}

struct FilledBench {
  explicit FilledBench(std::uint64_t count) : batches(count), bench(Config(count), {}, Wide()) {
    for (std::uint64_t i = 0; i < count; ++i) {
      REQUIRE(bench.publisher->Publish(KVEventBatch()) == PublishResult::kAccepted);
    }
    REQUIRE(bench.Settled());
  }
  static KVEventsConfig Config(std::uint64_t batches) {
    KVEventsConfig config = LoopbackConfig();
    config.buffer_steps = static_cast<std::int64_t>(batches);
    return config;
  }
  static PublisherAgent::EncodeFunction Wide() {
    return [](const KVEventBatch&, std::vector<std::uint8_t>* out) { out->resize(4096, 1); };
  }
  // All that is buffered, in order, and the end, to each client.
  void CheckServesSlowly(std::size_t clients) const {
    std::vector<std::unique_ptr<ZmqLink>> dealers;
    for (std::size_t i = 0; i < clients; ++i) {
      dealers.push_back(bench.Dealer("", kReceiveHwm));
      Ask(dealers.back().get(), 0);
    }
    for (const std::vector<Replayed>& messages : ReadSlowly(dealers)) {
      REQUIRE_FALSE(messages.empty());
      CHECK(messages.back().end);
      CHECK(Numbers(messages) == Range(0, batches - 1));
    }
    CHECK(bench.publisher->stats().replay_dropped == 0);
  }

  const std::uint64_t batches;
  PublisherBench bench;
};

TEST_CASE("C5: a slow client gets all ten thousand batches in order, and the end") {
  FilledBench(10'000).CheckServesSlowly(1);
}

TEST_CASE("C5: slow clients get everything, four at once, in each of twenty runs") {
  const FilledBench filled(500);
  for (int run = 0; run < 20; run += 4) {
    CAPTURE(run);
    filled.CheckServesSlowly(4);
  }
}

}  // namespace
}  // namespace kvwire::test
