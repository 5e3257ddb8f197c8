// SPDX-License-Identifier: Apache-2.0
#include "scheduler/kv_cache_manager.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

namespace kvwire::scheduler {

namespace {

std::uint32_t CeilDiv(std::uint64_t dividend, std::uint32_t divisor) {
  return static_cast<std::uint32_t>((dividend + divisor - 1) / divisor);
}

BlockPoolOptions PoolOptions(BlockPoolOptions options, std::span<const KVCacheGroup> groups) {
  options.groups.clear();
  for (const KVCacheGroup& group : groups) {
    GroupSpec spec;
    spec.kind = std::string(KindName(group.kind));
    spec.block_size = group.block_size;
    spec.parents = group.kind == KVCacheKind::kFullAttention ? Parents::kRegistered : Parents::kAny;
    if (group.kind == KVCacheKind::kSlidingWindow) spec.sliding_window = group.sliding_window;
    options.groups.push_back(std::move(spec));
  }
  return options;
}

}  // namespace

KVCacheManager::KVCacheManager(Options options)
    : report_at_lookup_(options.report_at_lookup),
      groups_(std::move(options.groups)),
      hash_block_size_(options.pool.block_size),
      block_alignment_(HitAlignment(groups_)),
      alignment_(options.pool.partial_blocks ? hash_block_size_ : block_alignment_),
      max_num_batched_tokens_(options.max_num_batched_tokens),
      pool_(PoolOptions(std::move(options.pool), groups_)),
      hit_(groups_.size()) {}

BlockChain KVCacheManager::ChainOf(const Request& request, const KVCacheGroup& group) const {
  BlockChain chain;
  chain.hashes = request.block_hashes();
  chain.token_ids = request.token_ids();
  chain.extra_keys = request.extra_keys();
  chain.content = &request.content();
  chain.lora = request.lora() ? &*request.lora() : nullptr;
  chain.num_prompt_blocks = request.num_prompt_tokens() / group.block_size;
  return chain;
}

PrefixHit KVCacheManager::GetComputedBlocks(const Request& request) {
  const std::uint32_t num_tokens = FindHit(request.block_hashes(), request.num_tokens() - 1, &hit_);
  if (report_at_lookup_ && request.report_mode() == ReportMode::kFull) {
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      pool_.ReportPositions(ChainOf(request, groups_[group]), num_tokens / groups_[group].block_size,
                            static_cast<std::uint32_t>(group));
    }
  }
  PrefixHit hit{hit_, num_tokens};
  CountLoadedTokens(&hit);
  return hit;
}

void KVCacheManager::CountLoadedTokens(PrefixHit* hit) {
  if (connector_ == nullptr) return;
  const auto source_of = [](Tier tier) { return static_cast<std::uint8_t>(1 + static_cast<std::uint8_t>(tier)); };
  source_.assign(hit->num_tokens / hash_block_size_, 0);
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    const std::size_t hashes_per_block = groups_[group].block_size / hash_block_size_;
    for (std::size_t position = 0; position < hit_[group].host_blocks.size(); ++position) {
      const HostBlockId block = hit_[group].host_blocks[position];
      if (block == kNoHostBlock) continue;
      const std::uint8_t source = source_of(connector_->TierOf(block));
      for (std::size_t i = position * hashes_per_block; i < (position + 1) * hashes_per_block; ++i) {
        source_[i] = std::max(source_[i], source);
      }
    }
  }
  const auto tokens_from = [&](Tier tier) {
    return static_cast<std::uint32_t>(std::ranges::count(source_, source_of(tier))) * hash_block_size_;
  };
  hit->num_host_tokens = tokens_from(Tier::kHost);
  hit->num_disk_tokens = tokens_from(Tier::kDisk);
}

std::uint32_t KVCacheManager::CachedTokens(std::span<const BlockHash> hashes) const {
  std::vector<GroupHit> hit(groups_.size());
  return FindHit(hashes, std::numeric_limits<std::uint32_t>::max(), &hit);
}

