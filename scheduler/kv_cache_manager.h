// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/block_pool.h"
#include "scheduler/kv_cache_group.h"
#include "scheduler/request.h"

namespace kvwire::scheduler {

// The cached prefix of a request.
// Ownership: the blocks belong to the manager; valid until its next GetComputedBlocks.
struct PrefixHit {
  std::span<const std::vector<BlockId>> blocks;  // by group, then position; null where the group needs none
  std::uint32_t num_tokens = 0;
};

// Gives requests their blocks: prefix lookup over all groups, allocation, registration of full blocks, and the return
// of blocks that have left a group's window.
//
// A prefix hit is valid for every group: its length is a multiple of the groups' common alignment, and each group has
// what it needs to compute the position behind it. Blocks are registered up to that alignment only, and of a group only
// those which such a hit can use, so that whatever is announced can be found.
//
// Threads: the step thread.
class KVCacheManager {
 public:
  struct Options {
    BlockPoolOptions pool;  // its groups are taken from `groups`
    // At least one; see CheckGroups.
    std::vector<KVCacheGroup> groups;
    std::uint32_t max_num_batched_tokens = 8192;  // the most that AllocateSlots is asked for at once
    // Reports of "full" requests at every lookup instead of once per admission.
    bool report_at_lookup = false;
  };

  explicit KVCacheManager(Options options);

  // The longest cached prefix, at most num_tokens - 1 tokens of it: the last token must be computed, for its output.
  PrefixHit GetComputedBlocks(const Request& request);

  // How many tokens of a prompt with these hashes are a prefix hit now, without the rule about the last token.
  std::uint32_t CachedTokens(std::span<const BlockHash> hashes) const;

  // Extends the request's block tables so that they hold num_computed_tokens + num_new_tokens tokens, and registers the
  // blocks which these fill. `hit` is the prefix found for a request that holds nothing yet; it is taken over, and its
  // tokens become computed. False if there are not enough blocks; then nothing happens, but that blocks which have left
  // a window are given back.
  // REQUIRES: num_new_tokens > 0.
  bool AllocateSlots(Request* request, std::uint32_t num_new_tokens, const PrefixHit& hit = {});

  // Gives every block back, each group's last one first. The tables are moved to *retired, for who still reads them.
  void Free(Request* request, std::vector<std::vector<std::vector<BlockId>>>* retired = nullptr);

  // The most blocks that a request with this many computed tokens may hold at a time.
  std::uint64_t MostBlocksFor(std::uint64_t num_tokens) const noexcept;

  std::span<const KVCacheGroup> groups() const noexcept { return groups_; }
  BlockPool& pool() noexcept { return pool_; }
  const BlockPool& pool() const noexcept { return pool_; }

 private:
  BlockChain ChainOf(const Request& request, const KVCacheGroup& group) const;
  std::uint32_t FindHit(std::span<const BlockHash> hashes, std::uint64_t max_tokens,
                        std::vector<std::vector<BlockId>>* blocks) const;
  std::uint32_t FindGroupHit(std::span<const BlockHash> hashes, std::size_t group, std::uint32_t max_tokens,
                             std::vector<BlockId>* blocks) const;
  std::span<const BlockId> Reachable(std::size_t group, std::span<const BlockId> table, std::uint32_t first,
                                     std::uint32_t last);
  void ReturnUnneeded(Request* request);

  const bool report_at_lookup_;
  const std::vector<KVCacheGroup> groups_;
  const std::uint32_t hash_block_size_;
  const std::uint32_t alignment_;
  const std::uint32_t max_num_batched_tokens_;
  BlockPool pool_;
  std::vector<std::vector<BlockId>> hit_;    // by group
  std::vector<std::size_t> num_new_blocks_;  // by group
  std::vector<BlockId> reversed_;
  std::vector<BlockId> reachable_;
};

}  // namespace kvwire::scheduler
