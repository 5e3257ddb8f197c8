// SPDX-License-Identifier: Apache-2.0
#include "scheduler/block_pool.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/allocation_counter.h"
#include "tests/unit/scheduler/rig.h"

namespace kvwire::scheduler {
namespace {

// A pool of 16 blocks of 4 tokens that announces after computing, and one prompt of four blocks h0 to h3.
class PoolRig {
 public:
  explicit PoolRig(Removals removals = Removals::kExact) : pool_(Options(removals)), texts_(4, std::nullopt) {
    hashes_ = ChainOf(HasherWithSeed("0"), tokens_, 4);
    texts_.Name("h", hashes_);
  }

  BlockPool& pool() { return pool_; }
  const BlockHash& hash(std::size_t i) const { return hashes_[i]; }

  BlockChain chain() const {
    BlockChain chain;
    chain.hashes = hashes_;
    chain.token_ids = tokens_;
    return chain;
  }

  // Fresh blocks for the prompt's blocks [first, last), behind `table`; registered.
  void Extend(Blocks* table, std::uint32_t last) {
    const auto first = static_cast<std::uint32_t>(table->size());
    REQUIRE(pool_.Allocate(last - first, table));
    pool_.Register(chain(), *table, first, last, 0);
  }

  Texts Announced() {
    pool_.AnnouncePending();
    return Recorded();
  }
  Texts Recorded() { return texts_.Of(pool_.TakeEvents()); }
  Texts TextsOf(const KVEventBatch& batch) { return texts_.Of(batch); }

  // The prompt's resident announced blocks, in the order of the walk.
  Texts Walked() const {
    Texts walked;
    pool_.Walk([&](const ResidentBlock& block) {
      for (std::size_t i = 0; i < hashes_.size(); ++i) {
        if (hashes_[i] != block.hash) continue;
        walked.push_back("h" + std::to_string(i));
        CHECK(block.parent.has_value() == (i > 0));
        if (i > 0) CHECK(*block.parent == hashes_[i - 1]);
        CHECK(std::ranges::equal(block.token_ids, std::span(tokens_).subspan(4 * i, 4)));
      }
    });
    return walked;
  }

 private:
  static BlockPoolOptions Options(Removals removals) {
    BlockPoolOptions options;
    options.num_blocks = 16;
    options.block_size = 4;
    options.enable_events = true;
    options.removals = removals;
    return options;
  }