// The longest prefix of at most max_tokens that every group can continue from; its blocks by group.
std::uint32_t KVCacheManager::FindHit(std::span<const BlockHash> hashes, std::uint64_t max_tokens,
                                      std::vector<GroupHit>* hit) const {
  auto num_tokens = static_cast<std::uint32_t>(std::min<std::uint64_t>(hashes.size() * hash_block_size_, max_tokens));
  num_tokens -= num_tokens % alignment_;
  for (GroupHit& found : *hit) {
    found.blocks.clear();
    found.host_blocks.clear();
  }
  // A shorter prefix may be none for a group that had a longer one, so everyone is asked again until all agree.
  std::size_t agreeing = 0;
  for (std::size_t group = 0; agreeing < groups_.size(); group = (group + 1) % groups_.size()) {
    const std::uint32_t found = FindGroupHit(hashes, group, num_tokens, &(*hit)[group]);
    agreeing = found == num_tokens ? agreeing + 1 : 1;
    num_tokens = found;
  }
  return num_tokens;
}

// REQUIRES: *hit is empty, or what this gave for these hashes and at least as many tokens.
std::uint32_t KVCacheManager::FindGroupHit(std::span<const BlockHash> hashes, std::size_t group,
                                           std::uint32_t max_tokens, GroupHit* hit) const {
  return groups_[group].TokensBeforeHit() == 0 ? FindWholeHit(hashes, group, max_tokens, hit)
                                               : FindRecentHit(hashes, group, max_tokens, hit);
}

// Of the block that ends at this token. A lower tier has full blocks only.
KVCacheManager::Place KVCacheManager::FindBlock(std::span<const BlockHash> hashes, std::size_t group,
                                                std::uint32_t end) const {
  const BlockHash& hash = hashes[end / hash_block_size_ - 1];
  const auto index = static_cast<std::uint32_t>(group);
  if (end % groups_[group].block_size != 0) return {pool_.FindComputed(hash, index), kNoHostBlock};
  Place place{pool_.FindCached(hash, index), kNoHostBlock};
  if (place.block == kNullBlock && connector_ != nullptr) place.host_block = connector_->FindBlock(hash, index);
  return place;
}

// Of a group that needs all tokens: block by block from the left, going on behind those that *hit has.
std::uint32_t KVCacheManager::FindWholeHit(std::span<const BlockHash> hashes, std::size_t group,
                                           std::uint32_t max_tokens, GroupHit* hit) const {
  const std::uint32_t size = groups_[group].block_size;
  const auto resize = [hit](std::size_t blocks) {
    hit->blocks.resize(blocks);
    hit->host_blocks.resize(blocks);
  };
  const auto append = [&](std::uint32_t end) {
    const Place place = FindBlock(hashes, group, end);
    if (place.block == kNullBlock && place.host_block == kNoHostBlock) return false;
    hit->blocks.push_back(place.block);
    hit->host_blocks.push_back(place.host_block);
    return true;
  };
  resize(std::min<std::size_t>(hit->blocks.size(), max_tokens / size));
  auto tokens = static_cast<std::uint32_t>(hit->blocks.size()) * size;
  while (max_tokens - tokens >= size && append(tokens + size)) tokens += size;
  const std::uint32_t most = std::min(max_tokens, tokens + size - 1);
  for (std::uint32_t end = most - most % alignment_; end > tokens; end -= alignment_) {
    if (append(end)) return end;
  }
  tokens -= tokens % alignment_;
  resize(tokens / size);
  return tokens;
}

// Of a group that needs the last tokens only: from the right, the first end before which they are, or all tokens.
std::uint32_t KVCacheManager::FindRecentHit(std::span<const BlockHash> hashes, std::size_t group,
                                            std::uint32_t max_tokens, GroupHit* hit) const {
  const std::uint32_t size = groups_[group].block_size;
  const std::uint32_t needed = groups_[group].TokensBeforeHit();
  hit->blocks.resize(CeilDiv(max_tokens, size), kNullBlock);
  hit->host_blocks.resize(hit->blocks.size(), kNoHostBlock);
  // What is left of an earlier answer is one run at the end.
  for (std::size_t i = hit->blocks.size(); i-- > 0;) {
    if (hit->blocks[i] == kNullBlock && hit->host_blocks[i] == kNoHostBlock) break;
    hit->blocks[i] = kNullBlock;
    hit->host_blocks[i] = kNoHostBlock;
  }
  std::uint32_t end = max_tokens;    // of the hit that is tried
  std::uint32_t found = max_tokens;  // from here to `end` the blocks are there
  while (found > 0 && end - found < needed) {
    const std::uint32_t position = (found - 1) / size;
    const Place place = FindBlock(hashes, group, found);
    if (place.block != kNullBlock || place.host_block != kNoHostBlock) {
      hit->blocks[position] = place.block;
      hit->host_blocks[position] = place.host_block;
      found = position * size;
      continue;
    }
    // Every end behind this block, and this one, would need it.
    end = found - 1 - (found - 1) % alignment_;
    found = end;
    const std::size_t blocks = CeilDiv(end, size);
    hit->blocks.resize(blocks);
    hit->host_blocks.resize(blocks);
  }
  return end;
}

