// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/engine/model_support.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>
#include <variant>

#include <doctest/doctest.h>

#include "tests/unit/engine/engine_fixture.h"

namespace kvwire::engine {
namespace {

EngineConfig PlainConfig(EngineConfig config) {
  config.scheduler.num_speculative_tokens = 0;
  config.scheduler.host_blocks = 0;
  config.scheduler.disk_blocks = 0;
  config.scheduler.enable_prefix_caching = false;
  config.scheduler.enable_kv_cache_events = false;
  return config;
}

}  // namespace

std::vector<TokenId> RandomPrompt(TokenId text, int room, Dice* dice) {
  std::vector<TokenId> prompt;
  const int shared = dice->Random(0, std::min(room - 1, 40));
  const int own = dice->Random(1, std::min(room - shared, 6));
  for (int i = 0; i < shared; ++i) prompt.push_back(text + static_cast<TokenId>(i));
  for (int i = 0; i < own; ++i) prompt.push_back(static_cast<TokenId>(1000 + dice->Random(0, 1)));
  return prompt;
}

scheduler::RequestId TakeRandom(std::set<scheduler::RequestId>* ids, Dice* dice) {
  const auto taken = std::next(ids->begin(), static_cast<std::ptrdiff_t>(dice->Below(ids->size())));
  const scheduler::RequestId id = *taken;
  ids->erase(taken);
  return id;
}

ReferenceEngine::ReferenceEngine(EngineConfig config, Complaints* complaints)
    : complaints_(complaints), engine_(MakeEngine(PlainConfig(std::move(config)), nullptr)) {}

void ReferenceEngine::Add(scheduler::NewRequest request) {
  request.num_receivable_tokens = 0;
  REQUIRE(engine_->Add(std::move(request)).has_value());
}

void ReferenceEngine::Step() {
  Run();
  Compare();
}

void ReferenceEngine::Drain() {
  while (engine_->has_work()) Run();
  Compare();
}

void ReferenceEngine::Run() {
  for (scheduler::FinishedRequest& request : engine_->Step().finished) own_[request.id] = std::move(request.output);
}

void ReferenceEngine::Compare() {
  for (auto i = others_.begin(); i != others_.end();) {
    const auto own = own_.find(i->first);
    if (own == own_.end()) {
      ++i;
      continue;
    }
    if (own->second != i->second) complaints_->push_back("other output for request " + std::to_string(i->first));
    ++num_compared_;
    own_.erase(own);
    i = others_.erase(i);
  }
}

StreamCheck::StreamCheck(Groups groups, Complaints* complaints)
    : groups_(std::move(groups)), complaints_(complaints), hasher_(MakeHasher()), mirror_(&hasher_, kBlockSize) {}

void StreamCheck::Take(const KVEventBatch& batch, const scheduler::BlockPool& pool, const SimulatedRunner& words) {
  for (std::string& rule : mirror_.Apply(batch)) complaints_->push_back(std::move(rule));
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const KVEventBatch::Event event = batch.at(i);
    if (std::holds_alternative<AllBlocksCleared>(event)) prefixes_.clear();
    const auto* const stored = std::get_if<BlockStored>(&event);
    if (stored != nullptr && stored->medium == kMediumGpu) CheckWords(*stored, pool, words);
  }
}

void StreamCheck::Compare(const scheduler::Scheduler& scheduler) {
  const scheduler::BlockPool& pool = scheduler.pool();
  auto differences =
      mirror_.Compare(scheduler.state(), scheduler.digest(),
                      [&pool](const BlockHash& hash, std::uint32_t group) { return pool.num_announced(hash, group); });
  if (!pool.recorded().empty()) complaints_->push_back("events were recorded and not published");
  for (std::string& difference : differences) complaints_->push_back(std::move(difference));
}

BlockHash StreamCheck::HashOf(const BlockHash& parent, std::span<const TokenId> tokens) {
  return hasher_.HashBlock(parent, tokens, ExtraKeys());
}

// Group 0 has full attention and announces first, so a prefix is known by the time another group names it.
void StreamCheck::CheckWords(const BlockStored& stored, const scheduler::BlockPool& pool,
                             const SimulatedRunner& words) {
  const std::uint32_t group = *stored.group_idx;
  std::vector<TokenId> prefix;
  BlockHash hash;
  if (stored.parent_block_hash) {
    hash = *stored.parent_block_hash;
    const auto parent = prefixes_.find(hash);
    if (parent == prefixes_.end()) {
      // Behind a block that was evicted while held, full attention registers nothing; other groups go on.
      if (groups_[group].kind != scheduler::KVCacheKind::kFullAttention) {
        ++num_unchecked_;
        return;
      }
      complaints_->push_back("parent " + hash.ToHex() + " was never announced");
      return;
    }
    prefix = parent->second;
  }
  const std::size_t start = prefix.size();
  prefix.insert(prefix.end(), stored.token_ids.begin(), stored.token_ids.end());
  for (std::size_t end = start + kBlockSize; end <= prefix.size(); end += kBlockSize) {
    hash = HashOf(hash, std::span(prefix).subspan(end - kBlockSize, kBlockSize));
    prefixes_[hash].assign(prefix.begin(), prefix.begin() + static_cast<std::ptrdiff_t>(end));
    all_prefixes_[hash] = prefixes_[hash];
  }
  std::uint64_t word = SimulatedRunner::RootWordOf(group);
  for (std::size_t p = 0; p < prefix.size(); ++p) {
    word = SimulatedRunner::ChainWord(word, prefix[p]);
    if (p < start) continue;
    const BlockHash& announced = stored.block_hashes[(p - start) / stored.block_size];
    const scheduler::BlockId block = pool.FindCached(announced, group);
    const auto offset = static_cast<std::uint32_t>((p - start) % stored.block_size);
    if (block != 0 && words.WordAt(block, offset) == word) continue;
    complaints_->push_back("block " + std::to_string(block) + " does not hold what was announced as " +
                           announced.ToHex() + " of group " + std::to_string(group));
    return;
  }
  num_checked_ += stored.block_hashes.size();
}

}  // namespace kvwire::engine
