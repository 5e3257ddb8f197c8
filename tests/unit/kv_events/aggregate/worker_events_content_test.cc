// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/aggregate/worker_event_aggregator.h"
#include "tests/unit/kv_events/aggregate/worker_reports.h"

namespace kvwire {
namespace {

// Two blocks with every field set.
struct FullEvent {
  std::vector<BlockHash> hashes = Hashes({1, 2});
  std::vector<TokenId> tokens = {11, 12, 21, 22};
  std::vector<ExtraKeys> keys = {{std::string("adapter"), MultimodalKey{"image", -1}},
                                 {std::vector<std::uint8_t>{7}, OpaqueKey{"\xc0"}}};
  BlockStored stored;

  FullEvent() {
    stored.block_hashes = hashes;
    stored.parent_block_hash = BlockHash::FromUint64(9);
    stored.token_ids = tokens;
    stored.block_size = 2;
    stored.lora_id = 3;
    stored.medium = "cpu";
    stored.lora_name = "adapter";
    stored.extra_keys = {false, keys};
    stored.group_idx = 1;
    stored.kv_cache_spec_kind = "sliding_window";
    stored.kv_cache_spec_sliding_window = 128;
    stored.locality = "LOCAL";
    stored.ownership = "OWNED";
    stored.session_id = "session";
  }