  BlockPool pool_;
  EventTexts texts_;
  std::vector<TokenId> tokens_ = Range(1, 16);
  std::vector<BlockHash> hashes_;
};

TEST_CASE("a registered block can be found at once and is announced later") {
  PoolRig rig;
  Blocks table;
  rig.Extend(&table, 2);
  CHECK(rig.pool().FindCached(rig.hash(1), 0) == table[1]);
  CHECK(rig.Recorded().empty());
  CHECK(rig.Walked().empty());
  CHECK(rig.pool().num_announced(rig.hash(1), 0) == 0);
  CHECK(rig.Announced() == Texts{"S h0,h1 < nil : 1..8"});
  CHECK(rig.pool().num_announced(rig.hash(1), 0) == 1);
  CHECK(rig.Announced().empty());
  CHECK(rig.Walked() == Texts{"h0", "h1"});
}

TEST_CASE("announcements come in the order of the registrations, one event each") {
  PoolRig rig;
  Blocks table;
  rig.Extend(&table, 1);
  rig.Extend(&table, 3);
  rig.pool().Report(std::span(table).first(1));
  rig.Extend(&table, 4);
  CHECK(rig.Announced() ==
        Texts{"S h0 < nil : 1..4", "S h1,h2 < h0 : 5..12", "S h0 < nil : 1..4", "S h3 < h2 : 13..16"});
}

TEST_CASE("a pending block that loses its last holder is never announced and cannot be found") {
  PoolRig rig;
  Blocks table;
  rig.Extend(&table, 3);
  rig.pool().Free(Blocks{table[2], table[1], table[0]});
  CHECK(rig.pool().FindCached(rig.hash(0), 0) == kNullBlock);
  CHECK(rig.Announced().empty());
  // Without a hash they are taken first.
  CHECK(rig.pool().free_queue().ToVector().front() == table[2]);
}

TEST_CASE("a pending block that another request holds is announced, its unheld descendants are not") {
  PoolRig rig;
  Blocks table;
  rig.Extend(&table, 3);
  rig.pool().Touch(std::span(table).first(2));
  rig.pool().Free(Blocks{table[2], table[1], table[0]});
  CHECK(rig.Announced() == Texts{"S h0,h1 < nil : 1..8"});
  CHECK(rig.pool().FindCached(rig.hash(2), 0) == kNullBlock);
}

TEST_CASE("a pending block evicted by id takes its pending descendants with it") {
  PoolRig rig;
  Blocks table;
  rig.Extend(&table, 4);
  REQUIRE(rig.pool().EvictBlocks(Blocks{table[1]}));
  CHECK(rig.Announced() == Texts{"S h0 < nil : 1..4"});
  CHECK(rig.Walked() == Texts{"h0"});
  CHECK(rig.pool().FindCached(rig.hash(3), 0) == kNullBlock);
}

TEST_CASE("nothing is registered behind a block that was evicted while held") {
  PoolRig rig;
  Blocks table;
  rig.Extend(&table, 2);
  rig.Announced();
  REQUIRE(rig.pool().EvictBlocks(Blocks{table[1]}));
  CHECK(rig.Recorded() == Texts{"R h1"});
  rig.Extend(&table, 3);
  CHECK(rig.pool().FindCached(rig.hash(2), 0) == kNullBlock);
  CHECK(rig.Announced().empty());
  rig.Extend(&table, 4);
  CHECK(rig.Announced().empty());
  CHECK(rig.Walked() == Texts{"h0"});
}

TEST_CASE("exact: the last copy takes as many removals as there were announcements, adjacent") {
  PoolRig rig;
  Blocks first, second;
  rig.Extend(&first, 1);
  rig.Announced();
  rig.Extend(&second, 1);
  CHECK(rig.Announced() == Texts{"S h0 < nil : 1..4"});
  rig.pool().Report(first);
  CHECK(rig.Announced() == Texts{"S h0 < nil : 1..4"});
  CHECK(rig.pool().num_announced(rig.hash(0), 0) == 3);
  REQUIRE(rig.pool().EvictBlocks(first));
  CHECK(rig.Recorded().empty());
  CHECK(rig.Walked() == Texts{"h0"});
  REQUIRE(rig.pool().EvictBlocks(second));
  CHECK(rig.Recorded() == Texts{"R h0", "R h0", "R h0"});
  CHECK(rig.pool().digest() == StateDigest());
}

TEST_CASE("per copy: each announced copy takes one removal, reports none") {
  PoolRig rig(Removals::kPerCopy);
  Blocks first, second;
  rig.Extend(&first, 1);
  rig.Announced();
  rig.Extend(&second, 1);
  rig.Announced();
  rig.pool().Report(first);
  CHECK(rig.Announced() == Texts{"S h0 < nil : 1..4"});
  REQUIRE(rig.pool().EvictBlocks(first));
  CHECK(rig.Recorded() == Texts{"R h0"});
  CHECK(rig.Walked() == Texts{"h0"});
  REQUIRE(rig.pool().EvictBlocks(second));
  CHECK(rig.Recorded() == Texts{"R h0"});
  CHECK(rig.pool().digest() == StateDigest());
}

TEST_CASE("a second copy that was never announced counts for nobody") {
  for (const Removals removals : {Removals::kExact, Removals::kPerCopy}) {
    PoolRig rig(removals);
    Blocks first, second;
    rig.Extend(&first, 1);
    rig.Announced();
    rig.Extend(&second, 1);
    rig.pool().Free(second);
    CHECK(rig.Announced().empty());
    REQUIRE(rig.pool().EvictBlocks(first));
    CHECK(rig.Recorded() == Texts{"R h0"});
  }
}

TEST_CASE("the announced copy goes while another is pending") {
  SUBCASE("and the pending one is announced: the hash was there all the time") {
    PoolRig rig;
    Blocks first, second;
    rig.Extend(&first, 1);
    rig.Announced();
    rig.Extend(&second, 1);
    REQUIRE(rig.pool().EvictBlocks(first));
    CHECK(rig.Announced() == Texts{"S h0 < nil : 1..4"});
    CHECK(rig.pool().num_announced(rig.hash(0), 0) == 2);
    REQUIRE(rig.pool().EvictBlocks(second));
    CHECK(rig.Recorded() == Texts{"R h0", "R h0"});
  }
  SUBCASE("and the pending one is given up: the hash is removed") {
    PoolRig rig;
    Blocks first, second;
    rig.Extend(&first, 1);
    rig.Announced();
    rig.Extend(&second, 1);
    REQUIRE(rig.pool().EvictBlocks(first));
    CHECK(rig.Recorded().empty());
    rig.pool().Free(second);
    CHECK(rig.Announced() == Texts{"R h0"});
  }
  SUBCASE("per copy: removal and store follow each other") {
    PoolRig rig(Removals::kPerCopy);
    Blocks first, second;
    rig.Extend(&first, 1);
    rig.Announced();
    rig.Extend(&second, 1);
    REQUIRE(rig.pool().EvictBlocks(first));
    CHECK(rig.Announced() == Texts{"R h0", "S h0 < nil : 1..4"});
    CHECK(rig.pool().num_announced(rig.hash(0), 0) == 1);
  }
}

TEST_CASE("a hash evicted and registered again in one step is removed, then stored") {
  PoolRig rig;
  Blocks table;
  rig.Extend(&table, 1);
  rig.Announced();
  rig.pool().Free(table);
  Blocks all;
  REQUIRE(rig.pool().Allocate(15, &all));
  Blocks again = {all[3]};
  rig.pool().Register(rig.chain(), again, 0, 1, 0);
  CHECK(rig.Announced() == Texts{"R h0", "S h0 < nil : 1..4"});
  CHECK(rig.pool().num_announced(rig.hash(0), 0) == 1);
  CHECK(rig.Walked() == Texts{"h0"});
}

TEST_CASE("a report stops at the first block that is no longer there") {
  PoolRig rig;
  Blocks table;
  rig.Extend(&table, 3);
  rig.Announced();
  rig.pool().Report(table);
  REQUIRE(rig.pool().EvictBlocks(Blocks{table[1]}));
  CHECK(rig.Announced() == Texts{"R h1", "S h0 < nil : 1..4"});
}

TEST_CASE("a report of blocks that are pending follows their announcement, or fails with them") {
  PoolRig rig;
  Blocks table;
  rig.Extend(&table, 2);
  rig.pool().Report(table);
  CHECK(rig.Announced() == Texts{"S h0,h1 < nil : 1..8", "S h0,h1 < nil : 1..8"});
  PoolRig other;
  Blocks given_up;
  other.Extend(&given_up, 2);
  other.pool().Report(given_up);
  other.pool().Free(given_up);
  CHECK(other.Announced().empty());
}

TEST_CASE("evicting a hash takes every copy, the pending ones too") {
  PoolRig rig;
  Blocks first, second;
  rig.Extend(&first, 1);
  rig.Announced();
  rig.Extend(&second, 1);
  CHECK(rig.pool().EvictHash(rig.hash(0), 0) == 2);
  CHECK(rig.Announced() == Texts{"R h0"});
  CHECK(rig.pool().EvictHash(rig.hash(0), 0) == 0);
  CHECK(rig.pool().EvictHash(rig.hash(1), 0) == 0);
}

TEST_CASE("null blocks split a registration, so that tokens and hashes always match") {
  PoolRig rig;
  Blocks table;
  REQUIRE(rig.pool().Allocate(4, &table));
  table[1] = kNullBlock;
  rig.pool().Register(rig.chain(), table, 0, 4, 0);
  CHECK(rig.Announced() == Texts{"S h0 < nil : 1..4", "S h2,h3 < h1 : 9..16"});
  const Blocks only_null = {kNullBlock};
  rig.pool().Register(rig.chain(), only_null, 0, 1, 0);
  CHECK(rig.Announced().empty());
}

TEST_CASE("extra keys are listed per block, nil where a block has none") {
  PoolRig rig;
  Blocks table;
  REQUIRE(rig.pool().Allocate(2, &table));
  const std::vector<ExtraKeys> keys = {{std::string("lora"), std::string("salt")}, {}};
  const LoraAdapter lora{1, "lora"};
  BlockChain chain = rig.chain();
  chain.extra_keys = keys;
  chain.lora = &lora;
  rig.pool().Register(chain, table, 0, 2, 0);
  CHECK(rig.Announced() == Texts{"S h0,h1 < nil : 1..8 [keys (lora salt) ()] [lora 1 lora]"});
  rig.pool().Report(table);
  CHECK(rig.Announced() == Texts{"S h0,h1 < nil : 1..8 [keys (lora salt) ()] [lora 1 lora]"});
}

TEST_CASE("the walk meets ancestors first, however the blocks lie in the pool") {
  PoolRig rig;
  Blocks all;
  REQUIRE(rig.pool().Allocate(4, &all));
  const Blocks table = {all[3], all[2], all[1], all[0]};
  rig.pool().Register(rig.chain(), table, 0, 4, 0);
  rig.pool().AnnouncePending();
  CHECK(rig.Walked() == Texts{"h0", "h1", "h2", "h3"});
  REQUIRE(rig.pool().EvictBlocks(Blocks{table[1]}));
  CHECK(rig.Walked() == Texts{"h2", "h3", "h0"});
}

// A pool whose renewing walk has announced h0 again, not h1 and h2, when h3 is stored in the last of `places`.
class RenewingRig : public PoolRig {
 public:
  explicit RenewingRig(const std::array<std::size_t, 4>& places) {
    Blocks all;
    REQUIRE(pool().Allocate(15, &all));
    for (const std::size_t place : places) table.push_back(all[place]);
    pool().Register(chain(), table, 0, 3, 0);
    REQUIRE(Announced().size() == 1);
    pool().BeginEra();
    pool().BeginWalk(WalkKind::kRenew);
    REQUIRE(Piece(1) == Texts{"S h0 < nil : 1..4"});
    pool().Register(chain(), table, 3, 4, 0);
  }

