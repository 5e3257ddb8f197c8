// SPDX-License-Identifier: Apache-2.0
// What the KV cache manager does with blocks that go from engine to engine.
#include <algorithm>
#include <cassert>
#include <utility>

#include "scheduler/kv_cache_manager.h"

namespace kvwire::scheduler {

std::size_t CountBlocks(const KeptBlocks& kept) {
  std::size_t blocks = 0;
  for (const std::vector<BlockId>& table : kept.block_tables) {
    blocks += table.size() - static_cast<std::size_t>(std::count(table.begin(), table.end(), kNullBlock));
  }
  return blocks;
}

std::uint32_t KVCacheManager::TransferableTokens(std::uint32_t num_prompt_tokens,
                                                 std::uint32_t num_available) const noexcept {
  const bool may_step_back = std::all_of(groups_.begin(), groups_.end(),
                                         [](const KVCacheGroup& group) { return group.BlocksBeforeHit() == 0; });
  const std::uint32_t most = num_prompt_tokens - (may_step_back || num_prompt_tokens == 0 ? 0 : 1);
  return std::min(most, num_available) / block_alignment_ * block_alignment_;
}

// The first block of the group that is needed to continue behind num_tokens.
std::uint32_t KVCacheManager::FirstNeeded(std::size_t group, std::uint32_t num_tokens) const noexcept {
  const std::uint32_t end = num_tokens / groups_[group].block_size;
  const std::uint32_t needed = groups_[group].BlocksBeforeHit();
  return needed == 0 || needed > end ? 0 : end - needed;
}

PrefixHit KVCacheManager::GetDeviceBlocks(const Request& request) {
  KVConnector* const connector = std::exchange(connector_, nullptr);
  PrefixHit hit = GetComputedBlocks(request);
  // Whole blocks are received, behind whole blocks.
  while (hit.num_tokens % block_alignment_ != 0) {
    hit.num_tokens = FindHit(request.block_hashes(), hit.num_tokens - hit.num_tokens % block_alignment_, &hit_);
  }
  connector_ = connector;
  return hit;
}

bool KVCacheManager::BeginReception(Request* request, std::uint32_t num_tokens, const PrefixHit& hit,
                                    Reception* reception) {
  assert(num_tokens > hit.num_tokens && num_tokens % block_alignment_ == 0);
  std::size_t needed = 0;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    std::vector<BlockId>& found = hit_[group].blocks;
    const std::uint32_t first = FirstNeeded(group, num_tokens);
    // What a window has left behind by then.
    std::fill_n(found.begin(), std::min<std::size_t>(first, found.size()), kNullBlock);
    needed += pool_.CountUnheld(found);
    needed += num_tokens / groups_[group].block_size - std::max<std::size_t>(first, found.size());
  }
  if (needed > pool_.num_free()) return false;
  request->block_tables.resize(groups_.size());
  request->num_registered_blocks.assign(groups_.size(), 0);
  TakeOver(request, hit);
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    std::vector<BlockId>& table = request->block_tables[group];
    table.resize(std::max<std::size_t>(table.size(), FirstNeeded(group, num_tokens)), kNullBlock);
    Reception::Part& part = reception->parts.emplace_back();
    part.first = static_cast<std::uint32_t>(table.size());
    pool_.Allocate(num_tokens / groups_[group].block_size - table.size(), &part.blocks);
    table.insert(table.end(), part.blocks.begin(), part.blocks.end());
  }
  request->num_receiving_tokens = num_tokens;
  return true;
}

void KVCacheManager::EndReception(Request* request) {
  const std::uint32_t num_tokens = request->num_receiving_tokens;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    BlockChain chain = ChainOf(*request, groups_[group]);
    chain.num_prompt_blocks = 0;  // they are not new
    const std::uint32_t full = num_tokens / groups_[group].block_size;
    const std::uint32_t first = std::exchange(request->num_registered_blocks[group], full);
    pool_.Register(chain, Reachable(group, request->block_tables[group], first, full), first, full,
                   static_cast<std::uint32_t>(group));
  }
  request->num_registered_tokens = num_tokens;
  request->num_received_tokens = num_tokens - request->num_computed_tokens;
  // The last token must be computed, for its output.
  request->num_computed_tokens = std::min(num_tokens, request->num_tokens() - 1);
}

KeptBlocks KVCacheManager::Keep(const Request* request) {
  KeptBlocks kept;
  const std::uint32_t num_tokens = TransferableTokens(request->num_prompt_tokens());
  if (num_tokens == 0) return kept;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    const std::vector<BlockId>& table = request->block_tables[group];
    const auto first = table.begin() + FirstNeeded(group, num_tokens);
    const auto end = table.begin() + num_tokens / groups_[group].block_size;
    if (std::find(first, end, kNullBlock) != end) return {};
    std::vector<BlockId>& stays = kept.block_tables.emplace_back(first - table.begin(), kNullBlock);
    stays.insert(stays.end(), first, end);
  }
  // One holder more, so that giving back what the request holds leaves them held.
  for (const std::vector<BlockId>& table : kept.block_tables) pool_.Touch(table);
  kept.num_tokens = num_tokens;
  return kept;
}

void KVCacheManager::FreeKept(const KeptBlocks& kept) {
  for (const std::vector<BlockId>& table : kept.block_tables) {
    reversed_.assign(table.rbegin(), table.rend());
    pool_.Free(reversed_);
  }
}

}  // namespace kvwire::scheduler
