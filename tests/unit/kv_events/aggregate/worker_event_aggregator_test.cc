// SPDX-License-Identifier: Apache-2.0
#include "kv_events/aggregate/worker_event_aggregator.h"

#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/allocation_counter.h"
#include "tests/unit/kv_events/aggregate/worker_reports.h"

namespace kvwire {
namespace {

TEST_CASE("G1: one of two workers reporting an event twice publishes nothing") {
  Workers w(2);
  w.Add(0, Report().Store({1}).Store({1}));
  w.Add(1, Report());
  CHECK(w.Take() == "");
  CHECK(w.stats().duplicates == 1);
  CHECK(w.stats().pending == 1);
}

TEST_CASE("G1: an event reported three times by two workers is published once") {
  Workers w(2);
  w.Add(0, Report().Store({1}).Store({1}));
  w.Add(1, Report().Store({1}));
  CHECK(w.Take() == "S1");
  CHECK(w.Take() == "");
  CHECK(w.stats().published == 1);
}

TEST_CASE("G1: events that two workers report in different orders come in the order of the first") {
  Workers w(2);
  SUBCASE("the first worker's report comes first") {
    w.Add(0, Report().Store({1}).Store({2}));
    w.Add(1, Report().Store({2}).Store({1}));
  }
  SUBCASE("the second worker's report comes first") {
    w.Add(1, Report().Store({2}).Store({1}));
    w.Add(0, Report().Store({1}).Store({2}));
  }
  CHECK(w.Take() == "S1 S2");
}

TEST_CASE("G1: a clear and an event that both workers report are a clear, then the event") {
  Workers w(2);
  w.Add(0, Report().Clear().Store({1}));
  w.Add(1, Report().Clear().Store({1}));
  CHECK(w.Take() == "C S1");
  CHECK(w.Take() == "");
  CHECK(w.stats().cleared == 1);
}

TEST_CASE("what the stream took back by itself is not removed again, and is announced when all workers have it again") {
  Workers w(2);
  w.Add(0, Report().Store({1, 2}));
  w.Add(1, Report().Store({1, 2}));
  CHECK(w.Take() == "S1,2");
  const RemovedEvent event({1, 9});
  BlockRemoved retracted = event.view();
  retracted.medium = kMediumCpu;
  SUBCASE("it is gone") {
    for (const std::uint32_t worker : {0, 1}) w.Add(worker, Report().Remove({1, 2}));
    w.aggregator->Retract(retracted);
    CHECK(w.Take() == "R2");
  }
  SUBCASE("it is gone, and stored again before the next Take") {
    for (const std::uint32_t worker : {0, 1}) w.Add(worker, Report().Remove({1, 2}));
    w.aggregator->Retract(retracted);
    for (const std::uint32_t worker : {0, 1}) w.Add(worker, Report().Store({1, 2}));
    CHECK(w.Take() == "R2 S1,2");
  }
  SUBCASE("it is complete") {
    w.aggregator->Retract(retracted);
    CHECK(w.Take() == "S1");
  }
}

TEST_CASE("G1: a clear that one of two workers reports twice is no clear") {
  Workers w(2);
  w.Add(0, Report().Clear().Clear());
  w.Add(1, Report());
  CHECK(w.Take() == "");
  w.Add(1, Report().Clear());
  CHECK(w.Take() == "C");
  // The second clear of the first worker was the same one.
  w.Add(1, Report().Clear());
  CHECK(w.Take() == "");
}

TEST_CASE("G1: an event before a worker's clear never completes with one after another's") {
  Workers w(2);
  SUBCASE("before the first worker's, after the second worker's") {
    w.Add(0, Report().Store({1}).Clear());
    w.Add(1, Report().Clear().Store({1}));
    CHECK(w.Take() == "C");
  }
  SUBCASE("after the first worker's, before the second worker's") {
    w.Add(0, Report().Clear().Store({1}));
    w.Add(1, Report().Store({1}).Clear());
    CHECK(w.Take() == "C");
  }
  SUBCASE("before both") {
    w.Add(0, Report().Store({1}).Clear());
    w.Add(1, Report().Store({1}).Clear());
    CHECK(w.Take() == "C");
  }
  SUBCASE("before the clear of one that the other never reports") {
    w.Add(0, Report().Store({1}).Clear());
    w.Add(1, Report().Store({1}));
    CHECK(w.Take() == "");
  }
}

TEST_CASE("G1: a clear of one worker takes back at once what was announced, the others' makes it a clear") {
  Workers w(2);
  w.Add(0, Report().Store({1, 2}));
  w.Add(1, Report().Store({1, 2}));
  CHECK(w.Take() == "S1,2");
  w.Add(0, Report().Clear());
  CHECK(w.Take() == "R1,2");
  w.Add(1, Report().Clear());
  CHECK(w.Take() == "C");
}

TEST_CASE("G1: an event that one of three workers is missing is not published and stays pending") {
  Workers w(3);
  w.Add(0, Report().Store({1}));
  w.Add(2, Report().Store({1}));
  CHECK(w.Take() == "");
  CHECK(w.stats().pending == 1);
  CHECK(w.stats().pending_bytes > 0);
}

TEST_CASE("G1: an event that one of three workers is missing is discarded when late workers are not awaited") {
  auto options = Workers::OptionsFor(3);
  options.late_workers = LateWorkers::kDiscard;
  Workers w(std::move(options));
  w.Add(0, Report().Store({1}));
  w.Add(2, Report().Store({1}));
  CHECK(w.Take() == "");
  CHECK(w.stats().pending == 0);
  CHECK(w.stats().discarded == 1);
  w.Add(1, Report().Store({1}));
  CHECK(w.Take() == "");
  // What was complete once is no late worker's event.
  for (const std::uint32_t worker : {0u, 1u, 2u}) w.Add(worker, Report().Store({2}));
  CHECK(w.Take() == "S2");
  w.Add(1, Report().Remove({2}));
  CHECK(w.Take() == "R2");
  w.Add(1, Report().Store({2}));
  CHECK(w.Take() == "S2");
}

TEST_CASE("G2: of four workers with replication 2, two publish an event and one does not") {
  Workers w(4, 2);
  w.Add(1, Report().Store({1}));
  w.Add(3, Report().Store({2}).Store({1}));
  CHECK(w.Take() == "S1");
  CHECK(w.stats().pending == 1);
  // A third one changes nothing.
  w.Add(0, Report().Store({1}));
  CHECK(w.Take() == "");
}

TEST_CASE("G2: the same worker twice is not two of a replicated pair") {
  Workers w(4, 2);
  w.Add(1, Report().Store({1}).Store({1}));
  CHECK(w.Take() == "");
}

TEST_CASE("G2: with replication as large as the number of workers one report is enough") {
  Workers w(4, 4);
  w.Add(3, Report().Store({1}));
  CHECK(w.Take() == "S1");
}

TEST_CASE("G2: replication is set per group") {
  auto options = Workers::OptionsFor(4);
  options.group_replication = {{1, 2}, {2, 4}};
  Workers w(std::move(options));
  w.Add(0, Report().Store({1}).Store({2}, std::nullopt, 1).Store({3}, std::nullopt, 2));
  CHECK(w.Take() == "g2:S3");
  w.Add(1, Report().Store({1}).Store({2}, std::nullopt, 1));
  CHECK(w.Take() == "g1:S2");
  w.Add(2, Report().Store({1}));
  w.Add(3, Report().Store({1}));
  CHECK(w.Take() == "S1");
}

TEST_CASE("G2: a replicated block is removed when fewer workers than needed have it, and not before") {
  Workers w(4, 2);
  for (const std::uint32_t worker : {0u, 1u, 2u}) w.Add(worker, Report().Store({1}));
  CHECK(w.Take() == "S1");
  w.Add(0, Report().Remove({1}));
  CHECK(w.Take() == "");
  w.Add(2, Report().Remove({1}));
  CHECK(w.Take() == "R1");
  w.Add(1, Report().Remove({1}));
  CHECK(w.Take() == "");
}

TEST_CASE("G2: what is complete when the last worker clears is announced again after the clear") {
  Workers w(4, 2);
  w.Add(0, Report().Clear().Store({1}));
  w.Add(1, Report().Clear().Store({1}));
  CHECK(w.Take() == "S1");
  w.Add(2, Report().Clear());
  w.Add(3, Report().Clear());
  CHECK(w.Take() == "C S1");
}

TEST_CASE("G2: a parent precedes its child when different workers store them") {
  Workers w(4, 2);
  w.Add(3, Report().Store({2}, 1));
  w.Add(2, Report().Store({2}, 1));
  w.Add(1, Report().Store({3}, 2));
  w.Add(0, Report().Store({1}).Store({3}, 2));
  w.Add(1, Report().Store({1}));
  CHECK(w.Take() == "S1 S2(1) S3(2)");
}

TEST_CASE("G2: one worker's own order is kept, also when it tells a child before its parent") {
  Workers w(4, 2);
  for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, Report().Store({2}, 1).Store({1}));
  CHECK(w.Take() == "S2(1) S1");
}

TEST_CASE("G2: parents in a circle end the climb") {
  Workers w(4, 2);
  w.Add(3, Report().Store({2}, 1));
  w.Add(2, Report().Store({2}, 1));
  w.Add(0, Report().Store({1}, 2));
  w.Add(1, Report().Store({1}, 2));
  CHECK(w.Take() == "S1(2) S2(1)");
}

TEST_CASE("G3: a worker that reports a step later gives one publication, at the later step") {
  Workers w(3);
  w.Add(0, Report().Store({1}));
  w.Add(1, Report().Store({1}));
  CHECK(w.Take() == "");
  w.Add(0, Report().Store({2}));
  w.Add(1, Report().Store({2}));
  w.Add(2, Report().Store({1}));
  CHECK(w.Take() == "S1");
  CHECK(w.Take() == "");
  w.Add(2, Report().Store({2}));
  CHECK(w.Take() == "S2");
  CHECK(w.stats().pending == 0);
}

TEST_CASE("G3: a second take is empty") {
  Workers w(1);
  w.Add(0, Report().Store({1}));
  CHECK(w.Take() == "S1");
  CHECK(w.Take() == "");
  w.Add(0, Report().Remove({1}));
  CHECK(w.Take() == "R1");
  CHECK(w.Take() == "");
  w.Add(0, Report().Clear());
  CHECK(w.Take() == "C");
  CHECK(w.Take() == "");
}

TEST_CASE("G1: consequence 1, workers that report nothing count as missing") {
  Workers w(4);
  w.Add(0, Report().Store({1}));
  for (const std::uint32_t worker : {1u, 2u, 3u}) w.Add(worker, Report());
  CHECK(w.Take() == "");
}

TEST_CASE("G1: consequence 2, one worker's repetition does not stand in for another worker") {
  Workers w(2);
  w.Add(0, Report().Store({1}).Store({1}));
  w.Add(1, Report().Store({2}));
  CHECK(w.Take() == "");
}

TEST_CASE("G1: consequence 3, a repetition does not lose an event that all workers reported") {
  Workers w(2);
  w.Add(0, Report().Store({1}).Store({1}));
  w.Add(1, Report().Store({1}));
  CHECK(w.Take() == "S1");
}

TEST_CASE("G1: consequence 4, events of two steps before one take are all published") {
  Workers w(2);
  for (const std::uint64_t step : {1u, 2u}) {
    for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, Report().Store({step}));
  }
  CHECK(w.Take() == "S1 S2");
}

