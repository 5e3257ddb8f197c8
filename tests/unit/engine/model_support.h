// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/engine_core.h"
#include "tests/support/event_mirror.h"

// What the checks of whole engines share: a random load, the outputs that it must have, and what its stream must say.
namespace kvwire::engine {

constexpr std::uint32_t kBlockSize = 4;  // tokens per hash, and per block unless there are groups

using Groups = std::vector<scheduler::KVCacheGroup>;

inline const Groups kDense = {{scheduler::KVCacheKind::kFullAttention, kBlockSize, 0}};

using Complaints = std::vector<std::string>;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : rng_(seed) {}

  int Random(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng_); }
  std::size_t Below(std::size_t bound) { return static_cast<std::size_t>(Random(0, static_cast<int>(bound) - 1)); }
  bool Chance(int percent) { return Random(0, 99) < percent; }

 private:
  std::mt19937_64 rng_;
};

// A prefix of the text with a short end of its own, so that the prompts of few texts hit, fork and repeat: `room`
// tokens at most. REQUIRES: room >= 2.
std::vector<TokenId> RandomPrompt(TokenId text, int room, Dice* dice);

// Removes one of them. REQUIRES: there is one.
scheduler::RequestId TakeRandom(std::set<scheduler::RequestId>* ids, Dice* dice);

// An engine without cache, events, lower tiers and drafts under the load of another one, whose outputs must be its own.
class ReferenceEngine {
 public:
  // config: that of the other engine. complaints: outlives this.
  ReferenceEngine(EngineConfig config, Complaints* complaints);

  void Add(scheduler::NewRequest request);
  // The other engine's output, to be compared when both are known.
  void Expect(const scheduler::FinishedRequest& finished) { others_[finished.id] = finished.output; }
  // One step, and a comparison.
  void Step();
  void Drain();

  std::uint64_t num_compared() const { return num_compared_; }

 private:
  using Outputs = std::unordered_map<scheduler::RequestId, std::vector<TokenId>>;

  void Run();
  void Compare();

  Complaints* const complaints_;
  const std::unique_ptr<EngineCore> engine_;
  Outputs others_;
  Outputs own_;
  std::uint64_t num_compared_ = 0;
};

// A consumer of an engine's stream that looks at the blocks: what is announced of the device is there, and holds the
// words of the tokens that the stream announced from the prompt's start to it.
class StreamCheck {
 public:
  using Prefixes = std::unordered_map<BlockHash, std::vector<TokenId>>;  // all tokens up to a hash

  // complaints: outlives this.
  StreamCheck(Groups groups, Complaints* complaints);
  StreamCheck(const StreamCheck&) = delete;
  StreamCheck& operator=(const StreamCheck&) = delete;

  // The next batch, while the blocks hold what they did when it was published.
  void Take(const KVEventBatch& batch, const scheduler::BlockPool& pool, const SimulatedRunner& words);
  // What the stream said so far is what the scheduler holds; the digest is compared as well.
  void Compare(const scheduler::Scheduler& scheduler);

  BlockHash HashOf(const BlockHash& parent, std::span<const TokenId> tokens);
  const Prefixes& prefixes() const { return prefixes_; }          // of what was announced since the last clear
  const Prefixes& all_prefixes() const { return all_prefixes_; }  // of what was announced before it, too
  std::uint64_t num_checked() const { return num_checked_; }      // stored blocks
  std::uint64_t num_unchecked() const { return num_unchecked_; }  // stores whose tokens no announcement tells

 private:
  void CheckWords(const BlockStored& stored, const scheduler::BlockPool& pool, const SimulatedRunner& words);

  const Groups groups_;
  Complaints* const complaints_;
  BlockHasher hasher_;
  testing::EventMirror mirror_;
  Prefixes prefixes_;
  Prefixes all_prefixes_;
  std::uint64_t num_checked_ = 0;
  std::uint64_t num_unchecked_ = 0;
};

}  // namespace kvwire::engine
