// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/kv_state.h"

#include <algorithm>
#include <string_view>

#include "kv_events/state_dump.h"

namespace kvwire::engine {

namespace {

std::optional<std::uint64_t> LastBatch(const EngineCore& core) {
  const std::uint64_t next = core.next_batch();
  if (next == core.first_batch()) return std::nullopt;
  return next - 1;
}

BlockLookup LookUpBlock(const scheduler::Scheduler& scheduler, const BlockHash& hash, std::uint32_t group) {
  BlockLookup block;
  block.copies = scheduler.pool().num_copies(hash, group);
  block.announced = scheduler.pool().num_announced(hash, group) > 0;
  const scheduler::KVConnector* const lower = scheduler.connector();
  const scheduler::HostBlockId found = lower == nullptr ? scheduler::kNoHostBlock : lower->FindBlock(hash, group);
  if (found == scheduler::kNoHostBlock) return block;
  block.lower_medium = scheduler::TraitsOf(lower->TierOf(found)).medium;
  block.announced = block.announced || lower->IsAnnounced(found);
  return block;
}

}  // namespace

std::optional<KVState> TakeKVState(Instance& instance, std::uint32_t rank, KVStateDetail detail) {
  KVState state;
  state.rank = rank;
  const bool ran = instance.Call(rank, [&](EngineCore& core) {
    const scheduler::BlockPool& pool = core.scheduler().pool();
    state.life = core.life();
    state.batch = LastBatch(core);
    state.digest = pool.digest().ToString();
    for (const StateDigest::Entry& entry : pool.digest().entries()) state.num_blocks += entry.count;
    if (detail == KVStateDetail::kDigest) return;
    state.blocks.reserve(state.num_blocks);
    DumpState(core.scheduler().state(), [&state](std::string_view line) { state.blocks.emplace_back(line); });
  });
  if (!ran) return std::nullopt;
  return state;
}

std::optional<PromptLookup> LookUpPrompt(Instance& instance, std::uint32_t rank,
                                         const scheduler::PromptIdentity& prompt) {
  PromptLookup lookup;
  lookup.rank = rank;
  lookup.num_groups = std::max<std::size_t>(instance.config().scheduler.groups.size(), 1);
  lookup.blocks.resize(prompt.hashes.size() * lookup.num_groups);
  const bool ran = instance.Call(rank, [&](EngineCore& core) {
    lookup.has_lower_tiers = core.scheduler().connector() != nullptr;
    lookup.batch = LastBatch(core);
    lookup.prefix_tokens = core.scheduler().CachedTokens(prompt.hashes);
    std::size_t place = 0;
    for (const BlockHash& hash : prompt.hashes) {
      for (std::uint32_t group = 0; group < lookup.num_groups; ++group) {
        lookup.blocks[place++] = LookUpBlock(core.scheduler(), hash, group);
      }
    }
  });
  if (!ran) return std::nullopt;
  return lookup;
}

}  // namespace kvwire::engine