TEST_CASE("G1: a block that one worker loses is removed at once, and once, and comes back when that worker has it") {
  Workers w(2);
  w.Add(0, Report().Store({1}));
  w.Add(1, Report().Store({1}));
  CHECK(w.Take() == "S1");
  w.Add(1, Report().Remove({1}));
  CHECK(w.Take() == "R1");
  w.Add(0, Report().Remove({1}));
  CHECK(w.Take() == "");
  w.Add(1, Report().Store({1}));
  CHECK(w.Take() == "");
  w.Add(0, Report().Store({1}));
  CHECK(w.Take() == "S1");
  CHECK(w.stats().removed == 1);
  CHECK(w.stats().published == 2);
}

TEST_CASE("G1: stored, removed and stored again by one worker is one holding") {
  Workers w(2);
  w.Add(0, Report().Store({1}).Remove({1}).Store({1}));
  CHECK(w.Take() == "");
  w.Add(1, Report().Store({1}));
  CHECK(w.Take() == "S1");
  // Lost and regained between two takes: nothing changed for who listens.
  w.Add(1, Report().Remove({1}).Store({1}));
  CHECK(w.Take() == "");
}

TEST_CASE("G1: what all its workers lose and regain between two takes is removed, then stored, in one batch") {
  Workers w(2);
  for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, Report().Store({1, 2, 3}));
  CHECK(w.Take() == "S1,2,3");
  for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, Report().Remove({1, 2}));
  SUBCASE("as one event") {
    for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, Report().Store({1, 2}));
    CHECK(w.Take() == "R1,2 S1,2");
  }
  SUBCASE("the child first") {
    for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, Report().Store({2}, 1).Store({1}));
    CHECK(w.Take() == "R1,2 S2(1) S1");
  }
  SUBCASE("only by one of them") {
    w.Add(0, Report().Store({1, 2}));
    CHECK(w.Take() == "R1,2");
  }
  CHECK(w.Take() == "");
}

