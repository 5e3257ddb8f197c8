// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "kv_events/batch.h"
#include "kv_events/digest.h"
#include "kv_events/event_publisher.h"

namespace kvwire::test {

// A pool of blocks that comes and goes at random, with walks over it: the step thread's side of a snapshot, by hand.
// Parents stay while they have children.
class StateProducer {
 public:
  explicit StateProducer(std::uint64_t seed) : random_(seed) {}

  std::size_t max_blocks = 40;  // above which some go

  // Where it keeps a block.
  static std::string_view MediumOf(std::uint64_t hash) { return hash % 5 == 0 ? kMediumCpu : kMediumGpu; }

  // Some stores and removals, with the digest after them.
  KVEventBatch Step() {
    KVEventBatch batch;
    batch.ts = 1700000000.5;
    for (std::uint64_t i = 1 + Below(6); i > 0; --i) {
      if (blocks_.size() > max_blocks && Below(2) == 0) {
        RemoveLeaf(&batch);
      } else {
        StoreChild(&batch);
      }
    }
    Stamp(&batch);
    return batch;
  }

  KVEventBatch Clear() {
    KVEventBatch batch;
    batch.Add(AllBlocksCleared{});
    blocks_.clear();
    digest_.Clear();
    Stamp(&batch);
    return batch;
  }

  void BeginWalk(std::uint64_t walk) {
    walk_ = walk;
    order_.clear();
    for (const auto& [hash, block] : blocks_) order_.push_back(hash);  // a child has a larger hash than its parent
    at_ = 0;
  }
  bool walking() const { return at_ <= order_.size(); }

  // The next piece; what has gone since the walk began is passed over.
  StateChunk NextChunk(std::size_t blocks) {
    StateChunk chunk;
    chunk.walk = walk_;
    chunk.first = at_ == 0;
    chunk.blocks.ts = 1700000001.5;
    chunk.blocks.data_parallel_rank = 3;
    for (std::size_t n = 0; n < blocks && at_ < order_.size(); ++n, ++at_) {
      const auto found = blocks_.find(order_[at_]);
      if (found != blocks_.end()) AddStored(found->first, found->second, &chunk.blocks);
    }
    chunk.last = at_ == order_.size();
    if (chunk.last) ++at_;
    Stamp(&chunk.blocks);
    return chunk;
  }

  std::set<std::uint64_t> hashes() const {
    std::set<std::uint64_t> all;
    for (const auto& [hash, block] : blocks_) all.insert(hash);
    return all;
  }
  const StateDigest& digest() const { return digest_; }

 private:
  struct Block {
    std::optional<std::uint64_t> parent;
    std::uint32_t children = 0;
  };

  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }
  std::map<std::uint64_t, Block>::iterator Any() {
    return std::next(blocks_.begin(), static_cast<std::ptrdiff_t>(Below(blocks_.size())));
  }
  void Stamp(KVEventBatch* batch) const {
    batch->digest = digest_;
    batch->has_digest = true;
  }

  static void AddStored(std::uint64_t hash, const Block& block, KVEventBatch* batch) {
    const BlockHash id = BlockHash::FromUint64(hash);
    const auto token = static_cast<TokenId>(hash % 100000);
    const TokenId tokens[] = {token, token + 1, token + 2, token + 3};
    BlockStored stored;
    stored.block_hashes = {&id, 1};
    if (block.parent) stored.parent_block_hash = BlockHash::FromUint64(*block.parent);
    stored.token_ids = tokens;
    stored.block_size = 4;
    stored.medium = MediumOf(hash);
    stored.group_idx = 0;
    batch->Add(stored);
  }

  void StoreChild(KVEventBatch* batch) {
    Block block;
    if (!blocks_.empty() && Below(4) != 0) {
      const auto parent = Any();
      block.parent = parent->first;
      ++parent->second.children;
    }
    const std::uint64_t hash = ++last_hash_;
    AddStored(hash, block, batch);
    blocks_.emplace(hash, block);
    digest_.Add(0, MediumOf(hash), hash);
  }

  void RemoveLeaf(KVEventBatch* batch) {
    auto leaf = Any();
    while (leaf->second.children > 0) leaf = Any();
    const std::uint64_t hash = leaf->first;
    if (leaf->second.parent) --blocks_.at(*leaf->second.parent).children;
    blocks_.erase(leaf);
    const BlockHash id = BlockHash::FromUint64(hash);
    BlockRemoved removed;
    removed.block_hashes = {&id, 1};
    removed.medium = MediumOf(hash);
    removed.group_idx = 0;
    batch->Add(removed);
    digest_.Remove(0, MediumOf(hash), hash);
  }

  std::mt19937_64 random_;
  std::map<std::uint64_t, Block> blocks_;
  std::uint64_t last_hash_ = 1000;
  StateDigest digest_;
  std::uint64_t walk_ = 0;
  std::vector<std::uint64_t> order_;
  std::size_t at_ = 1;
};

}  // namespace kvwire::test
