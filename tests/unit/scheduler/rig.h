// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv_events/batch.h"
#include "kv_events/clock.h"
#include "kv_events/event_publisher.h"
#include "kv_events/hash/block_hasher.h"
#include "scheduler/scheduler.h"
#include "tests/support/block_chains.h"

namespace kvwire::scheduler {

using test::ChainOf;
using test::Range;

using Blocks = std::vector<BlockId>;
using Texts = std::vector<std::string>;

constexpr KVCacheKind kFull = KVCacheKind::kFullAttention;
constexpr KVCacheKind kWindow = KVCacheKind::kSlidingWindow;
constexpr KVCacheKind kMamba = KVCacheKind::kMamba;

class FixedClock final : public Clock {
 public:
  double WallSeconds() const noexcept override { return wall; }
  MonotonicNanos Now() const noexcept override { return 0; }

  double wall = 1700000000.5;
};

inline BlockHasher HasherWithSeed(std::string_view seed) {
  return *BlockHasher::Create(HashAlgorithm::kSha256Cbor, seed);
}

// Events as short texts:
//   S h0,h1 < nil : 1..8     BlockStored: hashes < parent : tokens
//   R h1                     BlockRemoved
//   C                        AllBlocksCleared
// Tokens are "first..last" if they rise by one, "tokenxcount" if they are equal, else a list. What differs from the
// usual form (medium GPU, group 0, extra_keys a list of nils, no LoRA, kind as expected) is appended in brackets.
class EventTexts {
 public:
  explicit EventTexts(std::uint32_t block_size, std::optional<std::string> kind = "full_attention")
      : block_size_(block_size), kind_(std::move(kind)) {}

  // Names the hashes of a chain prefix0, prefix1, ...
  void Name(const std::string& prefix, const std::vector<BlockHash>& chain);

  std::string Of(const BlockStored& stored) const;
  std::string Of(const BlockRemoved& removed) const;
  std::string Of(const AllBlocksCleared&) const { return "C"; }
  Texts Of(const KVEventBatch& batch) const;

 private:
  std::string NameOf(const BlockHash& hash) const;

  const std::uint32_t block_size_;
  const std::optional<std::string> kind_;
  std::map<BlockHash, std::string> names_;
};

// h0, h1, ... are the hash blocks of 1, 2, 3, ..., four tokens each. block_size: what the texts take for usual.
EventTexts CountedNames(std::uint32_t block_size = 4);

// A scheduler whose model is a function, and what it published.
class Rig {
 public:
  explicit Rig(SchedulerConfig config, std::string_view seed = "0", std::int64_t rank = 0);

  Scheduler& scheduler() { return *scheduler_; }
  const BlockPool& pool() const { return scheduler_->pool(); }
  CollectingEventPublisher& publisher() { return publisher_; }
  FixedClock& clock() { return clock_; }

  // REQUIRES: the request is accepted.
  void Add(RequestId id, std::vector<TokenId> prompt, std::uint32_t max_tokens = 16, ExtraArgs extra_args = {});

  // A whole step; every request that samples gets the next of `tokens`, or 7.
  std::vector<FinishedRequest> Step(std::initializer_list<TokenId> tokens = {});
  // The two halves.
  SchedulerOutput Schedule() { return scheduler_->Schedule(); }
  std::vector<FinishedRequest> Update(const SchedulerOutput& step, std::initializer_list<TokenId> tokens = {});

  // Texts of what was published since the last call; "|" stands between batches.
  Texts Published(const EventTexts& texts);

  std::vector<BlockId> FreeQueue() const { return pool().free_queue().ToVector(); }

 private:
  CollectingEventPublisher publisher_;
  FixedClock clock_;
  std::unique_ptr<Scheduler> scheduler_;
};

// A small configuration with events on.
SchedulerConfig SmallConfig(std::uint32_t num_blocks, std::uint32_t block_size = 4);

// The order of events: this project's own or vLLM's.
enum class Mode { kOurs, kExact };
// The same for groups, with hash blocks of 4 tokens.
SchedulerConfig GroupConfig(std::uint32_t num_blocks, std::vector<KVCacheGroup> groups, Mode mode = Mode::kOurs);

// Runs one request to its end, with one token of output; the tokens that it found cached. REQUIRES: no other request
// ends before it.
std::uint32_t Finish(Rig& rig, RequestId id, std::vector<TokenId> prompt);

std::vector<TokenId> With(std::vector<TokenId> tokens, TokenId last);

inline ExtraArgs FullReports() { return {{"kv_cache_report_mode", std::string("full")}}; }

}  // namespace kvwire::scheduler
