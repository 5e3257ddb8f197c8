// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "scheduler/block_pool.h"
#include "scheduler/kv_cache_group.h"
#include "scheduler/kv_connector.h"
#include "scheduler/request.h"

namespace kvwire::scheduler {

// A group's part of a prefix hit, by position. Of device block and lower tier's block at most one is given, none where
// the group needs none. Where the hit ends within a block, the last one is a device block that is registered up to
// there.
struct GroupHit {
  std::vector<BlockId> blocks;
  std::vector<HostBlockId> host_blocks;  // to be loaded; as many as `blocks`
};

// The cached prefix of a request.
// Ownership: the blocks belong to the manager; valid until its next GetComputedBlocks.
struct PrefixHit {
  std::span<const GroupHit> groups;
  std::uint32_t num_tokens = 0;
  // Of these, those that some group has to load: from the disk, or else from the host.
  std::uint32_t num_host_tokens = 0;
  std::uint32_t num_disk_tokens = 0;
};

// How many blocks are held.
std::size_t CountBlocks(const KeptBlocks& kept);

// Gives requests their blocks: prefix lookup over all groups, allocation, registration of full blocks, and the return
// of blocks that have left a group's window.
//
// A prefix hit is valid for every group: its length is a multiple of the groups' common alignment, and each group has
// what it needs to compute the position behind it. Blocks are registered up to that alignment only, and of a group only
// those which such a hit can use, so that whatever is announced can be found.
//
// With partial blocks a hit may end at every multiple of the hash block, and the last block of a request is registered
// as far as its hash blocks are full. A request that continues within a block gets a block of its own, and the step
// copies what it continues from. Only what was computed before the step is copied.
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

  // The lower tiers that lookups ask where the pool has nothing; outlives the manager. Null: none.
  void set_connector(KVConnector* connector) noexcept { connector_ = connector; }

  // The longest cached prefix, at most num_tokens - 1 tokens of it: the last token must be computed, for its output.
  PrefixHit GetComputedBlocks(const Request& request);

  // How many tokens of a prompt with these hashes are a prefix hit now, without the rule about the last token.
  std::uint32_t CachedTokens(std::span<const BlockHash> hashes) const;

  // Extends the request's block tables so that they hold num_computed_tokens + num_new_tokens tokens, and registers the
  // blocks which these fill. `hit` is the prefix found for a request that holds nothing yet; it is taken over, and its
  // tokens become computed; what is not on the device is loaded (TakeLoads). False if there are not enough blocks; then
  // nothing happens, but that blocks which have left a window are given back. REQUIRES: num_new_tokens > 0.
  bool AllocateSlots(Request* request, std::uint32_t num_new_tokens, const PrefixHit& hit = {});

  // The loads that AllocateSlots ordered since the last call. Their host blocks are pinned, for the caller to unpin;
  // their device blocks are registered like those that the step computes.
  std::vector<LoadBlock> TakeLoads() { return std::exchange(loads_, {}); }

  // The copies that AllocateSlots ordered since the last call. Their sources are held, for ReleaseSources.
  std::vector<CopyBlock> TakeCopies() { return std::exchange(copies_, {}); }

  // The copies were executed, or no block is allocated before they are.
  void ReleaseSources(std::span<const CopyBlock> copies);

  // Gives every block back, each group's last one first. The tables are moved to *retired, for who still reads them.
  void Free(Request* request, std::vector<std::vector<std::vector<BlockId>>>* retired = nullptr);

  // The most blocks that a request with this many computed tokens may hold at a time, if it gives back none of what the
  // last num_retained_tokens need.
  std::uint64_t MostBlocksFor(std::uint64_t num_tokens, std::uint64_t num_retained_tokens = 0) const noexcept;

