// SPDX-License-Identifier: Apache-2.0
#include "scheduler/kv_cache_group.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace kvwire::scheduler {

namespace {

// A hit may end only at multiples of the alignment; larger ones would be no hits at all.
constexpr std::uint32_t kMaxAlignment = 1u << 20;
constexpr std::size_t kMaxGroups = 64;

tl::unexpected<Error> Refuse(std::size_t group, std::string_view field, std::uint32_t value, std::string_view allowed) {
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("groups[{}].{} is {}; allowed: {}", group, field, value, allowed));
}

}  // namespace

std::string_view KindName(KVCacheKind kind) noexcept {
  switch (kind) {
    case KVCacheKind::kFullAttention:
      return "full_attention";
    case KVCacheKind::kSlidingWindow:
      return "sliding_window";
    case KVCacheKind::kMamba:
      return "mamba";
  }
  return "";
}

std::uint32_t KVCacheGroup::NumUnneededTokens(std::uint32_t num_computed_tokens) const noexcept {
  switch (kind) {
    case KVCacheKind::kFullAttention:
      return 0;
    case KVCacheKind::kSlidingWindow:
      return num_computed_tokens < sliding_window ? 0 : num_computed_tokens - sliding_window + 1;
    case KVCacheKind::kMamba:
      return num_computed_tokens == 0 ? 0 : num_computed_tokens - 1;
  }
  return 0;
}

std::uint32_t KVCacheGroup::TokensBeforeHit() const noexcept {
  switch (kind) {
    case KVCacheKind::kFullAttention:
      return 0;
    case KVCacheKind::kSlidingWindow:
      return sliding_window - 1;
    case KVCacheKind::kMamba:
      return 1;
  }
  return 0;
}

std::uint32_t KVCacheGroup::BlocksBeforeHit() const noexcept {
  const std::uint32_t tokens = TokensBeforeHit();
  return tokens == 0 ? 0 : (tokens - 1) / block_size + 1;
}

std::uint32_t HitAlignment(std::span<const KVCacheGroup> groups) noexcept {
  std::uint32_t alignment = 1;
  for (const KVCacheGroup& group : groups) alignment = std::lcm(alignment, group.block_size);
  return alignment;
}

bool IsReachable(const KVCacheGroup& group, std::uint32_t position, std::uint32_t alignment) noexcept {
  const std::uint32_t needed = group.BlocksBeforeHit();
  if (needed == 0) return true;
  const std::uint32_t blocks = alignment / group.block_size;
  const std::uint32_t blocks_behind = blocks - 1 - position % blocks;  // up to the next end of a hit
  return blocks_behind < needed;
}

Status CheckGroups(std::span<const KVCacheGroup> groups, std::uint32_t hash_block_size) {
  if (groups.empty() || groups.size() > kMaxGroups) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("there are {} groups; allowed: 1 to {}", groups.size(), kMaxGroups));
  }
  std::uint64_t alignment = 1;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const KVCacheGroup& group = groups[i];
    if (group.block_size == 0 || group.block_size % hash_block_size != 0) {
      return Refuse(i, "block_size", group.block_size,
                    fmt::format("multiples of the hash block size, {}", hash_block_size));
    }
    alignment = std::lcm(alignment, std::uint64_t{group.block_size});
    if (alignment > kMaxAlignment) {
      return Refuse(i, "block_size", group.block_size,
                    fmt::format("a least common multiple of all groups' block sizes up to {}", kMaxAlignment));
    }
    if (group.kind == KVCacheKind::kSlidingWindow && group.sliding_window < 2) {
      return Refuse(i, "sliding_window", group.sliding_window, "2 or more");
    }
    if (group.kind != KVCacheKind::kSlidingWindow && group.sliding_window != 0) {
      return Refuse(i, "sliding_window", group.sliding_window,
                    fmt::format("none, as the kind is {}", KindName(group.kind)));
    }
  }
  return {};
}

}  // namespace kvwire::scheduler
