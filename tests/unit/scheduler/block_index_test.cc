// SPDX-License-Identifier: Apache-2.0
#include "scheduler/block_index.h"

#include <map>
#include <random>
#include <vector>

#include <doctest/doctest.h>

namespace kvwire::scheduler {
namespace {

BlockId Find(const BlockIndex& index, BlockIndex::Tag tag) {
  return index.Find(tag, [](BlockId) { return true; });
}

TEST_CASE("a key is told from another with the same tag by asking the block") {
  BlockIndex index(4);
  index.Insert(7, 1);
  index.Insert(7, 2);
  CHECK(index.Find(7, [](BlockId block) { return block == 2; }) == 2);
  CHECK(index.Find(7, [](BlockId block) { return block == 1; }) == 1);
  CHECK(index.Find(7, [](BlockId) { return false; }) == BlockIndex::kNone);
  CHECK(index.Find(8, [](BlockId) { return true; }) == BlockIndex::kNone);
  index.Erase(7, 1);
  CHECK(Find(index, 7) == 2);
  index.Replace(7, 2, 3);
  CHECK(Find(index, 7) == 3);
  index.Clear();
  CHECK(Find(index, 7) == BlockIndex::kNone);
}

TEST_CASE("the same hash in two groups has two tags") {
  const BlockHash hash = BlockHash::FromUint64(42);
  CHECK(BlockIndex::TagOf(hash, 0) != BlockIndex::TagOf(hash, 1));
}

TEST_CASE("the index agrees with a map over random operations that collide and wrap around") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    BlockIndex index(20);  // 64 slots
    std::map<BlockIndex::Tag, BlockId> model;
    BlockId next = 1;
    for (int step = 0; step < 3000; ++step) {
      // Homes in a small area around the end of the table; tags that differ above the mask.
      const BlockIndex::Tag tag = (60 + random() % 8) % 64 + 64 * (random() % 4);
      if (model.count(tag) != 0) {
        if (random() % 2 == 0) {
          index.Erase(tag, model[tag]);
          model.erase(tag);
        } else {
          index.Replace(tag, model[tag], next);
          model[tag] = next++;
        }
      } else if (model.size() < 20) {
        model[tag] = next++;
        index.Insert(tag, model[tag]);
      }
      if (step % 16 != 0) continue;
      for (BlockIndex::Tag probe = 0; probe < 256; ++probe) {
        const auto known = model.find(probe);
        REQUIRE(Find(index, probe) == (known == model.end() ? BlockIndex::kNone : known->second));
      }
    }
  }
}

}  // namespace
}  // namespace kvwire::scheduler