bool KVCacheManager::AllocateSlots(Request* request, std::uint32_t num_new_tokens, const PrefixHit& hit) {
  assert(num_new_tokens > 0);
  if (request->block_tables.empty()) {
    request->block_tables.resize(groups_.size());
    request->num_registered_blocks.assign(groups_.size(), 0);
  }
  ReturnUnneeded(request);
  const std::uint64_t num_tokens = std::uint64_t{request->num_computed_tokens} + hit.num_tokens + num_new_tokens;
  std::uint64_t needed = 0;
  num_new_blocks_.clear();
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    std::uint64_t held = request->block_tables[group].size();
    if (!hit.groups.empty()) {
      const GroupHit& found = hit.groups[group];
      held += found.blocks.size();
      needed += pool_.CountUnheld(found.blocks);
      needed += found.host_blocks.size() -
                static_cast<std::size_t>(std::count(found.host_blocks.begin(), found.host_blocks.end(), kNoHostBlock));
      needed += hit.num_tokens % groups_[group].block_size != 0 ? 1 : 0;  // to copy to
    }
    const std::uint64_t wanted = CeilDiv(num_tokens, groups_[group].block_size);
    num_new_blocks_.push_back(wanted > held ? wanted - held : 0);
    needed += num_new_blocks_.back();
  }
  if (needed > pool_.num_free()) return false;

  if (hit.num_tokens > 0) TakeOver(request, hit);
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    pool_.Allocate(num_new_blocks_[group], &request->block_tables[group]);
  }
  RegisterComputed(request, num_tokens);
  return true;
}

// Of the first num_tokens tokens whatever is hashed and was not offered before.
void KVCacheManager::RegisterComputed(Request* request, std::uint64_t num_tokens) {
  const std::uint64_t hashed = request->block_hashes().size() * std::uint64_t{hash_block_size_};
  const auto registrable = static_cast<std::uint32_t>(std::min(num_tokens, hashed) / alignment_ * alignment_);
  if (registrable <= request->num_registered_tokens) return;
  request->num_registered_tokens = registrable;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    const BlockChain chain = ChainOf(*request, groups_[group]);
    const std::vector<BlockId>& table = request->block_tables[group];
    const std::uint32_t full = registrable / groups_[group].block_size;
    std::uint32_t& registered = request->num_registered_blocks[group];
    if (full > registered) {
      pool_.Register(chain, Reachable(group, table, registered, full), registered, full,
                     static_cast<std::uint32_t>(group));
      registered = full;
    }
    if (registrable % groups_[group].block_size == 0) continue;
    pool_.RegisterPartial(chain, table, registrable, static_cast<std::uint32_t>(group));
  }
}

void KVCacheManager::TakeOver(Request* request, const PrefixHit& hit) {
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    assert(request->block_tables[group].empty());
    const GroupHit& found = hit.groups[group];
    pool_.Touch(found.blocks);
    request->block_tables[group] = found.blocks;
    request->num_registered_blocks[group] = hit.num_tokens / groups_[group].block_size;
    if (!report_at_lookup_ && request->report_mode() == ReportMode::kFull) pool_.Report(found.blocks);
  }
  // Only now: allocation takes what no group holds.
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    Load(request, group, hit.groups[group]);
    CopyPartial(request, group, hit.num_tokens % groups_[group].block_size);
  }
  request->num_computed_tokens += hit.num_tokens;
  request->num_registered_tokens = hit.num_tokens;
}

// Puts a copy of the first num_tokens of the table's last block in its place. Nothing if there are none.
void KVCacheManager::CopyPartial(Request* request, std::size_t group, std::uint32_t num_tokens) {
  if (num_tokens == 0) return;
  std::vector<BlockId>& table = request->block_tables[group];
  const BlockId source = table.back();
  table.pop_back();
  pool_.Allocate(1, &table);
  copies_.push_back({source, table.back(), static_cast<std::uint32_t>(group), num_tokens});
}

