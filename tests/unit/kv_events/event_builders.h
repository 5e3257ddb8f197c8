// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "kv_events/events.h"

namespace kvwire {

inline std::vector<BlockHash> Hashes(std::initializer_list<std::uint64_t> values) {
  std::vector<BlockHash> hashes;
  for (const std::uint64_t value : values) hashes.push_back(BlockHash::FromUint64(value));
  return hashes;
}

// A BlockStored that owns what its view points to (name it if the view is kept): two tokens per block, derived from the
// hash.
class StoredEvent {
 public:
  explicit StoredEvent(std::initializer_list<std::uint64_t> hashes, std::optional<std::uint64_t> parent = std::nullopt)
      : hashes_(Hashes(hashes)) {
    for (const std::uint64_t hash : hashes) {
      tokens_.push_back(static_cast<TokenId>(hash * 2));
      tokens_.push_back(static_cast<TokenId>(hash * 2 + 1));
    }
    if (parent) parent_ = BlockHash::FromUint64(*parent);
  }

  BlockStored view() const {
    BlockStored stored;
    stored.block_hashes = hashes_;
    stored.parent_block_hash = parent_;
    stored.token_ids = tokens_;
    stored.block_size = 2;
    stored.medium = kMediumGpu;
    return stored;
  }

 private:
  std::vector<BlockHash> hashes_;
  std::vector<TokenId> tokens_;
  std::optional<BlockHash> parent_;
};

// A BlockRemoved that owns its hashes.
class RemovedEvent {
 public:
  explicit RemovedEvent(std::initializer_list<std::uint64_t> hashes) : hashes_(Hashes(hashes)) {}

  BlockRemoved view() const {
    BlockRemoved removed;
    removed.block_hashes = hashes_;
    removed.medium = kMediumGpu;
    return removed;
  }

 private:
  std::vector<BlockHash> hashes_;
};

}  // namespace kvwire