  // Blocks that go from engine to engine.
  //
  // How many leading tokens of a prompt can, of which num_available are there: all full blocks, if every group has full
  // attention. Others could not step back to compute the last token, so then it is a hit's length.
  std::uint32_t TransferableTokens(
      std::uint32_t num_prompt_tokens,
      std::uint32_t num_available = std::numeric_limits<std::uint32_t>::max()) const noexcept;

  // As GetComputedBlocks, of the device only.
  PrefixHit GetDeviceBlocks(const Request& request);

  // Blocks for the first num_tokens tokens of a request that holds nothing yet: those of the hit, which
  // GetDeviceBlocks returned, are taken over; the others are the reception's. Nothing is registered. False if there are
  // not enough blocks; then nothing happens. REQUIRES: num_tokens is transferable and more than the hit.
  bool BeginReception(Request* request, std::uint32_t num_tokens, const PrefixHit& hit, Reception* reception);

  // The contents are there: its tokens, but for the last one of the request, are computed, and its blocks registered.
  void EndReception(Request* request);

  // One holder more for the blocks that somebody needs to continue behind the transferable tokens of the prompt;
  // FreeKept takes it back. Nothing is kept if some of these blocks have been given back already.
  KeptBlocks Keep(const Request* request);
  void FreeKept(const KeptBlocks& kept);

  std::span<const KVCacheGroup> groups() const noexcept { return groups_; }
  BlockPool& pool() noexcept { return pool_; }
  const BlockPool& pool() const noexcept { return pool_; }

 private:
  BlockChain ChainOf(const Request& request, const KVCacheGroup& group) const;
  std::uint32_t FindHit(std::span<const BlockHash> hashes, std::uint64_t max_tokens, std::vector<GroupHit>* hit) const;
  std::uint32_t FindGroupHit(std::span<const BlockHash> hashes, std::size_t group, std::uint32_t max_tokens,
                             GroupHit* hit) const;
  std::uint32_t FindWholeHit(std::span<const BlockHash> hashes, std::size_t group, std::uint32_t max_tokens,
                             GroupHit* hit) const;
  std::uint32_t FindRecentHit(std::span<const BlockHash> hashes, std::size_t group, std::uint32_t max_tokens,
                              GroupHit* hit) const;
  // A place of the hash; both are none if there is none.
  struct Place {
    BlockId block = kNullBlock;
    HostBlockId host_block = kNoHostBlock;
  };
  Place FindBlock(std::span<const BlockHash> hashes, std::size_t group, std::uint32_t end) const;
  void CountLoadedTokens(PrefixHit* hit);
  void TakeOver(Request* request, const PrefixHit& hit);
  void Load(Request* request, std::size_t group, const GroupHit& hit);
  void CopyPartial(Request* request, std::size_t group, std::uint32_t num_tokens);
  void RegisterComputed(Request* request, std::uint64_t num_tokens);
  std::span<const BlockId> Reachable(std::size_t group, std::span<const BlockId> table, std::uint32_t first,
                                     std::uint32_t last);
  void ReturnUnneeded(Request* request);
  std::uint32_t FirstNeeded(std::size_t group, std::uint32_t num_tokens) const noexcept;

  const bool report_at_lookup_;
  const std::vector<KVCacheGroup> groups_;
  const std::uint32_t hash_block_size_;
  const std::uint32_t block_alignment_;  // of whole blocks of all groups
  const std::uint32_t alignment_;        // of hits
  const std::uint32_t max_num_batched_tokens_;
  BlockPool pool_;
  KVConnector* connector_ = nullptr;
  std::vector<GroupHit> hit_;
  std::vector<LoadBlock> loads_;
  std::vector<CopyBlock> copies_;
  std::vector<std::size_t> num_new_blocks_;  // by group
  std::vector<BlockId> reversed_;
  std::vector<BlockId> reachable_;
  std::vector<BlockId> loaded_;
  std::vector<std::uint8_t> source_;  // by hash block: 0 is the device, 1 + Tier a lower tier
};

}  // namespace kvwire::scheduler