void KVCacheManager::ReleaseSources(std::span<const CopyBlock> copies) {
  for (const CopyBlock& copy : copies) pool_.Free({&copy.source, 1});
}

// Device blocks for what the group finds in the lower tier.
void KVCacheManager::Load(Request* request, std::size_t group, const GroupHit& hit) {
  const auto end = static_cast<std::uint32_t>(hit.host_blocks.size());
  const auto group_index = static_cast<std::uint32_t>(group);
  std::vector<BlockId>& table = request->block_tables[group];
  BlockChain chain = ChainOf(*request, groups_[group]);
  chain.num_prompt_blocks = 0;  // they are not new
  for (std::uint32_t first = 0, last = 0; first < end; first = last) {
    last = first + 1;
    if (hit.host_blocks[first] == kNoHostBlock) continue;
    while (last < end && hit.host_blocks[last] != kNoHostBlock) ++last;
    loaded_.clear();
    pool_.Allocate(last - first, &loaded_);
    for (std::uint32_t position = first; position < last; ++position) {
      table[position] = loaded_[position - first];
      connector_->Pin(hit.host_blocks[position]);
      loads_.push_back(
          {request->id(), hit.host_blocks[position], table[position], group_index, groups_[group].block_size});
    }
    pool_.Register(chain, table, first, last, group_index);
  }
}

// The table with null in place of what no hit can use. Only the positions from first - 1 to last count.
std::span<const BlockId> KVCacheManager::Reachable(std::size_t group, std::span<const BlockId> table,
                                                   std::uint32_t first, std::uint32_t last) {
  const KVCacheGroup& spec = groups_[group];
  if (spec.BlocksBeforeHit() == 0 || spec.block_size >= alignment_) return table;
  reachable_.resize(last);
  for (std::uint32_t position = first == 0 ? 0 : first - 1; position < last; ++position) {
    reachable_[position] = IsReachable(spec, position, alignment_) ? table[position] : kNullBlock;
  }
  return reachable_;
}

// Blocks that no later position needs: their places in the tables become null.
void KVCacheManager::ReturnUnneeded(Request* request) {
  const std::uint32_t most = request->keeps_blocks() ? TransferableTokens(request->num_prompt_tokens())
                                                     : std::numeric_limits<std::uint32_t>::max();
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    std::vector<BlockId>& table = request->block_tables[group];
    const std::uint32_t unneeded = groups_[group].NumUnneededTokens(std::min(request->num_computed_tokens, most));
    reversed_.clear();
    for (std::size_t position = std::min<std::size_t>(unneeded / groups_[group].block_size, table.size());
         position-- > 0 && table[position] != kNullBlock;) {
      reversed_.push_back(std::exchange(table[position], kNullBlock));
    }
    if (!reversed_.empty()) pool_.Free(reversed_);
  }
}

void KVCacheManager::Free(Request* request, std::vector<std::vector<std::vector<BlockId>>>* retired) {
  for (const std::vector<BlockId>& table : request->block_tables) {
    reversed_.assign(table.rbegin(), table.rend());
    pool_.Free(reversed_);
  }
  if (retired != nullptr) retired->push_back(std::move(request->block_tables));
  request->block_tables.clear();
  request->num_registered_blocks.clear();
  request->num_registered_tokens = 0;
  request->num_computed_tokens = 0;
  request->num_received_tokens = 0;
}

std::uint64_t KVCacheManager::MostBlocksFor(std::uint64_t num_tokens,
                                            std::uint64_t num_retained_tokens) const noexcept {
  std::uint64_t blocks = 0;
  for (const KVCacheGroup& group : groups_) {
    const std::uint64_t all = CeilDiv(num_tokens, group.block_size);
    // What a step reads and writes at most, and one more where that begins and ends within a block.
    const std::uint64_t before = group.kind == KVCacheKind::kSlidingWindow ? group.sliding_window - 1 : 1;
    const std::uint64_t windowed = CeilDiv(before + max_num_batched_tokens_, group.block_size) + 1 +
                                   CeilDiv(num_retained_tokens, group.block_size);
    blocks += group.kind == KVCacheKind::kFullAttention ? all : std::min(all, windowed);
    // A copy and what it was made from.
    if (alignment_ < group.block_size) ++blocks;
  }
  return blocks;
}

}  // namespace kvwire::scheduler
