// SPDX-License-Identifier: Apache-2.0
#include "kv_events/announced_state.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "scheduler/block_pool.h"
#include "tests/unit/kv_events/announced_state_suite.h"

namespace kvwire::scheduler {
namespace {

using test::DrivenSource;
using test::RunAnnouncedStateSuite;
using test::StreamKey;

constexpr std::uint32_t kBlockSize = 2;

// A prompt that shares its beginning with others: what stands at a position decides what may follow.
struct Prompt {
  std::vector<BlockHash> hashes;
  std::vector<TokenId> tokens;

  BlockChain chain() const {
    BlockChain chain;
    chain.hashes = hashes;
    chain.token_ids = tokens;
    return chain;
  }
};

Prompt RandomPrompt(std::mt19937_64* random) {
  Prompt prompt;
  std::uint64_t state = (*random)() % 3;
  for (std::uint64_t length = 1 + (*random)() % 7; length > 0; --length) {
    state = StateDigest::Mix(state * 4 + (*random)() % 2);
    prompt.hashes.push_back(BlockHash::FromUint64(state));
    for (std::uint32_t i = 0; i < kBlockSize; ++i) prompt.tokens.push_back(static_cast<TokenId>((state + i) & 0xffff));
  }
  return prompt;
}

BlockPoolOptions PoolOptions(Removals removals, bool announce_at_registration) {
  BlockPoolOptions options;
  options.num_blocks = 48;
  options.block_size = kBlockSize;
  options.enable_events = true;
  options.removals = removals;
  options.announce_at_registration = announce_at_registration;
  return options;
}

class DrivenPool final : public DrivenSource {
 public:
  explicit DrivenPool(const BlockPoolOptions& options) : pool_(options) {}

  AnnouncedState* state() override { return &pool_; }
  KVEventBatch TakeEvents() override { return pool_.TakeEvents(); }
  std::uint32_t Announced(const StreamKey& key) const override {
    return pool_.num_announced(std::get<2>(key), std::get<0>(key));
  }
  bool IsResident(const StreamKey& key) const override {
    return pool_.FindCached(std::get<2>(key), std::get<0>(key)) != kNullBlock;
  }
  bool SetsAgree() const override { return pool_.options().removals == Removals::kExact; }

  void Operate(std::mt19937_64* random) override {
    const std::uint64_t dice = (*random)() % 100;
    if (dice < 55) {
      Admit(random);
    } else if (dice < 92) {
      Release(random);
    } else {
      const Prompt prompt = RandomPrompt(random);
      pool_.EvictHash(prompt.hashes.back(), Group(prompt));
    }
  }

  void Clear() override {
    for (const std::vector<BlockId>& table : held_) pool_.Free(table);
    held_.clear();
    REQUIRE(pool_.Reset());
  }

 private:
  static std::uint32_t Group(const Prompt& prompt) { return prompt.hashes.front().Low64() % 2 == 0 ? 0 : 1; }

  // Some find what is cached, others compute it again and make copies.
  void Admit(std::mt19937_64* random) {
    const Prompt prompt = RandomPrompt(random);
    const std::uint32_t group = Group(prompt);
    std::vector<BlockId> table;
    if ((*random)() % 3 > 0) {
      for (const BlockHash& hash : prompt.hashes) {
        const BlockId block = pool_.FindCached(hash, group);
        if (block == kNullBlock) break;
        table.push_back(block);
      }
    }
    const auto found = static_cast<std::uint32_t>(table.size());
    pool_.Touch(table);
    if (!pool_.Allocate(prompt.hashes.size() - found, &table)) {
      pool_.Free(table);
      return;
    }
    // A consumer that counts does not count reports with removals per copy.
    if (found > 0 && SetsAgree()) pool_.Report(std::span(table).first(found));
    pool_.Register(prompt.chain(), table, found, static_cast<std::uint32_t>(prompt.hashes.size()), group);
    if ((*random)() % 8 == 0) {
      pool_.Free(table);  // was never computed
    } else {
      held_.push_back(std::move(table));
    }
    pool_.AnnouncePending();
  }

  void Release(std::mt19937_64* random) {
    if (held_.empty()) return;
    const std::size_t i = (*random)() % held_.size();
    std::reverse(held_[i].begin(), held_[i].end());
    pool_.Free(held_[i]);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  BlockPool pool_;
  std::vector<std::vector<BlockId>> held_;
};

TEST_CASE("a block pool's stream says what it holds, through walks, losses and clears") {
  SUBCASE("removals exact") {
    RunAnnouncedStateSuite([] { return std::make_unique<DrivenPool>(PoolOptions(Removals::kExact, false)); });
  }
  SUBCASE("removals per copy") {
    RunAnnouncedStateSuite([] { return std::make_unique<DrivenPool>(PoolOptions(Removals::kPerCopy, false)); });
  }
  SUBCASE("vLLM's own order") {
    RunAnnouncedStateSuite([] { return std::make_unique<DrivenPool>(PoolOptions(Removals::kPerCopy, true)); });
  }
}

}  // namespace
}  // namespace kvwire::scheduler
