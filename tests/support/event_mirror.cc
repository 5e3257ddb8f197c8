// SPDX-License-Identifier: Apache-2.0
#include "tests/support/event_mirror.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace kvwire::testing {

namespace {

std::string Name(const BlockHash& hash) { return std::to_string(hash.Low64()); }

bool IsKnown(const std::optional<std::string_view>& medium) {
  return medium == kMediumGpu || medium == kMediumCpu || medium == kMediumDisk;
}

}  // namespace

std::vector<std::string> EventMirror::Apply(const KVEventBatch& batch) {
  broken_.clear();
  if (batch.empty()) Broken("a batch without events");
  batch.Visit([this](const auto& event) { Take(event); });
  return std::exchange(broken_, {});
}

void EventMirror::Take(const BlockStored& stored) {
  if (stored.block_hashes.empty()) Broken("BlockStored without hashes");
  if (!IsKnown(stored.medium)) Broken("BlockStored with another medium than GPU, CPU or DISK");
  if (!stored.group_idx) Broken("BlockStored without group_idx");
  if (stored.token_ids.size() != std::size_t{stored.block_size} * stored.block_hashes.size()) {
    Broken("BlockStored with " + std::to_string(stored.token_ids.size()) + " tokens for " +
           std::to_string(stored.block_hashes.size()) + " hashes");
    return;
  }
  const std::uint32_t group = stored.group_idx.value_or(0);
  const std::string medium(stored.medium.value_or(kMediumGpu));
  std::optional<BlockHash> parent = stored.parent_block_hash;
  std::set<BlockHash> in_event;
  for (std::size_t i = 0; i < stored.block_hashes.size(); ++i) {
    const BlockHash& hash = stored.block_hashes[i];
    const std::span<const TokenId> tokens = stored.token_ids.subspan(i * stored.block_size, stored.block_size);
    if (!in_event.insert(hash).second) Broken("BlockStored lists " + Name(hash) + " twice");
    if (parent && !ever_.contains(Key{group, *parent, {}})) {
      if (medium != kMediumGpu || stored.kv_cache_spec_kind.value_or("full_attention") != "full_attention") {
        ++num_unannounced_parents_;
      } else {
        Broken("the parent " + Name(*parent) + " of " + Name(hash) + " was never announced");
      }
    }
    if (hasher_ != nullptr) CheckHash(stored, i, parent);
    Hold(Key{group, hash, medium}, parent, tokens);
    parent = hash;
  }
}

void EventMirror::CheckHash(const BlockStored& stored, std::size_t i, const std::optional<BlockHash>& parent) {
  const ExtraKeys keys = stored.extra_keys.per_block.empty() ? ExtraKeys() : stored.extra_keys.per_block[i];
  const std::uint32_t step = hash_block_size_ == 0 ? stored.block_size : hash_block_size_;
  // Which of a block's hashes an offset belongs to is not said.
  if (step != stored.block_size && !keys.empty()) return;
  BlockHash hash = parent.value_or(BlockHash());
  for (std::size_t start = i * stored.block_size; start < (i + 1) * stored.block_size; start += step) {
    hash = hasher_->HashBlock(hash, stored.token_ids.subspan(start, step), keys);
  }
  if (hash != stored.block_hashes[i])
    Broken(Name(stored.block_hashes[i]) + " is not the hash of its parent and tokens");
}

void EventMirror::Hold(const Key& key, const std::optional<BlockHash>& parent, std::span<const TokenId> token_ids) {
  ever_.insert(Key{key.group, key.hash, {}});
  Held& held = held_[key];
  if (held.count++ == 0) {
    held.parent = parent;
    held.token_ids.assign(token_ids.begin(), token_ids.end());
    digest_.Add(key.group, key.medium, key.hash.Low64());
    return;
  }
  if (held.parent != parent) Broken(Name(key.hash) + " is announced again under another parent");
  if (!std::ranges::equal(held.token_ids, token_ids)) Broken(Name(key.hash) + " is announced again with other tokens");
}

void EventMirror::Take(const BlockRemoved& removed) {
  if (removed.medium == kMediumGpu && removed.block_hashes.size() != 1) {
    Broken("BlockRemoved does not list exactly one hash");
  }
  if (!IsKnown(removed.medium)) Broken("BlockRemoved with another medium than GPU, CPU or DISK");
  if (!removed.group_idx) Broken("BlockRemoved without group_idx");
  for (const BlockHash& hash : removed.block_hashes) {
    const Key key{removed.group_idx.value_or(0), hash, std::string(removed.medium.value_or(kMediumGpu))};
    const auto found = held_.find(key);
    if (found == held_.end()) {
      Broken("BlockRemoved of " + Name(hash) + ", which is not held");
      continue;
    }
    if (--found->second.count > 0) continue;
    held_.erase(found);
    digest_.Remove(key.group, key.medium, hash.Low64());
  }
}

void EventMirror::Take(const AllBlocksCleared&) {
  held_.clear();
  ever_.clear();
  digest_.Clear();
}

std::vector<std::string> EventMirror::Compare(const StateSource& source, const StateDigest& digest,
                                              const CountOf& count_of) const {
  std::vector<std::string> differences;
  std::set<Key> walked;
  source.Walk([&](const ResidentBlock& block) {
    const Key key{block.group, block.hash, std::string(block.medium)};
    if (!walked.insert(key).second) differences.push_back("the walk meets " + Name(block.hash) + " twice");
    const auto found = held_.find(key);
    if (found == held_.end()) {
      differences.push_back(Name(block.hash) + " is resident, but not announced");
      return;
    }
    const Held& held = found->second;
    if (held.parent != block.parent) differences.push_back(Name(block.hash) + " was announced under another parent");
    if (!std::ranges::equal(held.token_ids, block.token_ids)) {
      differences.push_back(Name(block.hash) + " was announced with other tokens");
    }
    const Key parent{block.group, block.parent.value_or(BlockHash()), key.medium};
    if (block.parent && held_.contains(parent) && !walked.contains(parent)) {
      differences.push_back("the walk meets " + Name(block.hash) + " before its parent");
    }
    if (!count_of) return;
    const std::uint32_t count = key.medium == kMediumGpu ? count_of(block.hash, block.group) : 1;
    if (count != held.count) {
      differences.push_back(Name(block.hash) + " is counted " + std::to_string(held.count) + " times, by its owner " +
                            std::to_string(count) + " times");
    }
  });
  for (const auto& [key, held] : held_) {
    if (!walked.contains(key)) differences.push_back(Name(key.hash) + " is announced, but not resident");
  }
  if (digest_ != digest) {
    differences.push_back("the digest is " + digest_.ToString() + ", the owner's " + digest.ToString());
  }
  return differences;
}

std::uint32_t EventMirror::count(const BlockHash& hash, std::uint32_t group, std::string_view medium) const {
  const auto found = held_.find(Key{group, hash, std::string(medium)});
  return found == held_.end() ? 0 : found->second.count;
}

}  // namespace kvwire::testing
