// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/publish_queue.h"

#include <atomic>
#include <thread>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/allocation_counter.h"
#include "tests/support/stream_support.h"

namespace kvwire::test {
namespace {

using Outcome = PublishQueue::Outcome;

PublishResult Push(PublishQueue* queue, std::uint64_t base = 0) {
  KVEventBatch batch = StoreBatch(1, base);
  return queue->Push(&batch);
}

std::vector<SequenceNumber> TakeAll(PublishQueue* queue) {
  std::vector<SequenceNumber> numbers;
  while (const QueuedBatch* queued = queue->Front()) {
    numbers.push_back(queued->number);
    queue->Finish(Outcome::kSent);
  }
  return numbers;
}

TEST_CASE("batches come out in order with their numbers and content") {
  PublishQueue queue({10, 1 << 20, 0});
  CHECK(queue.Front() == nullptr);
  for (std::uint64_t i = 0; i < 3; ++i) CHECK(Push(&queue, i * 100) == PublishResult::kAccepted);
  for (std::uint64_t i = 0; i < 3; ++i) {
    REQUIRE(queue.Front() != nullptr);
    CHECK(queue.Front()->number == i);
    CHECK(queue.Front()->batch == StoreBatch(1, i * 100));
    queue.Finish(Outcome::kSent);
  }
  CHECK(queue.Front() == nullptr);
  CHECK(Balanced(queue.stats(), 3));
}

TEST_CASE("A1: a full queue refuses at once, with one slot or eight") {
  for (const std::size_t capacity : {1u, 8u}) {
    CAPTURE(capacity);
    PublishQueue queue({capacity, 1 << 20, 0});
    std::size_t dropped = 0;
    for (std::size_t i = 0; i < capacity + 5; ++i) {
      if (Push(&queue) == PublishResult::kDroppedQueueFull) ++dropped;
    }
    CHECK(dropped == 5);
    CHECK(queue.stats().dropped_full == 5);
    CHECK(queue.stats().queued == capacity);
    CHECK(Balanced(queue.stats(), capacity + 5));
    CHECK(TakeAll(&queue) == Range(0, capacity - 1));
    CHECK(Push(&queue) == PublishResult::kAccepted);
  }
}

TEST_CASE("A2: the number of a refused batch is burnt") {
  PublishQueue queue({2, 1 << 20, 0});
  for (int i = 0; i < 6; ++i) static_cast<void>(Push(&queue));
  CHECK(TakeAll(&queue) == Range(0, 1));
  CHECK(Push(&queue) == PublishResult::kAccepted);
  CHECK(TakeAll(&queue) == Range(6, 6));
}

TEST_CASE("numbers start where they are told to") {
  PublishQueue queue({10, 1 << 20, 1});
  CHECK(Push(&queue) == PublishResult::kAccepted);
  CHECK(TakeAll(&queue) == Range(1, 1));
}

TEST_CASE("the bytes are bounded beside the count") {
  const std::size_t one = sizeof(QueuedBatch) + StoreBatch(1).ByteSize();
  PublishQueue queue({1000, 3 * one, 0});
  for (int i = 0; i < 3; ++i) CHECK(Push(&queue) == PublishResult::kAccepted);
  CHECK(Push(&queue) == PublishResult::kDroppedQueueFull);
  CHECK(queue.stats().queued_bytes == 3 * one);
  queue.Front();
  queue.Finish(Outcome::kSent);
  CHECK(Push(&queue) == PublishResult::kAccepted);
  CHECK(Balanced(queue.stats(), 5));
  TakeAll(&queue);
  CHECK(queue.stats().queued_bytes == 0);

  PublishQueue tiny({1000, 1, 0});
  CHECK(Push(&tiny) == PublishResult::kDroppedQueueFull);
}

TEST_CASE("a batch counts as queued until it is finished") {
  PublishQueue queue({1, 1 << 20, 0});
  CHECK(Push(&queue) == PublishResult::kAccepted);
  REQUIRE(queue.Front() != nullptr);
  CHECK(queue.stats().queued == 1);
  CHECK(Push(&queue) == PublishResult::kDroppedQueueFull);
  queue.Finish(Outcome::kError);
  CHECK(queue.stats().queued == 0);
  CHECK(queue.stats().dropped_error == 1);
  CHECK(Balanced(queue.stats(), 2));
}

TEST_CASE("a closed queue refuses, and what is in it can still be taken") {
  PublishQueue queue({10, 1 << 20, 0});
  CHECK(Push(&queue) == PublishResult::kAccepted);
  queue.Close();
  CHECK(Push(&queue) == PublishResult::kDroppedClosed);
  CHECK(queue.stats().dropped_closed == 1);
  CHECK(TakeAll(&queue) == Range(0, 0));
  CHECK(Balanced(queue.stats(), 2));
}

TEST_CASE("dropping all counts every batch") {
  PublishQueue queue({10, 1 << 20, 0});
  for (int i = 0; i < 4; ++i) static_cast<void>(Push(&queue));
  queue.Front();
  queue.DropAll();
  CHECK(queue.Front() == nullptr);
  CHECK(queue.stats().dropped_closed == 4);
  CHECK(Balanced(queue.stats(), 4));
}

TEST_CASE("the batch handed over is empty afterwards, whatever became of it") {
  PublishQueue queue({1, 1 << 20, 0});
  for (const PublishResult expected : {PublishResult::kAccepted, PublishResult::kDroppedQueueFull}) {
    KVEventBatch batch = StoreBatch(2);
    batch.data_parallel_rank = 3;
    CHECK(queue.Push(&batch) == expected);
    CHECK(batch == KVEventBatch());
    batch.Add(AllBlocksCleared{});  // and fit for use
    CHECK(batch.size() == 1);
  }
  queue.Close();
  KVEventBatch batch = StoreBatch(2);
  CHECK(queue.Push(&batch) == PublishResult::kDroppedClosed);
  CHECK(batch.empty());
}

TEST_CASE("a spare is empty and fit for use, with or without a batch to recycle") {
  PublishQueue queue({10, 1 << 20, 0});
  CHECK(queue.TakeSpare() == KVEventBatch());
  for (int round = 0; round < 5; ++round) {
    CHECK(Push(&queue) == PublishResult::kAccepted);
    TakeAll(&queue);
    KVEventBatch spare = queue.TakeSpare();
    CHECK(spare == KVEventBatch());
    spare = StoreBatch(3, 7);
    CHECK(queue.Push(&spare) == PublishResult::kAccepted);
    REQUIRE(queue.Front() != nullptr);
    CHECK(queue.Front()->batch == StoreBatch(3, 7));
    queue.Finish(Outcome::kSent);
  }
  CHECK(Balanced(queue.stats(), 10));
}

TEST_CASE("a burst beyond the spares comes out whole and the queue goes on") {
  PublishQueue queue({10000, std::size_t{1} << 30, 0});
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 5000; ++i) REQUIRE(Push(&queue) == PublishResult::kAccepted);
    const auto first = static_cast<SequenceNumber>(round) * 5000;
    CHECK(TakeAll(&queue) == Range(first, first + 4999));
  }
  CHECK(Balanced(queue.stats(), 15000));
}

