// SPDX-License-Identifier: Apache-2.0
// Blocks of several hash blocks that are registered, found and continued from before they are full.
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "scheduler/block_pool.h"
#include "tests/support/event_mirror.h"
#include "tests/unit/scheduler/rig.h"

namespace kvwire::scheduler {
namespace {

// Hash blocks of 4 tokens.
SchedulerConfig Partial(std::uint32_t num_blocks, std::vector<KVCacheGroup> groups, Mode mode = Mode::kOurs) {
  SchedulerConfig config = GroupConfig(num_blocks, std::move(groups), mode);
  config.partial_blocks = true;
  return config;
}

std::vector<BlockHash> Hashes(std::size_t num_tokens) { return ChainOf(HasherWithSeed("0"), Range(1, num_tokens), 4); }

// Decodes `count` tokens that go on as the prompt does.
void Decode(Rig& rig, TokenId first, std::uint32_t count) {
  for (TokenId token = first; token < first + count; ++token) rig.Step({token});
}

struct Pool {
  Pool(std::uint32_t hash_block_size, std::uint32_t block_size, std::size_t num_tokens)
      : hashes(ChainOf(HasherWithSeed("0"), Range(0, num_tokens), hash_block_size)),
        tokens(Range(0, num_tokens)),
        pool(Options(hash_block_size, block_size)),
        texts(hash_block_size) {
    texts.Name("h", hashes);
    REQUIRE(pool.Allocate(2, &table));
  }

  static BlockPoolOptions Options(std::uint32_t hash_block_size, std::uint32_t block_size) {
    BlockPoolOptions options;
    options.num_blocks = 4;
    options.block_size = hash_block_size;
    options.enable_events = true;
    options.removals = Removals::kPerCopy;
    options.announce_at_registration = true;
    options.partial_blocks = true;
    options.groups.resize(3);
    for (GroupSpec& group : options.groups) group.block_size = block_size;
    return options;
  }

  void Register(std::uint32_t num_tokens, std::uint32_t group) {
    BlockChain chain;
    chain.hashes = hashes;
    chain.token_ids = tokens;
    pool.RegisterPartial(chain, table, num_tokens, group);
  }

  Texts Events() { return texts.Of(pool.TakeEvents()); }