TEST_CASE("G4: a removal in the lower tier is published") {
  Workers w(2);
  for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, Report().Store({1, 2, 3}));
  CHECK(w.Take() == "S1,2,3");
  for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, Report().Remove({3, 2}));
  CHECK(w.Take() == "R3,2");
  CHECK(w.stats().available == 1);
}

TEST_CASE("G1: a removal of what the worker does not hold changes nothing and is counted") {
  Workers w(2);
  w.Add(0, Report().Store({1}));
  w.Add(1, Report().Remove({1, 2}));
  CHECK(w.Take() == "");
  w.Add(1, Report().Store({1}));
  CHECK(w.Take() == "S1");
  CHECK(w.stats().unknown_removals == 2);
}

TEST_CASE("G1: blocks of one event stay one event as far as all workers have them") {
  Workers w(2);
  w.Add(0, Report().Store({1, 2, 3, 4, 5}, 9).Store({6}, 5));
  w.Add(1, Report().Store({1, 2}, 9).Store({4}, 3).Store({5, 6}, 4));
  CHECK(w.Take() == "S1,2(9) S4,5(3) S6(5)");
}

TEST_CASE("G1: removals precede stores in a batch") {
  Workers w(1);
  w.Add(0, Report().Store({1}));
  CHECK(w.Take() == "S1");
  w.Add(0, Report().Store({2}).Remove({1}));
  CHECK(w.Take() == "R1 S2");
}