TEST_CASE("handing over allocates nothing once the memory goes round") {
  PublishQueue queue({100, 1 << 20, 0});
  const KVEventBatch model = StoreBatch(50);
  const BlockStored event = std::get<BlockStored>(model.at(0));
  const auto round = [&](bool take_spare) {
    for (int i = 0; i < 10; ++i) {
      KVEventBatch batch = take_spare ? queue.TakeSpare() : KVEventBatch();
      if (take_spare) batch.Add(event);
      static_cast<void>(queue.Push(&batch));
    }
    while (queue.Front() != nullptr) queue.Finish(Outcome::kSent);
  };
  for (const bool take_spare : {false, true}) {
    CAPTURE(take_spare);
    for (int i = 0; i < 20; ++i) round(take_spare);
    const std::size_t before = AllocationCount();
    for (int i = 0; i < 100; ++i) round(take_spare);
    CHECK(AllocationCount() == before);
  }
}

PublishResult PushChunk(PublishQueue* queue, std::uint64_t base = 0) {
  StateChunk chunk{StoreBatch(1, base), 3, true, true};
  return queue->PushChunk(&chunk);
}

TEST_CASE("C9: chunks come out in order among the batches, with the number drawn next and none of their own") {
  PublishQueue queue({10, 1 << 20, 5});
  CHECK(PushChunk(&queue, 100) == PublishResult::kAccepted);
  CHECK(Push(&queue) == PublishResult::kAccepted);
  CHECK(PushChunk(&queue, 200) == PublishResult::kAccepted);
  CHECK(Push(&queue) == PublishResult::kAccepted);
  struct Expected {
    QueuedBatch::Kind kind;
    SequenceNumber number;
  };
  using enum QueuedBatch::Kind;
  for (const Expected& expected : {Expected{kChunk, 5}, {kBatch, 5}, {kChunk, 6}, {kBatch, 6}}) {
    const QueuedBatch* queued = queue.Front();
    REQUIRE(queued != nullptr);
    CHECK(queued->kind == expected.kind);
    CHECK(queued->number == expected.number);
    if (expected.kind == kChunk) {
      CHECK(queued->walk == 3);
      CHECK(queued->first);
      CHECK(queued->last);
    }
    queue.Finish(Outcome::kSent);
  }
  CHECK(queue.stats().chunks == 2);
  CHECK(queue.stats().last_number == 6);
  CHECK(Balanced(queue.stats(), 2));
}