  KVEventBatch batch() const { return Report().Store(stored).batch; }
};

TEST_CASE("An event that all workers report is published with every field it had") {
  Workers w(2);
  const FullEvent event;
  for (const std::uint32_t worker : {0u, 1u}) REQUIRE(w.aggregator->Add(worker, event.batch()).has_value());
  CHECK(w.aggregator->Take() == event.batch());

  // Its removal too.
  BlockRemoved removed;
  removed.block_hashes = event.hashes;
  removed.medium = "cpu";
  removed.group_idx = 1;
  removed.locality = "LOCAL";
  removed.ownership = "OWNED";
  KVEventBatch report;
  report.Add(removed);
  REQUIRE(w.aggregator->Add(1, report).has_value());
  CHECK(w.aggregator->Take() == report);
}

TEST_CASE("An event without tokens, parent, extra keys and texts is published as it was") {
  Workers w(2);
  const std::vector<BlockHash> hashes = Hashes({1});
  BlockStored stored;
  stored.block_hashes = hashes;
  SUBCASE("extra keys absent") {}
  SUBCASE("no block has extra keys") { stored.extra_keys.absent = false; }
  const KVEventBatch batch = Report().Store(stored).batch;
  for (const std::uint32_t worker : {0u, 1u}) REQUIRE(w.aggregator->Add(worker, batch).has_value());
  CHECK(w.aggregator->Take() == batch);
}

TEST_CASE("F8: the same hash under another LoRA name is not the same event") {
  Workers w(2);
  FullEvent event;
  REQUIRE(w.aggregator->Add(0, event.batch()).has_value());
  event.stored.lora_name = "other";
  REQUIRE(w.aggregator->Add(1, event.batch()).has_value());
  CHECK(w.Take() == "");
  CHECK(w.stats().disagreements == 2);
  CHECK(w.stats().disputed == 2);
  // The second worker finds the adapter's name: now they agree.
  event.stored.lora_name = "adapter";
  REQUIRE(w.aggregator->Add(1, event.batch()).has_value());
  CHECK(w.Take() == "g1:S1,2(9)");
  CHECK(w.stats().disputed == 0);
}

TEST_CASE("F8: workers that differ in any part of a block's content disagree about it") {
  Workers w(2);
  FullEvent event;
  std::string field;
  REQUIRE(w.aggregator->Add(0, event.batch()).has_value());
  BlockStored& stored = event.stored;
  SUBCASE("tokens") {
    event.tokens[0] = event.tokens[2] = 99;
    field = "token_ids";
  }
  SUBCASE("tokens that are not told") {
    stored.token_ids = {};
    field = "token_ids";
  }
  SUBCASE("extra keys") {
    event.keys[0].pop_back();
    event.keys[1].pop_back();
    field = "extra_keys";
  }
  SUBCASE("extra keys that are not told") {
    stored.extra_keys = {};
    field = "extra_keys";
  }
  SUBCASE("no extra keys") {
    stored.extra_keys = {false, {}};
    field = "extra_keys";
  }
  SUBCASE("block size") {
    stored.token_ids = {};
    stored.block_size = 4;
    field = "block_size";
  }
  SUBCASE("LoRA id") {
    stored.lora_id = 4;
    field = "lora_id";
  }
  SUBCASE("LoRA name") {
    stored.lora_name.reset();
    field = "lora_name";
  }
  SUBCASE("kind") {
    stored.kv_cache_spec_kind = "full_attention";
    field = "kv_cache_spec_kind";
  }
  SUBCASE("window") {
    stored.kv_cache_spec_sliding_window = 64;
    field = "kv_cache_spec_sliding_window";
  }
  SUBCASE("locality") {
    stored.locality = "REMOTE";
    field = "locality";
  }
  SUBCASE("ownership") {
    stored.ownership.reset();
    field = "ownership";
  }
  REQUIRE(w.aggregator->Add(1, event.batch()).has_value());
  CHECK(w.Take() == "");
  CHECK(w.stats().disagreements == 2);
  REQUIRE(w.logged.size() == 1);
  CHECK(w.logged[0].first == LogLevel::kWarning);
  CHECK(w.logged[0].second == "workers disagree: block 0000000000000001 of group 1 in CPU has another " + field +
                                  " at worker 1 than at worker 0; such blocks are not published");
}

TEST_CASE("F8: workers that differ in a block's parent disagree about that block alone") {
  Workers w(2);
  w.Add(0, Report().Store({1, 2}, 9));
  w.Add(1, Report().Store({1, 2}, 8));
  CHECK(w.Take() == "S2(1)");
  CHECK(w.stats().disagreements == 1);
  REQUIRE(w.logged.size() == 1);
  CHECK(w.logged[0].second.find("another parent_block_hash at worker 1 than at worker 0") != std::string::npos);
}

TEST_CASE("The session of a request is no content: the first report's is kept") {
  Workers w(2);
  FullEvent event;
  const KVEventBatch first = event.batch();
  REQUIRE(w.aggregator->Add(1, first).has_value());
  event.stored.session_id = "another";
  REQUIRE(w.aggregator->Add(0, event.batch()).has_value());
  CHECK(w.aggregator->Take() == first);
  CHECK(w.stats().disagreements == 0);
}

TEST_CASE("A worker that contradicts what was announced takes it back until it agrees or lets go") {
  Workers w(4, 2);
  w.Add(0, Report().Store({1}));
  w.Add(1, Report().Store({1}));
  CHECK(w.Take() == "S1");
  w.Add(2, Report().Store({1}, 7));
  CHECK(w.Take() == "R1");
  SUBCASE("it agrees") { w.Add(2, Report().Store({1})); }
  SUBCASE("it lets go") { w.Add(2, Report().Remove({1})); }
  SUBCASE("it is lost") { REQUIRE(w.aggregator->LoseWorker(2).has_value()); }
  CHECK(w.Take() == "S1");
  CHECK(w.stats().disagreements == 1);
}

TEST_CASE("A contradiction that is over before the next take is no event") {
  Workers w(4, 2);
  w.Add(0, Report().Store({1}));
  w.Add(1, Report().Store({1}));
  CHECK(w.Take() == "S1");
  w.Add(2, Report().Store({1}, 7).Remove({1}));
  CHECK(w.Take() == "");
}

TEST_CASE("When all workers change a block's content it is removed and stored with the new one") {
  Workers w(2);
  for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, Report().Store({1}));
  CHECK(w.Take() == "S1");
  for (const std::uint32_t worker : {0u, 1u}) w.Add(worker, Report().Store({1}, 5));
  CHECK(w.Take() == "R1 S1(5)");
}

TEST_CASE("An episode of disagreements is one line at its start and one at its end") {
  Workers w(2);
  w.Add(0, Report().Store({1}).Store({2}));
  w.Add(1, Report().Store({1}, 7).Store({2}, 7));
  w.Take();
  w.Add(1, Report().Store({1}));
  w.Take();
  REQUIRE(w.logged.size() == 1);
  w.Add(1, Report().Store({2}));
  w.Take();
  REQUIRE(w.logged.size() == 2);
  CHECK(w.logged[1] == std::pair(LogLevel::kInfo, std::string("workers agree again after 2 disagreements")));
  w.Add(1, Report().Store({1}, 7));
  CHECK(w.logged.size() == 3);
}

TEST_CASE("K15: an event whose blocks cannot be told apart is left out, the rest is taken") {
  Workers w(1);
  const std::array<TokenId, 3> tokens = {1, 2, 3};
  std::vector<BlockHash> hashes = Hashes({1, 2});
  BlockStored bad;
  bad.block_hashes = hashes;
  bad.block_size = 2;
  std::string message;
  SUBCASE("tokens that are not block_size per block") {
    bad.token_ids = tokens;
    message = "event 1 of worker 0: token_ids has 3 tokens, allowed are 4 (2 blocks of block_size 2) or none";
  }
  SUBCASE("an empty hash") {
    hashes[1] = BlockHash();
    message = "event 1 of worker 0: block_hashes[1] is empty, allowed are 1 to 32 bytes";
  }
  const Status added = w.aggregator->Add(0, Report().Store({8}).Store(bad).Store({9}).batch);
  REQUIRE_FALSE(added.has_value());
  CHECK(added.error().code == ErrorCode::kInvalidArgument);
  CHECK(added.error().message == message);
  CHECK(w.Take() == "S8 S9");
  CHECK(w.stats().malformed == 1);
}

}  // namespace
}  // namespace kvwire
