// SPDX-License-Identifier: Apache-2.0
// StreamChecker on groups other than full attention, which skip blocks.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/subscribe/stream_checker.h"
#include "tests/unit/subscribe/checker_bench.h"

namespace kvwire::test {
namespace {

// A BlockStored of a group of this kind.
BlockStored OfKind(std::optional<std::string_view> kind, std::span<const BlockHash> hashes,
                   std::span<const TokenId> tokens, std::uint32_t block_size) {
  BlockStored stored;
  stored.block_hashes = hashes;
  stored.token_ids = tokens;
  stored.block_size = block_size;
  stored.group_idx = 1;
  stored.kv_cache_spec_kind = kind;
  return stored;
}

TEST_CASE("known-parent: a group that skips blocks may name a skipped one as the parent, and that is counted") {
  const BlockHash hash = BlockHash::FromUint64(3);
  const std::vector<TokenId> tokens{1, 2};
  for (const std::string_view kind : {"sliding_window", "mamba"}) {
    CAPTURE(kind);
    Bench bench;
    BlockStored stored = OfKind(kind, {&hash, 1}, tokens, 2);
    stored.parent_block_hash = BlockHash::FromUint64(2);
    bench.batch.Add(stored);
    bench.End();
    stored.parent_block_hash = hash;
    bench.batch.Add(stored);
    bench.End();
    CHECK(bench.checker.Verdict() == CheckVerdict::kClean);
    CHECK(bench.checker.counts().skipped_parents == 1);
  }
  for (const std::optional<std::string_view> kind : {std::optional<std::string_view>(), {"full_attention"}}) {
    Bench bench;
    BlockStored stored = OfKind(kind, {&hash, 1}, tokens, 2);
    stored.parent_block_hash = BlockHash::FromUint64(2);
    bench.batch.Add(stored);
    bench.End();
    CHECK(bench.Only() == CheckRule::kKnownParent);
    CHECK(bench.checker.counts().skipped_parents == 0);
  }
}

TEST_CASE("known-parent: a lower tier may announce a child before its parent, and that is counted") {
  const BlockHash hash = BlockHash::FromUint64(3);
  const std::vector<TokenId> tokens{1, 2};
  for (const auto& [medium, skipped] :
       {std::pair<std::string_view, std::uint64_t>{"CPU", 1}, {"disk", 1}, {"gpu", 0}}) {
    CAPTURE(medium);
    Bench bench;
    BlockStored stored = OfKind("full_attention", {&hash, 1}, tokens, 2);
    stored.parent_block_hash = BlockHash::FromUint64(2);
    stored.medium = medium;
    bench.batch.Add(stored);
    bench.End();
    CHECK(bench.checker.counts().skipped_parents == skipped);
    CHECK((bench.checker.Verdict() == CheckVerdict::kClean) == (skipped == 1));
  }
}

TEST_CASE("known-parent: behind a gap a skipped parent is no parent that the gap hides") {
  Bench bench;
  StreamGap gap;
  gap.from = 0;
  gap.to = 3;
  bench.checker.OnGap(gap);
  bench.number = 4;
  const BlockHash hash = BlockHash::FromUint64(3);
  const std::vector<TokenId> tokens{1, 2};
  BlockStored stored = OfKind("sliding_window", {&hash, 1}, tokens, 2);
  stored.parent_block_hash = BlockHash::FromUint64(2);
  bench.batch.Add(stored);
  bench.End();
  CHECK(bench.checker.counts().unjudged == 0);
  CHECK(bench.checker.counts().skipped_parents == 1);
}

TEST_CASE(
    "a partial block, whose block_size is below its group's, is a block like others and leaves for a longer one") {
  const std::vector<TokenId> tokens{1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<BlockHash> hashes{BlockHash::FromUint64(1), BlockHash::FromUint64(2), BlockHash::FromUint64(3)};
  const std::span<const BlockHash> all(hashes);
  const std::span<const TokenId> ids(tokens);
  for (const std::string_view kind : {"full_attention", "sliding_window", "mamba"}) {
    CAPTURE(kind);
    Bench bench;
    bench.batch.Add(OfKind(kind, all.first(1), ids.first(4), 4));
    BlockStored partial = OfKind(kind, all.subspan(1, 1), ids.subspan(4, 2), 2);
    partial.parent_block_hash = hashes[0];
    bench.batch.Add(partial);
    bench.End();
    BlockRemoved removed;
    removed.block_hashes = all.subspan(1, 1);
    removed.group_idx = 1;
    bench.batch.Add(removed);
    BlockStored full = OfKind(kind, all.subspan(2, 1), ids.subspan(4, 4), 4);
    full.parent_block_hash = hashes[0];
    bench.batch.Add(full);
    bench.End();
    CHECK(bench.checker.Verdict() == CheckVerdict::kClean);
    CHECK(bench.checker.counts().masked_events == 0);
    CHECK(bench.checker.counts().skipped_parents == 0);
  }
}

TEST_CASE("W11: token-count: an event of a group that skips blocks may carry their tokens, too, and that is counted") {
  const std::vector<TokenId> tokens{1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<BlockHash> hashes{BlockHash::FromUint64(1), BlockHash::FromUint64(2), BlockHash::FromUint64(3)};
  const auto check = [](std::optional<std::string_view> kind, std::span<const BlockHash> blocks,
                        std::span<const TokenId> ids, std::uint32_t block_size) {
    Bench bench;
    bench.batch.Add(OfKind(kind, blocks, ids, block_size));
    bench.End();
    for (const Violation& violation : bench.violations) CHECK(violation.rule == CheckRule::kTokenCount);
    return std::pair(bench.violations.size(), bench.checker.counts().masked_events);
  };
  using Found = std::pair<std::size_t, std::uint64_t>;
  const std::span<const BlockHash> all(hashes);
  const std::span<const TokenId> ids(tokens);
  for (const std::string_view kind : {"sliding_window", "mamba"}) {
    CAPTURE(kind);
    CHECK(check(kind, all.first(2), ids, 4) == Found{0, 0});
    CHECK(check(kind, all.first(1), ids, 4) == Found{0, 1});
    CHECK(check(kind, {}, ids, 4) == Found{0, 1});
    CHECK(check(kind, all, {}, 4) == Found{0, 0});
    CHECK(check(kind, all.first(1), ids.first(6), 4) == Found{1, 0});
    CHECK(check(kind, all, ids, 4) == Found{1, 0});
    CHECK(check(kind, {}, ids, 0) == Found{1, 0});
  }
  for (const std::optional<std::string_view> kind : {std::optional<std::string_view>(), {"full_attention"}}) {
    CHECK(check(kind, all.first(2), ids, 4) == Found{0, 0});
    CHECK(check(kind, all.first(1), ids, 4) == Found{1, 0});
    CHECK(check(kind, {}, ids, 4) == Found{1, 0});
    CHECK(check(kind, all.first(1), ids.first(6), 4) == Found{1, 0});
    CHECK(check(kind, all, ids, 4) == Found{1, 0});
  }
}

}  // namespace
}  // namespace kvwire::test
