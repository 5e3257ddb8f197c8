// SPDX-License-Identifier: Apache-2.0
// How often blocks are hashed. The linker puts a counter before BlockHasher::HashBlock, whoever calls it.
#include <cstdint>
#include <span>
#include <utility>

#include <doctest/doctest.h>

#include "kv_events/hash/block_hasher.h"
#include "tests/support/engine_traffic.h"

namespace kvwire::test {
namespace {

std::uint64_t num_hashed = 0;

}  // namespace

BlockHash RealHashBlock(BlockHasher* hasher, const BlockHash& parent, std::span<const TokenId> tokens,
                        const ExtraKeys& extra_keys) asm("__real_" KVWIRE_HASH_BLOCK);
BlockHash CountedHashBlock(BlockHasher* hasher, const BlockHash& parent, std::span<const TokenId> tokens,
                           const ExtraKeys& extra_keys) asm("__wrap_" KVWIRE_HASH_BLOCK);

// A member function, with its object as the first argument.
BlockHash CountedHashBlock(BlockHasher* hasher, const BlockHash& parent, std::span<const TokenId> tokens,
                           const ExtraKeys& extra_keys) {
  ++num_hashed;
  return RealHashBlock(hasher, parent, tokens, extra_keys);
}

namespace {

using scheduler::KVCacheGroup;
using scheduler::KVCacheKind;
using scheduler::SchedulerStats;

constexpr int kSteps = 3000;

struct Run {
  std::uint64_t hashed = 0;
  SchedulerStats stats;
};

Run RunTraffic(const EngineTraffic::Options& options, EventPublisher* publisher) {
  EngineTraffic traffic(options, publisher);
  const std::uint64_t before = num_hashed;
  for (int i = 0; i < kSteps; ++i) {
    traffic.AddRequests();
    traffic.Step();
    if (i % 1000 == 999) traffic.scheduler().ResetPrefixCache(scheduler::ResetMode::kPreemptRunning);
  }
  return {num_hashed - before, traffic.scheduler().stats()};
}

TEST_CASE("A6: the counter sees the hash of a block") {
  BlockHasher hasher = *BlockHasher::Create(HashAlgorithm::kSha256Cbor, kDefaultHashSeed);
  const TokenId token = 1;
  const std::uint64_t before = num_hashed;
  hasher.HashBlock(BlockHash(), {&token, 1});
  CHECK(num_hashed == before + 1);
}

TEST_CASE("A6: with events on as many blocks are hashed as with events off, over hits, evictions and groups") {
  EngineTraffic::Options options;
  options.num_blocks = 150;
  SUBCASE("one group") {}
  SUBCASE("groups") { options.groups = {{KVCacheKind::kFullAttention, 4, 0}, {KVCacheKind::kSlidingWindow, 8, 12}}; }
  const Run off = RunTraffic(options, nullptr);
  CollectingEventPublisher publisher;
  const Run on = RunTraffic(options, &publisher);
  CHECK(off.hashed > 1000);
  CHECK(on.hashed == off.hashed);
  CHECK(on.stats.steps == off.stats.steps);
  CHECK(on.stats.hit_blocks == off.stats.hit_blocks);
  CHECK(on.stats.hit_blocks > 100);
  CHECK(on.stats.stored > 1000);
  CHECK(on.stats.removed > 1000);
  CHECK(on.stats.clears == 3);
  CHECK(off.stats.events == 0);
}

}  // namespace
}  // namespace kvwire::test
