// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/aggregate/worker_event_aggregator.h"
#include "tests/support/allocation_counter.h"
#include "tests/unit/kv_events/aggregate/worker_reports.h"

namespace kvwire {
namespace {

TEST_CASE("A silent worker: over the bound the oldest pending block is dropped, counted, and told once") {
  auto options = Workers::OptionsFor(2);
  options.max_pending_blocks = 3;
  Workers w(std::move(options));
  for (std::uint64_t hash = 1; hash <= 10; ++hash) {
    w.Add(0, Report().Store({hash}));
    CHECK(w.Take() == "");
    CHECK(w.stats().pending <= 3);
  }
  CHECK(w.stats().dropped == 7);
  REQUIRE(w.logged.size() == 1);
  CHECK(w.logged[0] == std::pair(LogLevel::kWarning,
                                 std::string("workers lag: more than 3 blocks or 67108864 bytes are reported and not "
                                             "by enough workers; the oldest are dropped")));

  // The last three are the ones that are still known.
  w.Add(1, Report().Store({8}).Store({9}).Store({10}).Store({7}));
  CHECK(w.Take() == "S8 S9 S10");
  CHECK(w.stats().pending == 1);
}

TEST_CASE("A silent worker: the episode ends when no more than half of the bound is pending") {
  auto options = Workers::OptionsFor(2);
  options.max_pending_blocks = 2;
  Workers w(std::move(options));
  w.Add(0, Report().Store({1}).Store({2}).Store({3}));
  w.Take();
  CHECK(w.logged.size() == 1);
  w.Add(1, Report().Store({2}));
  CHECK(w.Take() == "S2");
  REQUIRE(w.logged.size() == 2);
  CHECK(w.logged[1] == std::pair(LogLevel::kInfo, std::string("workers caught up after 1 dropped blocks")));
  w.Add(0, Report().Store({4}).Store({5}).Store({6}));
  w.Take();
  CHECK(w.logged.size() == 3);
}

TEST_CASE("A silent worker: pending blocks are bounded in bytes, contents included") {
  auto options = Workers::OptionsFor(2);
  options.max_pending_bytes = 100'000;
  Workers w(std::move(options));
  const std::vector<TokenId> tokens(1000, 7);
  const std::vector<ExtraKeys> keys = {{std::string(1000, 'x')}};
  const std::size_t before = test::LiveBytes();
  for (std::uint64_t hash = 0; hash < 500; ++hash) {
    const std::vector<BlockHash> hashes = Hashes({hash});
    BlockStored stored;
    stored.block_hashes = hashes;
    stored.token_ids = tokens;
    stored.block_size = 1000;
    stored.extra_keys = {false, keys};
    w.Add(0, Report().Store(stored));
    REQUIRE(w.stats().pending_bytes <= 100'000);
  }
  CHECK(w.stats().pending >= 15);
  CHECK(w.stats().pending <= 20);
  CHECK(w.stats().dropped + w.stats().pending == 500);
  CHECK(test::LiveBytes() - before < 300'000);
}

TEST_CASE("A silent worker: a block larger than the bound is dropped alone") {
  auto options = Workers::OptionsFor(2);
  options.max_pending_bytes = 1;
  Workers w(std::move(options));
  w.Add(0, Report().Store({1}));
  w.Add(1, Report().Store({1}));
  CHECK(w.Take() == "");
  CHECK(w.stats().dropped == 2);
  CHECK(w.stats().pending == 0);
  CHECK(w.stats().held_bytes == 0);
}

TEST_CASE("A lost worker does not make the others' blocks pending: they complete when it has them again") {
  auto options = Workers::OptionsFor(2);
  options.max_pending_blocks = 1;
  Workers w(std::move(options));
  for (const std::uint64_t hash : {1u, 2u, 3u}) {
    for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, Report().Store({hash}));
  }
  CHECK(w.Take() == "S1 S2 S3");
  REQUIRE(w.aggregator->LoseWorker(1).has_value());
  CHECK(w.Take() == "R1,2,3");
  CHECK(w.stats().pending == 0);
  CHECK(w.stats().dropped == 0);
  w.Add(1, Report().Store({3}).Store({2}).Store({1}));
  CHECK(w.Take() == "S1 S2 S3");
}

TEST_CASE("G4: of a source without removals the block that was complete longest expires and is removed") {
  auto options = Workers::OptionsFor(2);
  options.max_complete_blocks = 2;
  Workers w(std::move(options));
  for (const std::uint64_t hash : {1u, 2u}) {
    for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, Report().Store({hash}));
  }
  CHECK(w.Take() == "S1 S2");
  for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, Report().Store({3}));
  CHECK(w.Take() == "R1 S3");
  CHECK(w.stats().expired == 1);
  CHECK(w.stats().available == 2);
  // All must store it again.
  w.Add(0, Report().Store({1}));
  CHECK(w.Take() == "");
  w.Add(1, Report().Store({1}));
  CHECK(w.Take() == "R2 S1");
}

TEST_CASE("G4: a block that completes because a contradiction ends counts against the bound") {
  auto options = Workers::OptionsFor(4, 2);
  options.max_complete_blocks = 1;
  Workers w(std::move(options));
  for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, Report().Store({1}));
  w.Add(0, Report().Store({2}));
  w.Add(2, Report().Store({2}, 7));
  w.Add(1, Report().Store({2}));
  CHECK(w.Take() == "S1");
  w.Add(2, Report().Remove({2}));
  CHECK(w.stats().expired == 1);
  CHECK(w.Take() == "R1 S2");
}

