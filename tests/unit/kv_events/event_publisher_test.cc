// SPDX-License-Identifier: Apache-2.0
#include "kv_events/event_publisher.h"

#include <chrono>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "tests/unit/kv_events/event_builders.h"

namespace kvwire {
namespace {

bool Adds(const PublisherStats& stats) {
  return stats.submitted == stats.sent + stats.dropped_full + stats.dropped_error + stats.dropped_closed + stats.queued;
}

KVEventBatch BatchOf(std::uint64_t hash) {
  KVEventBatch batch;
  batch.ts = 1.5;
  batch.Add(StoredEvent({hash}).view());
  return batch;
}

TEST_CASE("The null publisher accepts and forgets") {
  NullEventPublisher publisher;
  CHECK(publisher.Publish(BatchOf(1)) == PublishResult::kAccepted);
  publisher.Wake();
  CHECK(publisher.stats() == PublisherStats());
  CHECK_FALSE(publisher.source().has_value());
  publisher.Close();
  publisher.Close();
  CHECK(publisher.Publish(BatchOf(1)) == PublishResult::kAccepted);
  CHECK(publisher.TakeSpare().empty());
}

TEST_CASE("The collecting publisher keeps batches in order and stamps its rank where none is") {
  CollectingEventPublisher publisher(2);
  KVEventBatch ranked = BatchOf(2);
  ranked.data_parallel_rank = 7;
  CHECK(publisher.Publish(BatchOf(1)) == PublishResult::kAccepted);
  CHECK(publisher.Publish(std::move(ranked)) == PublishResult::kAccepted);
  REQUIRE(publisher.batches().size() == 2);
  CHECK(publisher.batches()[0].data_parallel_rank == 2);
  CHECK(publisher.batches()[1].data_parallel_rank == 7);
  KVEventBatch expected = BatchOf(1);
  expected.data_parallel_rank = 2;
  CHECK(publisher.batches()[0] == expected);
  CHECK_FALSE(publisher.source().has_value());
}

TEST_CASE("TakeBatches hands the batches over once") {
  CollectingEventPublisher publisher;
  CHECK(publisher.Publish(BatchOf(1)) == PublishResult::kAccepted);
  CHECK(publisher.TakeBatches().size() == 1);
  CHECK(publisher.batches().empty());
  CHECK(publisher.stats().sent == 1);
}

TEST_CASE("The collecting publisher's counters add up, before and after Close") {
  CollectingEventPublisher publisher;
  CHECK(Adds(publisher.stats()));
  CHECK(publisher.Publish(BatchOf(1)) == PublishResult::kAccepted);
  CHECK(Adds(publisher.stats()));
  CHECK_FALSE(publisher.closed());
  publisher.Close(std::chrono::milliseconds(0));
  CHECK(publisher.closed());
  publisher.Close();
  CHECK(publisher.Publish(BatchOf(2)) == PublishResult::kDroppedClosed);
  CHECK(Adds(publisher.stats()));
  CHECK(publisher.stats().submitted == 2);
  CHECK(publisher.stats().sent == 1);
  CHECK(publisher.stats().dropped_closed == 1);
  CHECK(publisher.batches().size() == 1);
}

}  // namespace
}  // namespace kvwire