  Texts Piece(std::size_t blocks) {
    KVEventBatch batch;
    const WalkVisitor add = [&batch](const BlockStored& stored, std::uint32_t) { batch.Add(stored); };
    pool().WalkSome(WalkKind::kRenew, blocks, add);
    return TextsOf(batch);
  }

  Blocks table;
};

constexpr std::array<std::size_t, 4> kAhead = {0, 1, 2, 3};
constexpr std::array<std::size_t, 4> kPassed = {12, 13, 14, 0};  // the walk has been where h3 is

TEST_CASE("a store behind blocks that the renewing walk has not reached is the walk's next piece, parents first") {
  for (const auto& places : {kAhead, kPassed}) {
    RenewingRig rig(places);
    CHECK(rig.Announced() == Texts{});
    CHECK(rig.pool().num_announced(rig.hash(3), 0) == 0);
    CHECK(rig.Piece(1) == Texts{"S h1 < h0 : 5..8"});
    CHECK(rig.Piece(1) == Texts{"S h2 < h1 : 9..12"});
    CHECK(rig.Piece(1) == Texts{"S h3 < h2 : 13..16"});
    CHECK(rig.pool().digest().entries().at(0).count == 4);
    CHECK(rig.Piece(8) == Texts{});
    REQUIRE(rig.pool().EvictBlocks(Blocks{rig.table[3]}));
    CHECK(rig.Recorded() == Texts{"R h3"});
  }
}

TEST_CASE("a store that was left to the renewing walk and goes before it comes is no event at all") {
  for (const auto& places : {kAhead, kPassed}) {
    RenewingRig rig(places);
    CHECK(rig.Announced() == Texts{});
    REQUIRE(rig.pool().EvictBlocks(Blocks{rig.table[3]}));
    CHECK(rig.Recorded() == Texts{});
    CHECK(rig.Piece(8) == Texts{"S h1 < h0 : 5..8", "S h2 < h1 : 9..12"});
  }
}

TEST_CASE("a store that was left to the renewing walk comes without its parent when that has gone") {
  for (const auto& places : {kAhead, kPassed}) {
    RenewingRig rig(places);
    CHECK(rig.Announced() == Texts{});
    REQUIRE(rig.pool().EvictBlocks(Blocks{rig.table[2]}));
    CHECK(rig.Recorded() == Texts{});
    const Texts rest = rig.Piece(8);
    CHECK(rest.size() == 2);
    CHECK(std::ranges::find(rest, "S h3 < h2 : 13..16") != rest.end());
  }
}

TEST_CASE("the digest is the sum over the walk at every moment") {
  PoolRig rig;
  Blocks table;
  const auto walked = [&] {
    StateDigest digest;
    rig.pool().Walk([&](const ResidentBlock& block) { digest.Add(block.group, block.medium, block.hash.Low64()); });
    return digest;
  };
  rig.Extend(&table, 3);
  CHECK(rig.pool().digest() == walked());
  rig.pool().AnnouncePending();
  CHECK(rig.pool().digest() == walked());
  CHECK(rig.pool().digest().entries().at(0).count == 3);
  REQUIRE(rig.pool().EvictBlocks(Blocks{table[2]}));
  CHECK(rig.pool().digest() == walked());
  CHECK(rig.pool().digest().entries().at(0).count == 2);
  rig.pool().Free(table);
  REQUIRE(rig.pool().Reset());
  CHECK(rig.pool().digest() == walked());
  CHECK(rig.pool().digest() == StateDigest());
}

TEST_CASE("a pool without caching registers nothing and still announces a reset") {
  BlockPoolOptions options;
  options.num_blocks = 6;
  options.block_size = 4;
  options.enable_caching = false;
  options.enable_events = true;
  BlockPool pool(options);
  const std::vector<TokenId> tokens = Range(1, 8);
  const std::vector<BlockHash> hashes = ChainOf(HasherWithSeed("0"), tokens, 4);
  BlockChain chain;
  chain.hashes = hashes;
  chain.token_ids = tokens;
  Blocks table;
  REQUIRE(pool.Allocate(2, &table));
  pool.Register(chain, table, 0, 2, 0);
  pool.Report(table);
  pool.AnnouncePending();
  CHECK(pool.recorded().empty());
  CHECK(pool.FindCached(hashes[0], 0) == kNullBlock);
  pool.Free(table);
  CHECK(pool.Reset());
  CHECK(EventTexts(4).Of(pool.TakeEvents()) == Texts{"C"});
}

TEST_CASE("with events off the pool builds no event: what would be one allocates nothing and leaves no trace") {
  const std::vector<TokenId> tokens = Range(1, 16);
  const std::vector<BlockHash> hashes = ChainOf(HasherWithSeed("0"), tokens, 4);
  const std::vector<ExtraKeys> keys(4, ExtraKeys{std::string("a key that does not fit into a short string")});
  const LoraAdapter lora{7, "a name that does not fit into a short string"};
  BlockChain chain;
  chain.hashes = hashes;
  chain.token_ids = tokens;
  chain.extra_keys = keys;
  chain.lora = &lora;
  const auto allocations = [&](bool enabled) {
    BlockPoolOptions options;
    options.num_blocks = 16;
    options.block_size = 4;
    options.enable_events = enabled;
    options.groups = {GroupSpec{}};
    BlockPool pool(std::move(options));
    Blocks table;
    table.reserve(4);
    const auto round = [&] {
      table.clear();
      pool.Allocate(4, &table);
      pool.Register(chain, table, 0, 4, 0);
      pool.AnnouncePending();
      pool.Report(table);
      pool.AnnouncePending();
      static_cast<void>(pool.EvictBlocks(std::span(table).first(1)));
      pool.EvictHash(hashes[3], 0);
      pool.Free(table);
      pool.Reset();
    };
    // What the pool keeps for its own use is there after a round, events recorded so far excepted.
    round();
    const KVEventBatch taken = pool.TakeEvents();
    CHECK(taken.empty() == !enabled);
    const std::size_t start = test::AllocationCount();
    for (int i = 0; i < 20; ++i) round();
    const std::size_t count = test::AllocationCount() - start;
    CHECK(pool.recorded().empty() == !enabled);
    CHECK((pool.recorded().ByteSize() == 0) == !enabled);
    CHECK(pool.digest() == StateDigest());
    CHECK((pool.stats().stored + pool.stats().reported + pool.stats().removed == 0) == !enabled);
    return count;
  };
  CHECK(allocations(false) == 0);
  CHECK(allocations(true) > 0);
}

}  // namespace
}  // namespace kvwire::scheduler
