// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kv_events/error.h"

namespace kvwire::scheduler {

// What the layers of a group need of the tokens before the one they compute.
enum class KVCacheKind : std::uint8_t {
  kFullAttention,  // all of them
  kSlidingWindow,  // the last sliding_window - 1
  kMamba,          // the state after the token before it
};

// "full_attention", "sliding_window", "mamba", as events say it.
std::string_view KindName(KVCacheKind kind) noexcept;

// Layers that share one block table. All groups take their physical blocks from one pool.
struct KVCacheGroup {
  KVCacheKind kind = KVCacheKind::kFullAttention;
  std::uint32_t block_size = 16;     // tokens per block; a multiple of the hash block size
  std::uint32_t sliding_window = 0;  // tokens, of kSlidingWindow only; at least 2

  // Leading tokens that the position after num_computed_tokens no longer needs.
  std::uint32_t NumUnneededTokens(std::uint32_t num_computed_tokens) const noexcept;

  // How many tokens before a position must be there so that it can be computed; 0: all.
  std::uint32_t TokensBeforeHit() const noexcept;

  // How many blocks in a row before a position must be cached so that it can be computed; 0: all.
  std::uint32_t BlocksBeforeHit() const noexcept;

  friend bool operator==(const KVCacheGroup&, const KVCacheGroup&) = default;
};

// The tokens of a prefix hit are a multiple of this, unless there are partial blocks: the least common multiple of the
// groups' block sizes.
std::uint32_t HitAlignment(std::span<const KVCacheGroup> groups) noexcept;

// Whether a hit can ever use the block at this position of the group: a hit ends at a multiple of `alignment` and needs
// only the blocks right before its end.
bool IsReachable(const KVCacheGroup& group, std::uint32_t position, std::uint32_t alignment) noexcept;

// Errors: kInvalidArgument names group, field, value and what is allowed.
Status CheckGroups(std::span<const KVCacheGroup> groups, std::uint32_t hash_block_size);

}  // namespace kvwire::scheduler
