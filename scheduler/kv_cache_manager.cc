// SPDX-License-Identifier: Apache-2.0
#include "scheduler/kv_cache_manager.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace kvwire::scheduler {

namespace {

constexpr std::uint32_t kGroup = 0;

}  // namespace

KVCacheManager::KVCacheManager(Options options)
    : report_at_lookup_(options.report_at_lookup), pool_(std::move(options.pool)) {}

BlockChain KVCacheManager::ChainOf(const Request& request, std::uint32_t block_size) {
  BlockChain chain;
  chain.hashes = request.block_hashes();
  chain.token_ids = request.token_ids();
  chain.extra_keys = request.extra_keys();
  chain.lora = request.lora() ? &*request.lora() : nullptr;
  chain.num_prompt_blocks = request.num_prompt_tokens() / block_size;
  return chain;
}

PrefixHit KVCacheManager::GetComputedBlocks(const Request& request) {
  hit_.clear();
  const std::size_t limit =
      std::min<std::size_t>(request.block_hashes().size(), (request.num_tokens() - 1) / pool_.block_size());
  for (const BlockHash& hash : request.block_hashes().first(limit)) {
    const BlockId block = pool_.FindCached(hash, kGroup);
    if (block == kNullBlock) break;
    hit_.push_back(block);
  }
  if (report_at_lookup_ && request.report_mode() == ReportMode::kFull) pool_.Report(hit_);
  return {hit_, static_cast<std::uint32_t>(hit_.size()) * pool_.block_size()};
}

bool KVCacheManager::AllocateSlots(Request* request, std::uint32_t num_new_tokens, const PrefixHit& hit) {
  assert(num_new_tokens > 0);
  assert(hit.blocks.empty() || request->block_table.empty());
  const std::uint64_t num_tokens = std::uint64_t{request->num_computed_tokens} + hit.num_tokens + num_new_tokens;
  const std::uint64_t held = request->block_table.size() + hit.blocks.size();
  const std::uint64_t wanted = BlocksFor(num_tokens);
  const std::uint64_t num_new_blocks = wanted > held ? wanted - held : 0;
  if (num_new_blocks + pool_.CountUnheld(hit.blocks) > pool_.num_free()) return false;

  if (!hit.blocks.empty()) {
    pool_.Touch(hit.blocks);
    request->block_table.assign(hit.blocks.begin(), hit.blocks.end());
    request->num_computed_tokens += hit.num_tokens;
    request->num_registered_blocks = static_cast<std::uint32_t>(hit.blocks.size());
    if (!report_at_lookup_ && request->report_mode() == ReportMode::kFull) pool_.Report(hit.blocks);
  }
  pool_.Allocate(num_new_blocks, &request->block_table);
  const auto full = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(num_tokens / pool_.block_size(), request->block_hashes().size()));
  if (full > request->num_registered_blocks) {
    pool_.Register(ChainOf(*request, pool_.block_size()), request->block_table, request->num_registered_blocks, full,
                   kGroup);
    request->num_registered_blocks = full;
  }
  return true;
}

void KVCacheManager::Free(Request* request, std::vector<std::vector<BlockId>>* retired) {
  reversed_.assign(request->block_table.rbegin(), request->block_table.rend());
  pool_.Free(reversed_);
  if (retired != nullptr) retired->push_back(std::move(request->block_table));
  request->block_table.clear();
  request->num_registered_blocks = 0;
  request->num_computed_tokens = 0;
}

}  // namespace kvwire::scheduler
