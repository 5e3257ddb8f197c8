// SPDX-License-Identifier: Apache-2.0
#include "scheduler/free_block_queue.h"

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include <doctest/doctest.h>

namespace kvwire::scheduler {
namespace {

using Blocks = std::vector<BlockId>;

TEST_CASE("a new queue holds every block but the null block, in id order") {
  CHECK(FreeBlockQueue(5).ToVector() == Blocks{1, 2, 3, 4});
  CHECK(FreeBlockQueue(5).size() == 4);
  CHECK(FreeBlockQueue(1).ToVector().empty());
  CHECK(FreeBlockQueue(1).size() == 0);
}

TEST_CASE("blocks leave at the front and from the middle") {
  FreeBlockQueue queue(6);
  CHECK(queue.PopFront() == 1);
  queue.Remove(4);
  CHECK(queue.ToVector() == Blocks{2, 3, 5});
  queue.Remove(5);
  queue.Remove(2);
  CHECK(queue.ToVector() == Blocks{3});
  CHECK(queue.PopFront() == 3);
  CHECK(queue.size() == 0);
  queue.PushBack(2);
  queue.PushFront(Blocks{1});
  CHECK(queue.ToVector() == Blocks{1, 2});
}

TEST_CASE("a group that is put in front keeps its order, and the group itself may be empty") {
  FreeBlockQueue queue(6);
  for (int i = 0; i < 5; ++i) queue.PopFront();
  queue.PushBack(5);
  queue.PushFront({});
  queue.PushFront(Blocks{3, 1, 2});
  CHECK(queue.ToVector() == Blocks{3, 1, 2, 5});
}

TEST_CASE("the queue agrees with a plain list over random operations") {
  std::mt19937 random(1);
  FreeBlockQueue queue(16);
  std::deque<BlockId> model;
  for (BlockId block = 1; block < 16; ++block) model.push_back(block);
  std::vector<BlockId> taken;
  for (int step = 0; step < 5000; ++step) {
    const unsigned op = random() % 4;
    if (op == 0 && !model.empty()) {
      CHECK(queue.PopFront() == model.front());
      taken.push_back(model.front());
      model.pop_front();
    } else if (op == 1 && !model.empty()) {
      const auto at = model.begin() + random() % model.size();
      queue.Remove(*at);
      taken.push_back(*at);
      model.erase(at);
    } else if (op == 2 && !taken.empty()) {
      queue.PushBack(taken.back());
      model.push_back(taken.back());
      taken.pop_back();
    } else if (op == 3) {
      const auto half = taken.begin() + (taken.size() + 1) / 2;
      const Blocks group(half, taken.end());
      taken.erase(half, taken.end());
      queue.PushFront(group);
      model.insert(model.begin(), group.begin(), group.end());
    }
    REQUIRE(queue.ToVector() == Blocks(model.begin(), model.end()));
    REQUIRE(queue.size() == model.size());
  }
}

}  // namespace
}  // namespace kvwire::scheduler