  std::vector<BlockHash> hashes;
  std::vector<TokenId> tokens;
  Blocks table;
  BlockPool pool;
  EventTexts texts;
};

TEST_CASE("vLLM's partial block: the last hash block under the hash before it, once, and removed when it is taken") {
  Pool test(4, 12, 8);
  test.Register(8, 2);
  CHECK(test.Events() == Texts{"S h1 < h0 : 4..7 [group 2]"});
  CHECK(test.pool.FindCached(test.hashes[1], 2) == test.table[0]);
  test.Register(8, 2);
  CHECK(test.Events().empty());
  test.pool.Free(test.table);
  CHECK(test.Events().empty());
  Blocks all;
  REQUIRE(test.pool.Allocate(3, &all));
  CHECK(test.Events() == Texts{"R h1 [group 2]"});
}

TEST_CASE("vLLM's longer partial block: the shorter one is removed, then it is stored") {
  Pool test(2, 6, 10);
  test.Register(8, 0);
  CHECK(test.Events() == Texts{"S h3 < h2 : 6..7"});
  CHECK(test.pool.FindCached(test.hashes[3], 0) == test.table[1]);
  test.Register(10, 0);
  CHECK(test.Events() == Texts{"R h3", "S h4 < h3 : 8..9"});
  CHECK(test.pool.FindCached(test.hashes[3], 0) == kNullBlock);
}

TEST_CASE(
    "vLLM's partial block names nothing as the parent of the first hash block, and of a null block says nothing") {
  Pool test(4, 12, 8);
  test.Register(4, 0);
  CHECK(test.Events() == Texts{"S h0 < nil : 0..3"});
  test.table[0] = kNullBlock;
  test.Register(8, 0);
  CHECK(test.Events().empty());
}

TEST_CASE("D8, D4: a partial block is announced with all tokens of the block so far, under the full block before it") {
  Rig rig(Partial(20, {{kFull, 12, 0}}));
  rig.Add(1, Range(1, 21));
  SUBCASE("when it was computed") {
    const SchedulerOutput step = rig.Schedule();
    CHECK(rig.pool().recorded().empty());
    rig.Update(step, {22});
    CHECK(rig.Published(CountedNames(12)) == Texts{"S h2 < nil : 1..12", "S h4 < h2 : 13..20 [block_size 8]"});
    CHECK(rig.pool().num_announced(Hashes(20)[4], 0) == 1);
  }
  SUBCASE("and not if its request is gone by then") {
    const SchedulerOutput step = rig.Schedule();
    REQUIRE(rig.scheduler().Abort(1));
    rig.Update(step);
    CHECK(rig.Published(CountedNames(12)).empty());
  }
  SUBCASE("and not behind a block that was evicted") {
    const SchedulerOutput step = rig.Schedule();
    REQUIRE(rig.scheduler().EvictBlocks(Blocks{step.requests[0].block_tables[0][0]}));
    rig.Update(step, {22});
    CHECK(rig.Published(CountedNames(12)).empty());
    Decode(rig, 23, 30);
    CHECK(rig.Published(CountedNames(12)).empty());
  }
}

TEST_CASE("D8: nothing is registered behind a block that kept its partial hash because it could not be full") {
  Rig rig(Partial(20, {{kFull, 12, 0}}));
  rig.Add(1, Range(1, 21), 40);
  const SchedulerOutput step = rig.Schedule();
  const Blocks table = step.requests[0].block_tables[0];
  rig.Update(step, {22});
  rig.Published(CountedNames(12));
  REQUIRE(rig.scheduler().EvictBlocks(Blocks{table[0]}));
  CHECK(rig.Published(CountedNames(12)) == Texts{"R h2"});
  for (TokenId token = 23; token < 53; ++token) {
    const SchedulerOutput next = rig.Schedule();
    const Blocks& blocks = next.requests[0].block_tables[0];
    if (blocks.size() > 2) CHECK_FALSE(rig.pool().is_registered(blocks[2]));
    rig.Update(next, {token});
  }
  CHECK(rig.Published(CountedNames(12)).empty());
}

TEST_CASE("D3: a hash that a longer one has replaced is not stored again, and decoding within a block is silent") {
  Rig rig(Partial(20, {{kFull, 12, 0}}));
  rig.Add(1, Range(1, 8), 40);
  rig.Step({9});
  CHECK(rig.Published(CountedNames(12)) == Texts{"S h1 < nil : 1..8 [block_size 8]"});
  Decode(rig, 10, 3);
  CHECK(rig.Published(CountedNames(12)).empty());
  rig.Step({13});
  CHECK(rig.Published(CountedNames(12)) == Texts{"R h1", "S h2 < nil : 1..12"});
  Decode(rig, 14, 3);
  CHECK(rig.Published(CountedNames(12)).empty());
  rig.Step({17});
  CHECK(rig.Published(CountedNames(12)) == Texts{"S h3 < h2 : 13..16 [block_size 4]"});
  Decode(rig, 18, 3);
  CHECK(rig.Published(CountedNames(12)).empty());
  SUBCASE("nor after it was evicted") {
    REQUIRE(rig.scheduler().EvictHash(Hashes(16)[3], 0) == 1);
    CHECK(rig.Published(CountedNames(12)) == Texts{"R h3"});
    rig.Step({21});
    CHECK(rig.Published(CountedNames(12)) == Texts{"S h4 < h2 : 13..20 [block_size 8]"});
    REQUIRE(rig.scheduler().EvictHash(Hashes(20)[4], 0) == 1);
    rig.Published(CountedNames(12));
    Decode(rig, 22, 3);
    CHECK(rig.Published(CountedNames(12)).empty());
  }
  SUBCASE("and the one that replaced it is") {
    rig.Step({21});
    CHECK(rig.Published(CountedNames(12)) == Texts{"R h3", "S h4 < h2 : 13..20 [block_size 8]"});
  }
}

TEST_CASE("D3: the same in vLLM's form, where a partial block stands for its last hash block") {
  Rig rig(Partial(20, {{kFull, 12, 0}}, Mode::kExact));
  rig.Add(1, Range(1, 20), 40);
  rig.Step({21});
  CHECK(rig.Published(CountedNames(12)) == Texts{"S h2 < nil : 1..12", "S h4 < h3 : 17..20 [block_size 4]"});
  Decode(rig, 22, 3);
  CHECK(rig.Published(CountedNames(12)).empty());
  rig.Step({25});
  CHECK(rig.Published(CountedNames(12)) == Texts{"R h4", "S h5 < h2 : 13..24"});
  Decode(rig, 26, 3);
  CHECK(rig.Published(CountedNames(12)).empty());
}

TEST_CASE("a hit ends at any hash block at which every group has what it needs") {
  struct Row {
    std::vector<KVCacheGroup> groups;
    std::uint32_t within;  // the hit of 1 to 16 and another token, after a request of 1 to 21
  };
  for (const Row& row : {Row{{{kFull, 12, 0}}, 12}, Row{{{kFull, 12, 0}, {kWindow, 4, 6}}, 12},
                         Row{{{kFull, 4, 0}, {kMamba, 12, 0}}, 12}, Row{{{kWindow, 12, 30}}, 12},
                         Row{{{kWindow, 12, 5}, {kFull, 8, 0}}, 0}}) {
    Rig rig(Partial(40, row.groups));
    CHECK(Finish(rig, 1, Range(1, 21)) == 0);
    CHECK(Finish(rig, 2, With(Range(1, 20), 99)) == 20);
    CHECK(rig.scheduler().CachedTokens(Hashes(20)) == 20);
    CHECK(Finish(rig, 3, Range(1, 20)) == row.within);
    CHECK(Finish(rig, 4, With(Range(1, 16), 99)) == row.within);
    CHECK(Finish(rig, 5, With(Range(1, 16), 98)) == 16);
  }
}

TEST_CASE("a window needs the full blocks before a partial one as far as it reaches, or all") {
  const std::vector<BlockHash> chain = Hashes(32);
  struct Row {
    std::uint32_t window;
    std::vector<std::size_t> evicted;
    std::uint32_t hit;
  };
  // Blocks end at 12 and 24, the partial one at 32.
  for (const Row& row : {Row{9, {2, 5}, 32}, Row{10, {2}, 32}, Row{10, {5}, 12}, Row{22, {2}, 0}, Row{21, {2}, 32},
                         Row{22, {}, 32}, Row{22, {7}, 24}, Row{13, {7, 2}, 24}, Row{14, {7, 2}, 0}}) {
    Rig rig(Partial(40, {{kWindow, 12, row.window}}));
    Finish(rig, 1, Range(1, 33));
    for (const std::size_t hash : row.evicted) REQUIRE(rig.scheduler().EvictHash(chain[hash], 0) == 1);
    CHECK(rig.scheduler().CachedTokens(chain) == row.hit);
  }
}

TEST_CASE("who continues from a partial block gets a block of its own and a copy, which is not announced") {
  Rig rig(Partial(20, {{kFull, 12, 0}}));
  rig.Add(1, Range(1, 21), 40);
  SchedulerOutput step = rig.Schedule();
  const Blocks first = step.requests[0].block_tables[0];
  CHECK(step.copies.empty());
  rig.Update(step, {22});
  rig.Published(CountedNames(12));
  rig.Add(2, With(Range(1, 20), 99), 40);
  step = rig.Schedule();
  REQUIRE(step.requests.size() == 2);
  const Blocks second = step.requests[1].block_tables[0];
  REQUIRE(second.size() == 2);
  CHECK(second[0] == first[0]);
  CHECK(second[1] != first[1]);
  REQUIRE(step.copies.size() == 1);
  CHECK(step.copies[0].source == first[1]);
  CHECK(step.copies[0].destination == second[1]);
  CHECK(step.copies[0].group == 0);
  CHECK(step.copies[0].num_tokens == 8);
  CHECK(step.requests[1].num_computed_tokens == 20);
  CHECK(rig.pool().num_references(first[1]) == 2);
  CHECK_FALSE(rig.pool().is_registered(second[1]));
  rig.Update(step, {23, 100});
  CHECK(rig.pool().num_references(first[1]) == 1);
  CHECK(rig.Published(CountedNames(12)).empty());
}

TEST_CASE("the source of a copy is held until the step ends, whatever becomes of the requests") {
  Rig rig(Partial(20, {{kFull, 12, 0}}));
  Finish(rig, 1, Range(1, 21));
  rig.Published(CountedNames(12));
  rig.Add(2, With(Range(1, 20), 99), 40);
  const SchedulerOutput step = rig.Schedule();
  REQUIRE(step.copies.size() == 1);
  const BlockId source = step.copies[0].source;
  SUBCASE("an abort") {
    REQUIRE(rig.scheduler().Abort(2));
    CHECK(rig.pool().num_references(source) == 1);
    CHECK(rig.scheduler().ResetPrefixCache(ResetMode::kFailWhileRunning));
  }
  SUBCASE("an eviction") {
    REQUIRE(rig.scheduler().EvictBlocks(Blocks{source}));
    CHECK(rig.pool().num_references(source) == 1);
  }
  SUBCASE("a reset needs the step's blocks no more") {
    CHECK(rig.scheduler().ResetPrefixCache(ResetMode::kPreemptRunning));
  }
  rig.Update(step);
  CHECK(rig.pool().num_references(source) == 0);
}

TEST_CASE("D11: what a block was to be registered with is not announced if its request is gone by then") {
  Rig rig(Partial(20, {{kFull, 12, 0}}));
  rig.Add(1, Range(1, 20), 40);
  rig.Step({21});
  Decode(rig, 22, 3);
  rig.Published(CountedNames(12));
  const SchedulerOutput step = rig.Schedule();  // fills the third hash block
  REQUIRE(rig.scheduler().Abort(1));
  rig.Update(step);
  CHECK(rig.Published(CountedNames(12)) == Texts{"R h4"});
  CHECK(rig.pool().num_free() == 19);
}

TEST_CASE("what the step itself computes is not copied from") {
  for (const Mode mode : {Mode::kOurs, Mode::kExact}) {
    Rig rig(Partial(20, {{kFull, 12, 0}}, mode));
    rig.Add(1, Range(1, 21), 40);
    rig.Add(2, With(Range(1, 20), 99), 40);
    SchedulerOutput step = rig.Schedule();
    REQUIRE(step.requests.size() == 2);
    CHECK(step.requests[1].num_computed_tokens == 12);
    CHECK(step.copies.empty());
    rig.Update(step);
    rig.Add(3, With(Range(1, 20), 98), 40);
    step = rig.Schedule();
    REQUIRE(step.requests.size() == 3);
    CHECK(step.requests[2].num_computed_tokens == 20);
    CHECK(step.copies.size() == 1);
    rig.Update(step);
  }
}

TEST_CASE("a request is admitted only if there is a block to copy to besides the one it is copied from") {
  Rig rig(Partial(5, {{kFull, 12, 0}}));
  NewRequest large;
  large.id = 1;
  large.prompt = Range(1, 40);
  const Status refused = rig.scheduler().AddRequest(large);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message == "the request needs 5 blocks; the pool has 4");
  rig.Add(1, Range(1, 20), 8);
  rig.Step();
  rig.Add(2, Range(101, 12), 8);  // the other two
  rig.Step();
  rig.Add(3, With(Range(1, 20), 99), 1);
  SchedulerOutput step = rig.Schedule();
  CHECK(step.requests.size() == 2);
  CHECK(step.copies.empty());
  REQUIRE(rig.scheduler().Abort(2));
  rig.Update(step);
  step = rig.Schedule();
  CHECK(step.copies.size() == 1);
  rig.Update(step);
}

TEST_CASE("D10: a full report names a partial block in an event of its own") {
  Rig rig(Partial(20, {{kFull, 12, 0}, {kWindow, 12, 4}}));
  Finish(rig, 1, Range(1, 33));
  rig.Published(CountedNames(12));
  rig.Add(2, With(Range(1, 32), 99), 1, FullReports());
  rig.Step();
  CHECK(rig.Published(CountedNames(12)) ==
        Texts{"S h2,h5 < nil : 1..24", "S h7 < h5 : 25..32 [block_size 8]",
              "S h7 < h5 : 25..32 [group 1] [block_size 8] [kind sliding_window] [window 4]"});
}

TEST_CASE("in vLLM's form a full report names the full blocks of the hit") {
  Rig rig(Partial(20, {{kFull, 12, 0}}, Mode::kExact));
  Finish(rig, 1, Range(1, 33));
  rig.Published(CountedNames(12));
  rig.Add(2, With(Range(1, 32), 99), 1, FullReports());
  rig.Step();
  CHECK(rig.Published(CountedNames(12)) == Texts{"S h2,h5 < nil : 1..24"});
}

TEST_CASE("the extra keys of a partial block are those of the tokens it is announced with") {
  BlockContent content;
  content.items = {{"image", 2, 4}, {"other", 16, 4}};
  content.cache_salt = "salt";
  for (const Mode mode : {Mode::kOurs, Mode::kExact}) {
    Rig rig(Partial(30, {{kFull, 12, 0}}, mode));
    NewRequest request;
    request.id = 1;
    request.prompt = Range(1, 21);
    request.max_tokens = 1;
    request.multimodal = content.items;
    request.cache_salt = content.cache_salt;
    REQUIRE(rig.scheduler().AddRequest(std::move(request)));
    rig.Step();
    EventTexts texts(12);
    texts.Name("h", ChainOf(HasherWithSeed("0"), Range(1, 20), 4, content));
    CHECK(rig.Published(texts) == Texts{"S h2 < nil : 1..12 [keys (image@2 salt)]",
                                        mode == Mode::kOurs ? "S h4 < h2 : 13..20 [keys (other@4)] [block_size 8]"
                                                            : "S h4 < h3 : 17..20 [keys (other@0)] [block_size 4]"});
  }
}

TEST_CASE("a hash in several partial blocks leaves with the last of them, or once for each under per_copy") {
  for (const Removals removals : {Removals::kExact, Removals::kPerCopy}) {
    SchedulerConfig config = Partial(20, {{kFull, 12, 0}});
    config.removals = removals;
    Rig rig(config);
    // Both are in one step, so neither copies from the other.
    rig.Add(1, With(Range(1, 20), 98), 8);
    rig.Add(2, With(Range(1, 20), 99), 8);
    rig.Step({1, 2});
    CHECK(rig.Published(CountedNames(12)) ==
          Texts{"S h2 < nil : 1..12", "S h4 < h2 : 13..20 [block_size 8]", "S h4 < h2 : 13..20 [block_size 8]"});
    rig.Step({1, 2});
    rig.Step({1, 2});
    CHECK(rig.Published(CountedNames(12)).empty());
    REQUIRE(rig.scheduler().Abort(2));
    rig.Step({1});
    const Texts events = rig.Published(CountedNames(12));
    REQUIRE_FALSE(events.empty());
    // The first one is full, the second one, which nobody holds, keeps the hash.
    CHECK((events[0] == "R h4") == (removals == Removals::kPerCopy));
    CHECK(rig.pool().num_announced(Hashes(20)[4], 0) == (removals == Removals::kPerCopy ? 1 : 2));
  }
}

TEST_CASE("a walk tells the tokens and the parent of a partial block as they were announced") {
  for (const Mode mode : {Mode::kOurs, Mode::kExact}) {
    Rig rig(Partial(20, {{kFull, 12, 0}}, mode));
    rig.Add(1, Range(1, 21));
    rig.Step();
    testing::EventMirror mirror;
    for (const KVEventBatch& batch : rig.publisher().TakeBatches()) mirror.Apply(batch);
    CHECK(mirror.size() == 2);
    CHECK(
        mirror
            .Compare(rig.pool(), rig.pool().digest(),
                     [&](const BlockHash& hash, std::uint32_t group) { return rig.pool().num_announced(hash, group); })
            .empty());
  }
}

TEST_CASE("a lower tier takes full blocks only") {
  SchedulerConfig config = Partial(12, {{kFull, 12, 0}});
  config.host_blocks = 20;
  Rig rig(config);
  Finish(rig, 1, Range(1, 21));
  // Both blocks are among the next victims of the next step.
  rig.Add(2, Range(101, 80), 1);
  const SchedulerOutput step = rig.Schedule();
  REQUIRE(step.stores.size() == 1);
  CHECK(rig.pool().Describe(step.stores[0].device_block).hash == Hashes(12)[2]);
  rig.Update(step);
}

TEST_CASE("partial blocks change nothing where every block is one hash block") {
  for (const bool partial_blocks : {false, true}) {
    SchedulerConfig config = SmallConfig(20);
    config.partial_blocks = partial_blocks;
    Rig rig(config);
    EventTexts texts(4);
    texts.Name("h", Hashes(16));
    rig.Add(1, Range(1, 10));
    rig.Step({11});
    CHECK(rig.Published(texts) == Texts{"S h0,h1 < nil : 1..8"});
    rig.Add(2, Range(1, 10));
    const SchedulerOutput step = rig.Schedule();
    CHECK(step.copies.empty());
    rig.Update(step);
  }
}

}  // namespace
}  // namespace kvwire::scheduler
