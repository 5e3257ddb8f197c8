// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kv_events/batch.h"
#include "kv_events/digest.h"
#include "kv_events/hash/block_hasher.h"
#include "kv_events/state_source.h"

namespace kvwire::testing {

// A consumer that believes every event and counts: what a stream says is resident. It names every rule that a batch
// breaks, and every difference from the owner of the blocks.
class EventMirror {
 public:
  struct Held {
    std::uint32_t count = 0;  // stores minus removals
    std::optional<BlockHash> parent;
    std::vector<TokenId> token_ids;
  };

  // With a hasher, each announced hash must be the one of its parent, tokens and extra keys. hash_block_size: the
  // tokens per hash, where blocks have more of them; 0: as many as a block has.
  explicit EventMirror(BlockHasher* hasher = nullptr, std::uint32_t hash_block_size = 0)
      : hasher_(hasher), hash_block_size_(hash_block_size) {}

  // Takes the batch in; returns the rules it broke.
  std::vector<std::string> Apply(const KVEventBatch& batch);

  // How often the owner says that a hash was announced and not removed.
  using CountOf = std::function<std::uint32_t(const BlockHash& hash, std::uint32_t group)>;

  // The differences from the owner: the set with parents and tokens, the counts (of the device unless count_of is
  // empty; elsewhere once), the digest. Also checks that the walk meets parents before their children.
  std::vector<std::string> Compare(const StateSource& source, const StateDigest& digest,
                                   const CountOf& count_of = {}) const;

  // 0 if the hash is not held.
  std::uint32_t count(const BlockHash& hash, std::uint32_t group = 0, std::string_view medium = kMediumGpu) const;
  std::size_t size() const noexcept { return held_.size(); }  // distinct (hash, group, medium)
  // Stores outside full attention whose parent was not announced in their group: the group needs no such block. And
  // stores in a lower tier, which may keep a block and not its parent, of parents that were announced nowhere.
  std::size_t num_unannounced_parents() const noexcept { return num_unannounced_parents_; }
  const StateDigest& digest() const noexcept { return digest_; }

 private:
  struct Key {
    std::uint32_t group = 0;
    BlockHash hash;
    std::string medium;  // empty in ever_

    friend bool operator<(const Key& a, const Key& b) {
      if (a.group != b.group) return a.group < b.group;
      return a.hash == b.hash ? a.medium < b.medium : a.hash < b.hash;
    }
  };

  void Take(const BlockStored& stored);
  void Take(const BlockRemoved& removed);
  void Take(const AllBlocksCleared&);
  void CheckHash(const BlockStored& stored, std::size_t i, const std::optional<BlockHash>& parent);
  void Hold(const Key& key, const std::optional<BlockHash>& parent, std::span<const TokenId> token_ids);
  void Broken(std::string rule) { broken_.push_back(std::move(rule)); }

  BlockHasher* const hasher_;
  const std::uint32_t hash_block_size_;
  std::size_t num_unannounced_parents_ = 0;
  std::map<Key, Held> held_;
  std::set<Key> ever_;  // announced since the last clear, removed or not, wherever
  StateDigest digest_;
  std::vector<std::string> broken_;  // by the batch being applied
};

}  // namespace kvwire::testing
