// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/block_pool.h"
#include "scheduler/request.h"

namespace kvwire::scheduler {

// The cached prefix of a request.
// Ownership: the blocks belong to the manager; valid until its next GetComputedBlocks.
struct PrefixHit {
  std::span<const BlockId> blocks;
  std::uint32_t num_tokens = 0;
};

// Gives requests their blocks: prefix lookup, allocation, registration of full blocks. One full-attention group.
//
// Threads: the step thread.
class KVCacheManager {
 public:
  struct Options {
    BlockPoolOptions pool;
    // Reports of "full" requests at every lookup instead of once per admission.
    bool report_at_lookup = false;
  };

  explicit KVCacheManager(Options options);

  // The longest cached prefix, at most num_tokens - 1 tokens of it: the last token must be computed, for its output.
  PrefixHit GetComputedBlocks(const Request& request);

  // Extends the request's block table so that it holds num_computed_tokens + num_new_tokens tokens, and registers the
  // blocks which these fill. `hit` is the prefix found for a request that holds nothing yet; it is taken over, and its
  // tokens become computed. False, and nothing happens, if there are not enough blocks.
  // REQUIRES: num_new_tokens > 0.
  bool AllocateSlots(Request* request, std::uint32_t num_new_tokens, const PrefixHit& hit = {});

  // Gives every block back, the last one first. The table is moved to *retired, for who still reads it.
  void Free(Request* request, std::vector<std::vector<BlockId>>* retired = nullptr);

  // Blocks for this many tokens.
  std::uint64_t BlocksFor(std::uint64_t num_tokens) const noexcept {
    return (num_tokens + pool_.block_size() - 1) / pool_.block_size();
  }

  BlockPool& pool() noexcept { return pool_; }
  const BlockPool& pool() const noexcept { return pool_; }

 private:
  static BlockChain ChainOf(const Request& request, std::uint32_t block_size);

  const bool report_at_lookup_;
  BlockPool pool_;
  std::vector<BlockId> hit_;
  std::vector<BlockId> reversed_;
};

}  // namespace kvwire::scheduler
