// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/engine/model_check.h"

#include <doctest/doctest.h>

namespace kvwire::engine {
namespace {

TEST_CASE("under random load outputs do not depend on caching, and announced blocks hold what was announced") {
  RequireSound(4000);
}

TEST_CASE("the same holds for groups of full attention, of windows and of states, and for blocks of several hashes") {
  using enum scheduler::KVCacheKind;
  RequireSound(1000, {{kFullAttention, 4, 0}, {kSlidingWindow, 4, 8}});
  RequireSound(1000, {{kFullAttention, 8, 0}, {kSlidingWindow, 4, 6}});
  RequireSound(1000, {{kFullAttention, 4, 0}, {kMamba, 8, 0}});
  RequireSound(1000, {{kFullAttention, 4, 0}, {kSlidingWindow, 4, 3}, {kSlidingWindow, 8, 11}, {kMamba, 4, 0}});
}

TEST_CASE("D17: the same holds when drafts are verified: what was rejected is in no event and in no output") {
  using enum scheduler::KVCacheKind;
  RequireSound(2000, kDense, 1);
  RequireSound(2000, kDense, 4);
  RequireSound(1000, {{kFullAttention, 8, 0}, {kSlidingWindow, 4, 6}, {kMamba, 4, 0}}, 3);
}

TEST_CASE("A2: the same holds when batches are lost: the stream heals, and who joins by a snapshot agrees") {
  PoolRules rules;
  rules.lost_percent = 3;
  RequireSound(2000, kDense, 0, {}, rules);
  rules.removals = Removals::kPerCopy;
  RequireSound(1000, kDense, 0, {}, rules);
  rules.removals = Removals::kExact;
  RequireSound(1000, kDense, 0, {40, 2, 10, 50}, rules);
}

TEST_CASE(
    "the same holds for partial blocks: a copy of one holds what it was registered with, for both rules of removal") {
  using enum scheduler::KVCacheKind;
  for (const Removals removals : {Removals::kExact, Removals::kPerCopy}) {
    const PoolRules rules{true, removals};
    RequireSound(2000, {{kFullAttention, 12, 0}}, 0, {}, rules);
    RequireSound(2000, {{kFullAttention, 12, 0}, {kSlidingWindow, 4, 8}}, 0, {}, rules);
    RequireSound(2000, {{kFullAttention, 4, 0}, {kMamba, 16, 0}}, 3, {}, rules);
    RequireSound(2000, {{kFullAttention, 8, 0}, {kSlidingWindow, 12, 6}, {kMamba, 20, 0}}, 2, {}, rules);
    RequireSound(2000, {{kFullAttention, 12, 0}, {kSlidingWindow, 8, 8}}, 0, {40, 2, 10, 50}, rules);
  }
}

TEST_CASE("the same holds in the long run") { RequireSound(20000); }

TEST_CASE("a block that is announced before it is computed is caught") { RequireCaught(Fault::kEarlyEvent); }
TEST_CASE("a block that two requests were given is caught") { RequireCaught(Fault::kStolenBlock); }
TEST_CASE("a parent that is not the block's own is caught") { RequireCaught(Fault::kWrongParent); }
TEST_CASE("a removal that is not published is caught") { RequireCaught(Fault::kMissingRemoval); }

}  // namespace
}  // namespace kvwire::engine