TEST_CASE("G1: the same hash in two groups or media is two blocks") {
  Workers w(2);
  w.Add(0, Report().Store({1}));
  w.Add(1, Report().Store({1}, std::nullopt, 1));
  CHECK(w.Take() == "");
  const StoredEvent event({1});
  BlockStored stored = event.view();
  stored.medium = kMediumStorage;
  w.Add(1, Report().Store(stored));
  CHECK(w.Take() == "");
  stored.medium = "cpu";
  stored.group_idx = 0;
  w.Add(1, Report().Store(stored));
  CHECK(w.Take() == "S1");
}

TEST_CASE("Clears as removals: what was announced is removed, AllBlocksCleared is not published") {
  auto options = Workers::OptionsFor(2);
  options.clears = WorkerClears::kAsRemovals;
  Workers w(std::move(options));
  for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, Report().Store({1, 2}));
  CHECK(w.Take() == "S1,2");
  for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, Report().Clear().Store({3}));
  CHECK(w.Take() == "R1,2 S3");
  CHECK(w.stats().cleared == 0);
}

TEST_CASE("A lost worker's blocks are removed, and when it comes back it starts empty") {
  Workers w(2);
  for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, Report().Store({1, 2}));
  w.Add(0, Report().Store({3}));
  w.Add(1, Report().Store({4}));
  CHECK(w.Take() == "S1,2");
  REQUIRE(w.aggregator->LoseWorker(1).has_value());
  CHECK(w.Take() == "R1,2");
  CHECK(w.Take() == "");
  // Its old report of 4 does not count; the other worker's of 1 does.
  w.Add(0, Report().Store({4}));
  CHECK(w.Take() == "");
  w.Add(1, Report().Store({1}).Store({3}));
  CHECK(w.Take() == "S1 S3");
  CHECK(w.stats().lost_workers == 1);
}

TEST_CASE("A lost worker's blocks stay while replication holds them") {
  Workers w(4, 2);
  w.Add(0, Report().Store({1}).Store({2}));
  w.Add(1, Report().Store({1}).Store({2}));
  w.Add(2, Report().Store({1}));
  CHECK(w.Take() == "S1 S2");
  REQUIRE(w.aggregator->LoseWorker(0).has_value());
  CHECK(w.Take() == "R2");
}