TEST_CASE("Without a take, blocks that come and go leave nothing behind") {
  Workers w(2);
  const auto run = [&w](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t hash = begin; hash < end; ++hash) {
      for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, Report().Store({hash}));
      for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, Report().Remove({hash}));
    }
  };
  run(0, 100);
  const std::size_t before = test::LiveBytes();
  run(100, 5000);
  CHECK(test::LiveBytes() == before);
  CHECK(w.Take() == "");
  CHECK(w.stats().held_bytes == 0);
}

TEST_CASE("Removals carry their texts also when these end with the removal") {
  Workers w(1);
  for (std::uint64_t i = 0; i < 200; ++i) {
    const std::string medium = "a medium name that is too long for the inline buffer, number " + std::to_string(i / 2);
    const std::string session = "session " + std::to_string(i);
    const StoredEvent event({i});
    BlockStored stored = event.view();
    stored.medium = medium;
    stored.session_id = session;
    w.Add(0, Report().Store(stored));
  }
  w.Take();
  REQUIRE(w.aggregator->LoseWorker(0).has_value());
  const KVEventBatch removals = w.aggregator->Take();
  REQUIRE(removals.size() == 100);
  for (std::size_t i = 0; i < removals.size(); ++i) {
    const auto removed = std::get<BlockRemoved>(removals.at(i));
    CHECK(removed.medium == "a medium name that is too long for the inline buffer, number " + std::to_string(i));
    CHECK(removed.block_hashes.size() == 2);
  }
}

TEST_CASE("Sessions that come and go leave nothing behind") {
  Workers w(1);
  std::size_t after_warm_up = 0;
  for (std::uint64_t i = 0; i < 5000; ++i) {
    const std::string session = "a session name that is too long for the inline buffer, number " + std::to_string(i);
    const StoredEvent event({i % 8, i % 8 + 8});
    BlockStored stored = event.view();
    stored.medium = kMediumCpu;
    stored.session_id = session;
    w.Add(0, Report().Store(stored));
    w.Take();
    w.Add(0, Report().Remove({i % 8 + 8, i % 8}));
    w.Take();
    if (i == 1000) after_warm_up = test::LiveBytes();
  }
  CHECK(test::LiveBytes() < after_warm_up + 1000);
}

}  // namespace
}  // namespace kvwire