TEST_CASE("chunks share the bounds with the batches, keep their content when refused, and are counted apart") {
  PublishQueue queue({2, 1 << 20, 0});
  CHECK(PushChunk(&queue) == PublishResult::kAccepted);
  CHECK(Push(&queue) == PublishResult::kAccepted);
  StateChunk refused{StoreBatch(1, 7), 1, false, false};
  CHECK(queue.PushChunk(&refused) == PublishResult::kDroppedQueueFull);
  CHECK(refused.blocks == StoreBatch(1, 7));
  CHECK(queue.stats().chunks_queued == 1);
  CHECK(queue.stats().queued == 1);
  CHECK(Push(&queue) == PublishResult::kDroppedQueueFull);
  queue.Close();
  CHECK(queue.PushChunk(&refused) == PublishResult::kDroppedClosed);
  queue.DropAll();
  CHECK(queue.stats().chunks_queued == 0);
  CHECK(queue.stats().chunks_dropped == 3);
  CHECK(queue.stats().chunks == 0);
  CHECK(queue.stats().queued_bytes == 0);
  CHECK(Balanced(queue.stats(), 2));
}

TEST_CASE("there is room below half of the count and half of the bytes") {
  PublishQueue queue({4, 1 << 20, 0});
  CHECK(queue.HasRoom());
  static_cast<void>(Push(&queue));
  CHECK(queue.HasRoom());
  static_cast<void>(PushChunk(&queue));
  CHECK_FALSE(queue.HasRoom());
  queue.Front();
  CHECK_FALSE(queue.HasRoom());
  queue.Finish(Outcome::kSent);
  CHECK(queue.HasRoom());

  PublishQueue tight({1000, 2 * (sizeof(QueuedBatch) + StoreBatch(1).ByteSize()), 0});
  CHECK(tight.HasRoom());
  static_cast<void>(Push(&tight));
  CHECK_FALSE(tight.HasRoom());
  CHECK(PublishQueue({1, 1 << 20, 0}).HasRoom());
}

