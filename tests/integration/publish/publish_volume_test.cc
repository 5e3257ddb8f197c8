// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/publisher_bench.h"

namespace kvwire::test {
namespace {

TEST_CASE("ten thousand batches of a hundred events arrive whole and in order") {
  constexpr SequenceNumber kBatches = 10000;
  KVEventsConfig config = LoopbackConfig();
  config.hwm = 0;
  PublisherBench bench(config);
  const auto subscriber = bench.Subscribe("test", 0);
  const SequenceNumber first = Join(bench.publisher.get(), subscriber.get());
  std::vector<SequenceNumber> numbers;
  const auto read = [&] {
    while (const std::optional<Live> live = ReceiveLive(subscriber.get())) numbers.push_back(live->number);
  };
  for (SequenceNumber i = 0; i < kBatches; ++i) {
    KVEventBatch batch = StoreBatch(100, i * 100);
    REQUIRE(bench.publisher->Publish(std::move(batch)) == PublishResult::kAccepted);
    if (i % 100 == 0) read();
  }
  std::size_t before = 0;
  do {
    before = numbers.size();
    Eventually([&] {
      read();
      return numbers.size() >= before + 100 || numbers.size() >= kBatches;
    });
  } while (numbers.size() < kBatches && numbers.size() > before);
  CHECK(numbers == Range(first, first + kBatches - 1));
  CHECK(Balanced(bench.publisher->stats(), first + kBatches));
}

TEST_CASE("C5: a slow replay client gets everything in order while live batches go on") {
  constexpr SequenceNumber kBatches = 10000;
  KVEventsConfig config = LoopbackConfig();
  config.buffer_steps = 20000;
  PublisherBench bench(config, {}, [](const KVEventBatch&, std::vector<std::uint8_t>* out) { out->resize(4096, 1); });
  for (SequenceNumber i = 0; i < kBatches; ++i) {
    REQUIRE(bench.publisher->Publish(KVEventBatch()) == PublishResult::kAccepted);
  }
  REQUIRE(bench.Settled());
  const auto subscriber = bench.Subscribe("test");
  SequenceNumber next = Join(bench.publisher.get(), subscriber.get(), kBatches);
  const auto slow = bench.Dealer("slow", 10);
  Ask(slow.get(), 0);
  std::vector<Replayed> replayed;
  std::size_t live_batches = 0;
  REQUIRE(Eventually([&] {
    std::optional<Replayed> first = ReceiveReplayed(slow.get());
    if (first) replayed.push_back(std::move(*first));
    return !replayed.empty();
  }));
  // The reader takes few messages at a time, and each time a live batch passes by.
  bool progress = true;
  while (progress && !replayed.back().end) {
    const std::size_t before = replayed.size();
    progress = Eventually([&] {
      if (std::optional<Replayed> message = ReceiveReplayed(slow.get())) replayed.push_back(std::move(*message));
      return replayed.back().end || replayed.size() >= before + 20;
    });
    REQUIRE(bench.publisher->Publish(KVEventBatch()) == PublishResult::kAccepted);
    ++next;
    const std::vector<Live> live = ReadLive(subscriber.get(), 1);
    REQUIRE(live.size() == 1);
    CHECK(live[0].number == next - 1);
    ++live_batches;
  }
  REQUIRE(replayed.back().end);
  const std::vector<SequenceNumber> numbers = Numbers(replayed);
  CHECK(numbers.size() >= kBatches);
  CHECK(numbers == Range(0, numbers.size() - 1));
  CHECK(live_batches >= 400);
  CHECK(bench.publisher->stats().replay_dropped == 0);
  CHECK(Balanced(bench.publisher->stats(), next));
}

}  // namespace
}  // namespace kvwire::test