TEST_CASE("A lost worker's clear does not count") {
  Workers w(2);
  w.Add(0, Report().Clear());
  REQUIRE(w.aggregator->LoseWorker(0).has_value());
  w.Add(1, Report().Clear());
  CHECK(w.Take() == "");
  w.Add(0, Report().Clear());
  CHECK(w.Take() == "C");
}

TEST_CASE("A worker that does not exist is an error that names it and changes nothing") {
  Workers w(2);
  const Status added = w.aggregator->Add(2, Report().Store({1}).batch);
  REQUIRE_FALSE(added.has_value());
  CHECK(added.error().code == ErrorCode::kInvalidArgument);
  CHECK(added.error().message == "worker 2 does not exist, allowed are 0 to 1");
  const Status lost = w.aggregator->LoseWorker(7);
  REQUIRE_FALSE(lost.has_value());
  CHECK(lost.error().message == "worker 7 does not exist, allowed are 0 to 1");
  CHECK(w.stats() == WorkerEventStats());
}

TEST_CASE("Options that are not allowed are refused by name") {
  WorkerEventAggregatorOptions options = Workers::OptionsFor(4);
  std::string message;
  SUBCASE("no workers") {
    options.num_workers = 0;
    message = "num_workers is 0, allowed are 1 to 4096";
  }
  SUBCASE("too many workers") {
    options.num_workers = 4097;
    message = "num_workers is 4097, allowed are 1 to 4096";
  }
  SUBCASE("replication 0") {
    options.replication = 0;
    message = "replication is 0, allowed are divisors of num_workers (4)";
  }
  SUBCASE("replication that does not divide") {
    options.replication = 3;
    message = "replication is 3, allowed are divisors of num_workers (4)";
  }
  SUBCASE("replication of a group that does not divide") {
    options.group_replication = {{0, 2}, {5, 8}};
    message = "group_replication of group 5 is 8, allowed are divisors of num_workers (4)";
  }
  SUBCASE("a group twice") {
    options.group_replication = {{5, 2}, {5, 4}};
    message = "group_replication names group 5 twice, allowed is once";
  }
  SUBCASE("no pending blocks") {
    options.max_pending_blocks = 0;
    message = "max_pending_blocks is 0, allowed are 1 to 1073741824";
  }
  SUBCASE("no pending bytes") {
    options.max_pending_bytes = 0;
    message = "max_pending_bytes is 0, allowed are 1 to 18446744073709551615";
  }
  SUBCASE("no complete blocks") {
    options.max_complete_blocks = 0;
    message = "max_complete_blocks is 0, allowed are 1 to 1073741824";
  }
  SUBCASE("more complete blocks than can be numbered") {
    options.max_complete_blocks = std::size_t{1} << 32;
    message = "max_complete_blocks is 4294967296, allowed are 1 to 1073741824";
  }
  const auto created = WorkerEventAggregator::Create(options);
  REQUIRE_FALSE(created.has_value());
  CHECK(created.error().code == ErrorCode::kInvalidArgument);
  CHECK(created.error().message == message);
}

TEST_CASE("Steps like the ones before allocate nothing") {
  Workers w(2);
  std::vector<Report> reports;
  for (std::uint64_t step = 0; step < 64; ++step) {
    const std::uint64_t first = 8 * step;
    Report report;
    report.Store({first, first + 1, first + 2, first + 3}).Store({first + 4, first + 5}, first + 3);
    if (step >= 4) report.Remove({first - 32, first - 31, first - 30, first - 29, first - 28, first - 27});
    reports.push_back(std::move(report));
  }
  KVEventBatch batch;
  const auto run = [&](std::size_t begin, std::size_t end) {
    for (std::size_t step = begin; step < end; ++step) {
      for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, reports[step]);
      batch = w.aggregator->Take(std::move(batch));
    }
  };
  run(0, 32);
  const std::size_t before = test::AllocationCount();
  run(32, 64);
  CHECK(test::AllocationCount() == before);
  CHECK(w.stats().published == 64 * 6);
}

}  // namespace
}  // namespace kvwire
