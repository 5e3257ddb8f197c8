// SPDX-License-Identifier: Apache-2.0
// Several KV-cache groups in one pool: which prefix all of them can continue from, which blocks they give back, and
// what their events say.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/unit/scheduler/rig.h"

namespace kvwire::scheduler {
namespace {

Blocks TableOf(const SchedulerOutput& step, std::size_t group) { return step.requests.at(0).block_tables[group]; }

TEST_CASE(
    "S11: full attention and a window: two stores per fill, reports of all positions, a sliding window is silent") {
  Rig rig(GroupConfig(20, {{kFull, 4, 0}, {kWindow, 4, 8}}, Mode::kExact));
  const EventTexts texts = CountedNames();
  rig.Add(1, Range(1, 16));
  const std::string in_window = " [group 1] [kind sliding_window] [window 8]";
  rig.Step({17});
  CHECK(rig.Published(texts) == Texts{"S h0,h1,h2,h3 < nil : 1..16", "S h0,h1,h2,h3 < nil : 1..16" + in_window});
  for (const TokenId token : {18, 19, 20}) rig.Step({token});
  CHECK(rig.Published(texts).empty());
  rig.Step({21});
  CHECK(rig.Published(texts) == Texts{"S h4 < h3 : 17..20", "S h4 < h3 : 17..20" + in_window});
  for (const TokenId token : {22, 23, 24}) rig.Step({token});
  CHECK(rig.Published(texts).empty());
  rig.Step({25});
  CHECK(rig.Published(texts) == Texts{"S h5 < h4 : 21..24", "S h5 < h4 : 21..24" + in_window});
  rig.Add(2, With(Range(1, 16), 99), 1, FullReports());
  rig.Step();
  CHECK(rig.Published(texts) == Texts{"S h0,h1,h2,h3 < nil : 1..16", "S h0,h1,h2,h3 < nil : 1..16" + in_window});
}

TEST_CASE("S12: blocks of 8 and of 4 tokens: one event a group, with the tokens of the blocks no hit can use") {
  Rig rig(GroupConfig(30, {{kFull, 8, 0}, {kWindow, 4, 4}}, Mode::kExact));
  rig.Add(1, Range(1, 27));
  rig.Step();
  CHECK(rig.Published(CountedNames()) == Texts{"S h1,h3,h5 < nil : 1..24 [block_size 8]",
                                               "S h1,h3,h5 < nil : 1..24 [group 1] [kind sliding_window] [window 4]"});
}

TEST_CASE("in vLLM's form a call whose blocks are all passed over is an event without hashes") {
  Rig rig(GroupConfig(30, {{kFull, 4, 0}, {kMamba, 8, 0}, {kWindow, 4, 4}}, Mode::kExact));
  rig.Add(1, Range(1, 8));
  rig.Step();
  CHECK(rig.Published(CountedNames()) == Texts{"S h0,h1 < nil : 1..8",
                                               "S h1 < nil : 1..8 [group 1] [block_size 8] [kind mamba]",
                                               "S h1 < nil : 1..8 [group 2] [kind sliding_window] [window 4]"});
}

TEST_CASE("D4: an event covers one dense run, so tokens and hashes always match") {
  Rig rig(GroupConfig(30, {{kFull, 8, 0}, {kWindow, 4, 4}}));
  rig.Add(1, Range(1, 27));
  rig.Step();
  const std::string in_window = " [group 1] [kind sliding_window] [window 4]";
  CHECK(rig.Published(CountedNames()) == Texts{"S h1,h3,h5 < nil : 1..24 [block_size 8]",
                                               "S h1 < h0 : 5..8" + in_window, "S h3 < h2 : 13..16" + in_window,
                                               "S h5 < h4 : 21..24" + in_window});
}

TEST_CASE("D6: the same hash in two groups is two blocks, and evicting one leaves the other") {
  Rig rig(GroupConfig(20, {{kFull, 4, 0}, {kWindow, 4, 8}}));
  Finish(rig, 1, Range(1, 9));
  rig.Published(CountedNames());
  const std::vector<BlockHash> chain = ChainOf(HasherWithSeed("0"), Range(1, 8), 4);
  CHECK(rig.scheduler().EvictHash(chain[0], 1) == 1);
  CHECK(rig.Published(CountedNames()) == Texts{"R h0 [group 1]"});
  CHECK(rig.pool().num_copies(chain[0], 0) == 1);
  CHECK(rig.pool().num_copies(chain[0], 1) == 0);
}

TEST_CASE("a hit must be one for every group") {
  const std::vector<BlockHash> chain = ChainOf(HasherWithSeed("0"), Range(1, 32), 4);
  struct Row {
    std::vector<std::size_t> evicted;  // of the window's group
    std::uint32_t hit;
  };
  // The window of 8 tokens needs two blocks before the end of a hit, or all from the beginning.
  for (const Row& row : {Row{{}, 32}, Row{{0, 1, 2, 3, 4, 5}, 32}, Row{{7}, 28}, Row{{6}, 24}, Row{{7, 5}, 20},
                         Row{{7, 5, 3, 1}, 4}, Row{{7, 5, 3, 0}, 12}, Row{{7, 5, 3, 2, 0}, 0}, Row{{6, 4, 2, 1}, 4}}) {
    Rig rig(GroupConfig(40, {{kFull, 4, 0}, {kWindow, 4, 8}}));
    Finish(rig, 1, Range(1, 33));
    for (const std::size_t block : row.evicted) rig.scheduler().EvictHash(chain[block], 1);
    CHECK(rig.scheduler().CachedTokens(chain) == row.hit);
    CHECK(Finish(rig, 2, With(Range(1, 32), 99)) == row.hit);
  }
  SUBCASE("and full attention may shorten what the window found, which must then do for the window again") {
    Rig rig(GroupConfig(40, {{kWindow, 4, 8}, {kFull, 4, 0}}));
    Finish(rig, 1, Range(1, 33));
    rig.scheduler().EvictHash(chain[5], 1);  // full attention ends at 20
    rig.scheduler().EvictHash(chain[4], 0);  // the window cannot end there
    CHECK(Finish(rig, 2, With(Range(1, 32), 99)) == 16);
  }
}

TEST_CASE("a hit ends at a common multiple of the block sizes, short of the last token") {
  Rig rig(GroupConfig(60, {{kFull, 4, 0}, {kMamba, 12, 0}}));
  Finish(rig, 1, Range(1, 40));
  CHECK(Finish(rig, 2, With(Range(1, 40), 99)) == 36);
  CHECK(Finish(rig, 3, Range(1, 36)) == 24);
  CHECK(Finish(rig, 4, With(Range(1, 23), 99)) == 12);
  CHECK(Finish(rig, 5, With(Range(1, 11), 99)) == 0);
}

TEST_CASE("D5: a prompt shorter than the largest block says nothing in any group") {
  Rig rig(GroupConfig(60, {{kFull, 4, 0}, {kMamba, 24, 0}}));
  rig.Add(1, Range(1, 20));
  rig.Step();
  CHECK(rig.Published(CountedNames()).empty());
}

TEST_CASE("blocks that have left the window come back to the pool, and stay a hit until they are taken") {
  Rig rig(GroupConfig(30, {{kFull, 4, 0}, {kWindow, 4, 4}}));
  rig.Add(1, Range(1, 16));
  SchedulerOutput step = rig.Schedule();
  CHECK(TableOf(step, 0) == Blocks{1, 2, 3, 4});
  CHECK(TableOf(step, 1) == Blocks{5, 6, 7, 8});
  rig.Update(step, {17});
  const std::size_t free = rig.pool().num_free();
  step = rig.Schedule();
  // Position 16 reads 13 to 15.
  CHECK(TableOf(step, 1) == Blocks{0, 0, 0, 8, 10});
  CHECK(TableOf(step, 0) == Blocks{1, 2, 3, 4, 9});
  CHECK(rig.pool().num_free() == free + 3 - 2);
  rig.Update(step, {18});
  CHECK(rig.Published(CountedNames()) ==
        Texts{"S h0,h1,h2,h3 < nil : 1..16", "S h0,h1,h2,h3 < nil : 1..16 [group 1] [kind sliding_window] [window 4]"});
  CHECK(Finish(rig, 2, With(Range(1, 8), 99)) == 8);
}

TEST_CASE("a full request reports of each group the blocks that it holds, in dense runs") {
  Rig rig(GroupConfig(30, {{kFull, 4, 0}, {kWindow, 4, 4}}));
  Finish(rig, 1, Range(1, 17));
  rig.Published(CountedNames());
  rig.Add(2, With(Range(1, 16), 99), 1, FullReports());
  const SchedulerOutput step = rig.Schedule();
  const Blocks window = TableOf(step, 1);
  REQUIRE(window.size() == 5);
  CHECK(Blocks(window.begin(), window.begin() + 3) == Blocks{0, 0, 0});
  rig.Update(step);
  CHECK(rig.Published(CountedNames()) ==
        Texts{"S h0,h1,h2,h3 < nil : 1..16", "S h3 < h2 : 13..16 [group 1] [kind sliding_window] [window 4]"});
}

TEST_CASE("a request whose window is small fits into fewer blocks than its tokens fill") {
  SchedulerConfig config = GroupConfig(24, {{kFull, 16, 0}, {kWindow, 4, 4}});
  config.max_num_batched_tokens = 16;
  Rig rig(config);
  // 13 blocks of 16 tokens; of the window at most ceil((3 + 16) / 4) + 1.
  rig.Add(1, Range(1, 200), 8);
  std::vector<FinishedRequest> finished;
  for (int step = 0; step < 100 && finished.empty(); ++step) finished = rig.Step();
  REQUIRE(finished.size() == 1);
  CHECK(finished[0].num_preemptions == 0);
  NewRequest request;
  request.id = 2;
  request.prompt = Range(1, 290);
  request.max_tokens = 1;
  const Status refused = rig.scheduler().AddRequest(std::move(request));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message == "the request needs 25 blocks; the pool has 23");
}

TEST_CASE("the extra keys of a block are those of all its tokens, whatever the size of a hash block is") {
  Rig rig(GroupConfig(30, {{kFull, 8, 0}}));
  NewRequest request;
  request.id = 1;
  request.prompt = Range(1, 17);
  request.max_tokens = 1;
  request.multimodal = {{"image", 2, 4}, {"other", 12, 2}};
  request.cache_salt = "salt";
  REQUIRE(rig.scheduler().AddRequest(std::move(request)));
  rig.Step();
  EventTexts texts(8);
  BlockContent content;
  content.items = {{"image", 2, 4}, {"other", 12, 2}};
  content.cache_salt = "salt";
  texts.Name("h", ChainOf(HasherWithSeed("0"), Range(1, 16), 4, content));
  CHECK(rig.Published(texts) == Texts{"S h1,h3 < nil : 1..16 [keys (image@2 salt) (other@4)]"});
}

}  // namespace
}  // namespace kvwire::scheduler
