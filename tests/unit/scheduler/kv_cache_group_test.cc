// SPDX-License-Identifier: Apache-2.0
#include "scheduler/kv_cache_group.h"

#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace kvwire::scheduler {
namespace {

constexpr KVCacheKind kFull = KVCacheKind::kFullAttention;
constexpr KVCacheKind kWindow = KVCacheKind::kSlidingWindow;
constexpr KVCacheKind kMamba = KVCacheKind::kMamba;

// The positions of the group, counted from 0, that a hit can use.
std::vector<std::uint32_t> Reachable(const KVCacheGroup& group, std::uint32_t alignment, std::uint32_t count) {
  std::vector<std::uint32_t> positions;
  for (std::uint32_t position = 0; position < count; ++position) {
    if (IsReachable(group, position, alignment)) positions.push_back(position);
  }
  return positions;
}

TEST_CASE("what a position no longer needs: nothing, what has left the window, all but the state before it") {
  const KVCacheGroup window{kWindow, 4, 8};
  struct Row {
    std::uint32_t computed;
    std::uint32_t window;
    std::uint32_t mamba;
  };
  for (const Row& row : {Row{0, 0, 0}, Row{1, 0, 0}, Row{7, 0, 6}, Row{8, 1, 7}, Row{100, 93, 99}}) {
    CAPTURE(row.computed);
    CHECK(KVCacheGroup{kFull, 4, 0}.NumUnneededTokens(row.computed) == 0);
    CHECK(window.NumUnneededTokens(row.computed) == row.window);
    CHECK(KVCacheGroup{kMamba, 4, 0}.NumUnneededTokens(row.computed) == row.mamba);
  }
}

TEST_CASE("the blocks before a hit hold the window's tokens but the one that is computed") {
  struct Row {
    std::uint32_t block_size;
    std::uint32_t window;
    std::uint32_t blocks;
  };
  for (const Row& row : {Row{4, 2, 1}, Row{4, 4, 1}, Row{4, 5, 1}, Row{4, 6, 2}, Row{4, 8, 2}, Row{4, 9, 2},
                         Row{4, 10, 3}, Row{16, 4096, 256}, Row{16, 4097, 256}, Row{1, 3, 2}}) {
    CAPTURE(row.block_size);
    CAPTURE(row.window);
    CHECK(KVCacheGroup{kWindow, row.block_size, row.window}.BlocksBeforeHit() == row.blocks);
  }
  CHECK(KVCacheGroup{kFull, 4, 0}.BlocksBeforeHit() == 0);
  CHECK(KVCacheGroup{kMamba, 4, 0}.BlocksBeforeHit() == 1);
}

TEST_CASE("a hit ends at a common multiple, and only the blocks right before such an end are reachable") {
  const std::vector<KVCacheGroup> groups = {{kFull, 8, 0}, {kWindow, 4, 4}, {kMamba, 24, 0}};
  CHECK(HitAlignment(groups) == 24);
  CHECK(Reachable(groups[0], 8, 4) == std::vector<std::uint32_t>{0, 1, 2, 3});
  CHECK(Reachable({kWindow, 4, 4}, 8, 8) == std::vector<std::uint32_t>{1, 3, 5, 7});
  CHECK(Reachable({kWindow, 4, 6}, 16, 8) == std::vector<std::uint32_t>{2, 3, 6, 7});
  CHECK(Reachable({kWindow, 4, 8}, 4, 4) == std::vector<std::uint32_t>{0, 1, 2, 3});
  CHECK(Reachable({kWindow, 4, 100}, 16, 4) == std::vector<std::uint32_t>{0, 1, 2, 3});
  CHECK(Reachable({kMamba, 4, 0}, 12, 6) == std::vector<std::uint32_t>{2, 5});
}

TEST_CASE("groups that cannot work are refused by group, field, value and bound") {
  struct Row {
    std::vector<KVCacheGroup> groups;
    std::string message;
  };
  for (const Row& row :
       {Row{{}, "there are 0 groups; allowed: 1 to 64"},
        Row{{{kFull, 6, 0}}, "groups[0].block_size is 6; allowed: multiples of the hash block size, 4"},
        Row{{{kFull, 0, 0}}, "groups[0].block_size is 0; allowed: multiples of the hash block size, 4"},
        Row{{{kFull, 4, 0}, {kWindow, 4, 1}}, "groups[1].sliding_window is 1; allowed: 2 or more"},
        Row{{{kFull, 4, 8}}, "groups[0].sliding_window is 8; allowed: none, as the kind is full_attention"},
        Row{{{kFull, 1048576, 0}, {kMamba, 12, 0}},
            "groups[1].block_size is 12; allowed: a least common multiple of all groups' block sizes up to 1048576"}}) {
    const Status status = CheckGroups(row.groups, 4);
    REQUIRE_FALSE(status);
    CHECK(status.error().message == row.message);
  }
  CHECK(CheckGroups(std::vector<KVCacheGroup>{{kFull, 8, 0}, {kWindow, 4, 2}, {kMamba, 4, 0}}, 4));
}

}  // namespace
}  // namespace kvwire::scheduler