TEST_CASE("J5: a heartbeat's number is the next one, and only while nothing is queued") {
  PublishQueue queue({1, 1 << 20, 7});
  CHECK(queue.TakeNumber(std::nullopt) == 7);
  CHECK(Push(&queue) == PublishResult::kAccepted);
  CHECK_FALSE(queue.TakeNumber(std::nullopt));
  REQUIRE(queue.Front() != nullptr);
  CHECK(queue.Front()->number == 8);
  CHECK_FALSE(queue.TakeNumber(std::nullopt));
  CHECK(Push(&queue) == PublishResult::kDroppedQueueFull);  // burns 9
  queue.Finish(Outcome::kSent);
  CHECK_FALSE(queue.TakeNumber(9));  // whoever insists on no gap gets none
  CHECK(queue.TakeNumber(std::nullopt) == 10);
  CHECK(queue.TakeNumber(11) == 11);
  CHECK(Push(&queue) == PublishResult::kAccepted);
  CHECK(queue.Front()->number == 12);
  CHECK(queue.stats().heartbeats == 3);
  CHECK(queue.stats().last_number == 12);
  CHECK(Balanced(queue.stats(), 3));
}

TEST_CASE("J5: two threads draw every number once, whoever is first") {
  constexpr std::uint64_t kBatches = 20000;
  PublishQueue queue({4, 1 << 20, 0});
  std::atomic<bool> done{false};
  std::vector<SequenceNumber> numbers;
  std::thread publisher([&] {
    while (true) {
      const bool last_look = done.load();
      if (const QueuedBatch* queued = queue.Front()) {
        if (queued->kind == QueuedBatch::Kind::kBatch) numbers.push_back(queued->number);
        queue.Finish(Outcome::kSent);
      } else if (const std::optional<SequenceNumber> number = queue.TakeNumber(std::nullopt)) {
        numbers.push_back(*number);
      }
      if (last_look && queue.Front() == nullptr) return;
    }
  });
  std::uint64_t refused = 0;
  for (std::uint64_t i = 0; i < kBatches; ++i) {
    if (Push(&queue) != PublishResult::kAccepted) ++refused;
    if (i % 7 == 0) static_cast<void>(PushChunk(&queue));
  }
  done = true;
  publisher.join();
  for (std::size_t i = 1; i < numbers.size(); ++i) REQUIRE(numbers[i] > numbers[i - 1]);
  CHECK(queue.next_number() == numbers.size() + refused);
  CHECK(queue.stats().heartbeats == numbers.size() - (kBatches - refused));
  CHECK(Balanced(queue.stats(), kBatches));
}

TEST_CASE("two threads pass every batch once, in order, and the counts agree whenever somebody looks") {
  constexpr std::uint64_t kBatches = 20000;
  PublishQueue queue({64, 1 << 20, 0});
  std::atomic<bool> done{false};
  std::vector<SequenceNumber> taken;
  std::thread consumer([&] {
    while (true) {
      const bool last_look = done.load();
      if (const QueuedBatch* queued = queue.Front()) {
        CHECK(queued->batch.size() == 1);
        taken.push_back(queued->number);
        queue.Finish(Outcome::kSent);
      } else if (last_look) {
        return;
      }
    }
  });
  std::atomic<std::uint64_t> unbalanced{0};
  std::thread observer([&] {
    while (!done.load()) {
      const PublisherStats stats = queue.stats();
      if (!Balanced(stats, stats.submitted) || stats.queued > kBatches) ++unbalanced;
    }
  });
  std::uint64_t accepted = 0;
  for (std::uint64_t i = 0; i < kBatches; ++i) {
    KVEventBatch batch = queue.TakeSpare();
    batch.Add(AllBlocksCleared{});
    if (queue.Push(&batch) == PublishResult::kAccepted) ++accepted;
  }
  done = true;
  consumer.join();
  observer.join();
  CHECK(unbalanced == 0);
  CHECK(taken.size() == accepted);
  for (std::size_t i = 1; i < taken.size(); ++i) REQUIRE(taken[i] > taken[i - 1]);
  CHECK(queue.stats().sent == accepted);
  CHECK(Balanced(queue.stats(), kBatches));
}

}  // namespace
}  // namespace kvwire::test
