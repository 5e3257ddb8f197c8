// SPDX-License-Identifier: Apache-2.0
// The behaviour of vLLM's block pool and its C++ port, as docs/protocol.md states it.
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include "scheduler/block_pool.h"
#include "tests/unit/scheduler/rig.h"

namespace kvwire::scheduler {
namespace {

// A prompt, its identities and the blocks of a pool that hold it.
struct Prompt {
  std::vector<TokenId> tokens;
  std::vector<BlockHash> hashes;
  Blocks table;

  Prompt(std::string_view seed, std::vector<TokenId> prompt, std::uint32_t block_size)
      : tokens(std::move(prompt)), hashes(ChainOf(HasherWithSeed(seed), tokens, block_size)) {}

  BlockChain chain() const {
    BlockChain chain;
    chain.hashes = hashes;
    chain.token_ids = tokens;
    return chain;
  }
};

BlockPoolOptions Options(std::uint32_t num_blocks, std::uint32_t block_size) {
  BlockPoolOptions options;
  options.num_blocks = num_blocks;
  options.block_size = block_size;
  options.enable_events = true;
  options.removals = Removals::kPerCopy;
  options.announce_at_registration = true;
  return options;
}

// Events of a pool, which knows no kinds unless it was told.
EventTexts Names(const Prompt& prompt, std::uint32_t block_size, std::optional<std::string> kind = std::nullopt) {
  EventTexts texts(block_size, std::move(kind));
  texts.Name("h", prompt.hashes);
  return texts;
}

TEST_CASE("a null physical parent still gives the parent's hash") {
  BlockPool pool(Options(5, 1));
  Prompt prompt("0", Range(1, 4), 1);
  prompt.table = {kNullBlock, kNullBlock};
  REQUIRE(pool.Allocate(2, &prompt.table));
  pool.Register(prompt.chain(), prompt.table, 2, 4, 0);
  CHECK(Names(prompt, 1).Of(pool.TakeEvents()) == Texts{"S h2,h3 < h1 : 3..4"});
  CHECK_FALSE(pool.is_registered(kNullBlock));
}

TEST_CASE("blocks of a LoRA request carry its id and name, blocks of the base model none") {
  for (const std::uint32_t n : {2u, 3u, 10u}) {
    BlockPool pool(Options(32, 16));
    Prompt prompt("0", Range(0, 16 * n), 16);
    REQUIRE(pool.Allocate(n, &prompt.table));
    const LoraAdapter lora{42, "my_lora"};
    BlockChain chain = prompt.chain();
    chain.lora = &lora;
    pool.Register(chain, prompt.table, 0, n, 0);
    const KVEventBatch batch = pool.TakeEvents();
    REQUIRE(batch.size() == 1);
    const auto stored = std::get<BlockStored>(batch.at(0));
    CHECK(stored.lora_id == 42);
    CHECK(stored.lora_name == "my_lora");
    CHECK(stored.block_hashes.size() == n);
    CHECK(stored.block_size == 16);

    Prompt base("0", Range(1000, 16 * n), 16);
    REQUIRE(pool.Allocate(n, &base.table));
    pool.Register(base.chain(), base.table, 0, n, 0);
    const KVEventBatch base_batch = pool.TakeEvents();
    REQUIRE(base_batch.size() == 1);
    CHECK_FALSE(std::get<BlockStored>(base_batch.at(0)).lora_id.has_value());
    CHECK_FALSE(std::get<BlockStored>(base_batch.at(0)).lora_name.has_value());
  }
}

std::vector<GroupSpec> ThreeGroups() {
  return {GroupSpec{"full_attention", std::nullopt}, GroupSpec{"sliding_window", 8}, GroupSpec{"mamba", std::nullopt}};
}

TEST_CASE("a store says the group, its kind and its window") {
  const Texts expected = {"S h0,h1 < nil : 1..8 [kind full_attention]",
                          "S h0,h1 < nil : 1..8 [group 1] [kind sliding_window] [window 8]",
                          "S h0,h1 < nil : 1..8 [group 2] [kind mamba]"};
  for (std::uint32_t group = 0; group < 3; ++group) {
    BlockPoolOptions options = Options(5, 4);
    options.groups = ThreeGroups();
    BlockPool pool(options);
    Prompt prompt("0", Range(1, 8), 4);
    REQUIRE(pool.Allocate(2, &prompt.table));
    pool.Register(prompt.chain(), prompt.table, 0, 2, group);
    CHECK(Names(prompt, 4).Of(pool.TakeEvents()) == Texts{expected[group]});
  }
}

TEST_CASE("stores of a step keep their own group, kind, window and adapter, whatever stands before them") {
  struct Store {
    std::uint32_t group;
    const LoraAdapter* lora;
  };
  const LoraAdapter lora{42, "my_lora"};
  const std::vector<Store> stores = {{0, nullptr}, {0, nullptr}, {0, &lora}, {0, &lora},   {0, nullptr},
                                     {1, nullptr}, {1, nullptr}, {2, &lora}, {1, nullptr}, {0, nullptr}};
  BlockPoolOptions options = Options(16, 4);
  options.announce_at_registration = false;
  options.groups = ThreeGroups();
  BlockPool pool(options);
  for (int step = 0; step < 2; ++step) {
    for (std::size_t i = 0; i < stores.size(); ++i) {
      Prompt prompt("0", Range(static_cast<TokenId>(100 * i + 1000 * step), 4), 4);
      REQUIRE(pool.Allocate(1, &prompt.table));
      BlockChain chain = prompt.chain();
      chain.lora = stores[i].lora;
      pool.Register(chain, prompt.table, 0, 1, stores[i].group);
      pool.AnnouncePending();
      pool.Free(prompt.table);
    }
    const KVEventBatch batch = pool.TakeEvents();
    std::vector<BlockStored> found;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const KVEventBatch::Event event = batch.at(i);
      if (const auto* const stored = std::get_if<BlockStored>(&event)) found.push_back(*stored);
    }
    REQUIRE(found.size() == stores.size());
    for (std::size_t i = 0; i < stores.size(); ++i) {
      const GroupSpec& group = options.groups[stores[i].group];
      CHECK(found[i].group_idx == stores[i].group);
      CHECK(found[i].kv_cache_spec_kind == group.kind);
      CHECK(found[i].kv_cache_spec_sliding_window == group.sliding_window);
      CHECK(found[i].lora_id.has_value() == (stores[i].lora != nullptr));
      CHECK(found[i].lora_name.has_value() == (stores[i].lora != nullptr));
      CHECK(found[i].token_ids.front() == 100 * i + 1000 * static_cast<std::size_t>(step));
    }
  }
}

TEST_CASE("two groups give two events in order, and the same hash is two entries") {
  BlockPoolOptions options = Options(8, 4);
  options.groups = {GroupSpec{}, GroupSpec{"sliding_window", 128}};
  BlockPool pool(options);
  Prompt prompt("0", Range(1, 8), 4);
  Blocks second;
  REQUIRE(pool.Allocate(2, &prompt.table));
  REQUIRE(pool.Allocate(2, &second));
  pool.Register(prompt.chain(), prompt.table, 0, 2, 0);
  pool.Register(prompt.chain(), second, 0, 2, 1);
  CHECK(Names(prompt, 4, "full_attention").Of(pool.TakeEvents()) ==
        Texts{"S h0,h1 < nil : 1..8", "S h0,h1 < nil : 1..8 [group 1] [kind sliding_window] [window 128]"});
  CHECK(pool.FindCached(prompt.hashes[0], 0) == prompt.table[0]);
  CHECK(pool.FindCached(prompt.hashes[0], 1) == second[0]);
  CHECK(pool.num_copies(prompt.hashes[0], 0) == 1);
}

TEST_CASE("a group without metadata goes out as it is, with one warning") {
  Texts warnings;
  BlockPoolOptions options = Options(8, 4);
  options.groups = {GroupSpec{}};
  options.log = [&](LogLevel level, std::string_view text) {
    CHECK(level == LogLevel::kWarning);
    warnings.emplace_back(text);
  };
  BlockPool pool(options);
  Prompt prompt("0", Range(1, 8), 4);
  REQUIRE(pool.Allocate(2, &prompt.table));
  pool.Register(prompt.chain(), prompt.table, 0, 1, 1);
  pool.Register(prompt.chain(), prompt.table, 1, 2, 1);
  CHECK(Names(prompt, 4).Of(pool.TakeEvents()) == Texts{"S h0 < nil : 1..4 [group 1]", "S h1 < h0 : 5..8 [group 1]"});
  CHECK(warnings == Texts{"Group index `1` not in KV cache metadata"});
}

TEST_CASE("removals say the group of the block and come in the order of the allocation") {
  for (std::uint32_t group = 0; group < 3; ++group) {
    BlockPool pool(Options(6, 4));
    Prompt prompt("0", Range(1, 8), 4);
    REQUIRE(pool.Allocate(2, &prompt.table));
    pool.Register(prompt.chain(), prompt.table, 0, 2, group);
    pool.TakeEvents();
    pool.Free(prompt.table);
    CHECK(pool.recorded().empty());
    Blocks all;
    REQUIRE(pool.Allocate(5, &all));
    const std::string suffix = group == 0 ? "" : " [group " + std::to_string(group) + "]";
    CHECK(Names(prompt, 4).Of(pool.TakeEvents()) == Texts{"R h0" + suffix, "R h1" + suffix});
  }
}

TEST_CASE("a report announces the cached prefix and changes nothing") {
  BlockPool pool(Options(8, 4));
  Prompt prompt("0", Range(1, 16), 4);
  REQUIRE(pool.Allocate(4, &prompt.table));
  pool.Register(prompt.chain(), prompt.table, 0, 4, 1);
  pool.TakeEvents();
  const std::size_t free = pool.num_free();
  pool.Report(std::span(prompt.table).first(3));
  CHECK(Names(prompt, 4).Of(pool.TakeEvents()) == Texts{"S h0,h1,h2 < nil : 1..12 [group 1]"});
  CHECK(pool.num_free() == free);
  CHECK(pool.num_copies(prompt.hashes[0], 1) == 1);
  CHECK(pool.FindCached(prompt.hashes[0], 1) == prompt.table[0]);
  pool.Report({});
  CHECK(pool.TakeEvents().empty());
}

TEST_CASE("a report of a pool with events off records nothing") {
  BlockPoolOptions options = Options(8, 4);
  options.enable_events = false;
  BlockPool pool(options);
  Prompt prompt("0", Range(1, 16), 4);
  REQUIRE(pool.Allocate(4, &prompt.table));
  pool.Register(prompt.chain(), prompt.table, 0, 4, 0);
  pool.Report(prompt.table);
  CHECK(pool.TakeEvents().empty());
}

TEST_CASE("store, reuse, evict and reset on one pool") {
  BlockPool pool(Options(6, 4));
  Prompt prompt("seed42", Range(0, 12), 4);
  CHECK(prompt.hashes[0].Low64() == 2373933297555870585u);
  const EventTexts texts = Names(prompt, 4);
  REQUIRE(pool.Allocate(3, &prompt.table));
  pool.Register(prompt.chain(), prompt.table, 0, 3, 0);
  CHECK(texts.Of(pool.TakeEvents()) == Texts{"S h0,h1,h2 < nil : 0..11"});
  CHECK(pool.TakeEvents().empty());
  pool.Touch(prompt.table);
  pool.Free(prompt.table);
  CHECK(pool.TakeEvents().empty());
  pool.Report(prompt.table);
  CHECK(texts.Of(pool.TakeEvents()) == Texts{"S h0,h1,h2 < nil : 0..11"});
  REQUIRE(pool.EvictBlocks(Blocks{prompt.table[0]}));
  CHECK(texts.Of(pool.TakeEvents()) == Texts{"R h0"});
  CHECK_FALSE(pool.Reset());
  pool.Free(prompt.table);
  CHECK(pool.TakeEvents().empty());
  CHECK(pool.Reset());
  CHECK(texts.Of(pool.TakeEvents()) == Texts{"C"});
  CHECK(pool.era() == 1);
}

TEST_CASE("a partial store names the block before it as parent") {
  BlockPool pool(Options(6, 4));
  Prompt prompt("seed42", Range(0, 12), 4);
  REQUIRE(pool.Allocate(3, &prompt.table));
  pool.Register(prompt.chain(), prompt.table, 0, 1, 0);
  pool.TakeEvents();
  pool.Register(prompt.chain(), prompt.table, 1, 3, 0);
  CHECK(Names(prompt, 4).Of(pool.TakeEvents()) == Texts{"S h1,h2 < h0 : 4..11"});
}

TEST_CASE("with events off the same operations record nothing and work the same") {
  for (const bool announce_at_registration : {false, true}) {
    BlockPoolOptions options = Options(6, 4);
    options.enable_events = false;
    options.announce_at_registration = announce_at_registration;
    BlockPool pool(options);
    Prompt prompt("seed42", Range(0, 12), 4);
    REQUIRE(pool.Allocate(3, &prompt.table));
    pool.Register(prompt.chain(), prompt.table, 0, 3, 0);
    pool.AnnouncePending();
    pool.Report(prompt.table);
    CHECK(pool.FindCached(prompt.hashes[2], 0) == prompt.table[2]);
    REQUIRE(pool.EvictBlocks(prompt.table));
    CHECK(pool.FindCached(prompt.hashes[2], 0) == kNullBlock);
    pool.Free(prompt.table);
    CHECK(pool.Reset());
    CHECK(pool.TakeEvents().empty());
    CHECK(pool.digest() == StateDigest());
  }
}

TEST_CASE("the free queue: unhashed blocks in front in list order, cached ones behind, touched ones out") {
  BlockPool pool(Options(8, 4));
  Prompt prompt("0", Range(1, 8), 4);
  REQUIRE(pool.Allocate(4, &prompt.table));
  pool.Register(prompt.chain(), prompt.table, 0, 2, 0);
  pool.Free(Blocks{4, 2, 3, 1});
  CHECK(pool.free_queue().ToVector() == Blocks{4, 3, 5, 6, 7, 2, 1});
  pool.Touch(Blocks{2, 5});
  CHECK(pool.free_queue().ToVector() == Blocks{4, 3, 6, 7, 1});
  CHECK(pool.num_references(2) == 1);
  CHECK(pool.CountUnheld(Blocks{1, 2, 5, kNullBlock}) == 1);
}

TEST_CASE("allocating more than is free does nothing") {
  BlockPool pool(Options(4, 4));
  Blocks blocks;
  CHECK_FALSE(pool.Allocate(4, &blocks));
  CHECK(blocks.empty());
  CHECK(pool.num_free() == 3);
  CHECK(pool.Allocate(3, &blocks));
  CHECK(blocks == Blocks{1, 2, 3});
  CHECK_FALSE(pool.Allocate(1, &blocks));
}

TEST_CASE("a lookup gives the copy that was registered first") {
  BlockPool pool(Options(8, 4));
  Prompt prompt("0", Range(1, 4), 4);
  Blocks copies;
  REQUIRE(pool.Allocate(3, &copies));
  for (const BlockId copy : copies) pool.Register(prompt.chain(), Blocks{copy}, 0, 1, 0);
  CHECK(pool.FindCached(prompt.hashes[0], 0) == 1);
  CHECK(pool.num_copies(prompt.hashes[0], 0) == 3);
  REQUIRE(pool.EvictBlocks(Blocks{2}));
  CHECK(pool.FindCached(prompt.hashes[0], 0) == 1);
  REQUIRE(pool.EvictBlocks(Blocks{1}));
  CHECK(pool.FindCached(prompt.hashes[0], 0) == 3);
  CHECK(pool.num_copies(prompt.hashes[0], 0) == 1);
  pool.Register(prompt.chain(), Blocks{2}, 0, 1, 0);
  REQUIRE(pool.EvictBlocks(Blocks{3}));
  CHECK(pool.FindCached(prompt.hashes[0], 0) == 2);
}

TEST_CASE("an id outside the pool is refused and nothing is evicted") {
  BlockPool pool(Options(4, 4));
  Prompt prompt("0", Range(1, 4), 4);
  REQUIRE(pool.Allocate(1, &prompt.table));
  pool.Register(prompt.chain(), prompt.table, 0, 1, 0);
  pool.TakeEvents();
  const Status refused = pool.EvictBlocks(Blocks{1, 4});
  REQUIRE_FALSE(refused);
  CHECK(refused.error() == Error{ErrorCode::kInvalidArgument, "block id is 4; allowed: 0 to 3"});
  CHECK(pool.is_registered(1));
  CHECK(pool.TakeEvents().empty());
  CHECK(pool.EvictBlocks(Blocks{0, 2, 3}));
  CHECK(pool.TakeEvents().empty());
}

}  // namespace
}  // namespace kvwire::scheduler
