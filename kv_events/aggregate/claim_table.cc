// SPDX-License-Identifier: Apache-2.0
#include "kv_events/aggregate/claim_table.h"

#include <algorithm>
#include <cassert>
#include <functional>
#include <variant>

namespace kvwire {

namespace {

constexpr std::size_t kInitialSlots = 1024;

std::size_t KeyBytes(const ExtraKeys& keys) {
  struct Visitor {
    std::size_t operator()(const std::string& text) const { return text.size(); }
    std::size_t operator()(const MultimodalKey& item) const { return item.identifier.size(); }
    std::size_t operator()(const std::vector<std::uint8_t>& bytes) const { return bytes.size(); }
    std::size_t operator()(const OpaqueKey& key) const { return key.msgpack.size(); }
  };
  std::size_t bytes = keys.size() * sizeof(ExtraKey);
  for (const ExtraKey& key : keys) bytes += std::visit(Visitor(), key);
  return bytes;
}

}  // namespace

// The index is linear probing over a power of two of slots at a load of at most 3/4; no slot between a block's home and
// its place is free. Erasing closes the hole by moving later entries of the run back, so there are no tombstones.
// A block that is not in use has an empty hash; a claim that is not in use has no holders, and all its orders are 0.

ClaimTable::ClaimTable(std::uint32_t num_workers) : num_workers_(num_workers), slots_(kInitialSlots) {}

std::uint32_t ClaimTable::Tag(std::uint32_t shelf, const BlockHash& hash) noexcept {
  const std::uint64_t x = (std::hash<BlockHash>()(hash) + shelf) * 0x9e3779b97f4a7c15u;
  return static_cast<std::uint32_t>(x >> 32);
}

// The block's slot, or the free one where it belongs.
std::size_t ClaimTable::FindSlot(std::uint32_t shelf, const BlockHash& hash) const noexcept {
  const std::uint32_t tag = Tag(shelf, hash);
  const auto is_it = [&](const Slot& slot) {
    return slot.tag == tag && blocks_[slot.id].hash == hash && blocks_[slot.id].shelf == shelf;
  };
  std::size_t i = tag & (slots_.size() - 1);
  while (slots_[i].id != kNoId && !is_it(slots_[i])) i = (i + 1) & (slots_.size() - 1);
  return i;
}

BlockId ClaimTable::Find(std::uint32_t shelf, const BlockHash& hash) const noexcept {
  return slots_[FindSlot(shelf, hash)].id;
}

BlockId ClaimTable::Add(std::uint32_t shelf, const BlockHash& hash) {
  assert(!hash.empty());
  if ((size_ + 1) * 4 > slots_.size() * 3) Grow();
  if (free_blocks_.empty()) {
    blocks_.Grow(1);
    free_blocks_.push_back(end() - 1);
  }
  const BlockId id = free_blocks_.back();
  free_blocks_.pop_back();
  blocks_[id].hash = hash;
  blocks_[id].shelf = shelf;
  slots_[FindSlot(shelf, hash)] = {id, Tag(shelf, hash)};
  ++size_;
  return id;
}

void ClaimTable::Erase(BlockId id) {
  assert(blocks_[id].claims == kNoId);
  EraseSlot(FindSlot(blocks_[id].shelf, blocks_[id].hash));
  blocks_[id] = Block();
  free_blocks_.push_back(id);
  --size_;
}

void ClaimTable::EraseSlot(std::size_t slot) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t hole = slot;
  for (std::size_t i = (hole + 1) & mask; slots_[i].id != kNoId; i = (i + 1) & mask) {
    const std::size_t home = slots_[i].tag & mask;
    // Movable unless its home lies behind the hole, cyclically.
    if (((i - home) & mask) >= ((i - hole) & mask)) {
      slots_[hole] = slots_[i];
      hole = i;
    }
  }
  slots_[hole] = Slot();
}

void ClaimTable::Grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  const std::size_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.id == kNoId) continue;
    std::size_t i = slot.tag & mask;
    while (slots_[i].id != kNoId) i = (i + 1) & mask;
    slots_[i] = slot;
  }
}

ClaimId ClaimTable::HeldBy(BlockId id, std::uint32_t worker) const {
  ClaimId claim = blocks_[id].claims;
  while (claim != kNoId && Order(claim, worker) == 0) claim = claims_[claim].next;
  return claim;
}

ClaimId ClaimTable::With(BlockId id, const BlockContent& content) const {
  ClaimId claim = blocks_[id].claims;
  while (claim != kNoId && !DifferentField(content, claims_[claim]).empty()) claim = claims_[claim].next;
  return claim;
}

ClaimId ClaimTable::AddClaim(BlockId id, const BlockContent& content) {
  if (free_claims_.empty()) {
    claims_.Grow(1);
    orders_.Grow(num_workers_);
    free_claims_.push_back(static_cast<ClaimId>(claims_.size() - 1));
  }
  const ClaimId added = free_claims_.back();
  free_claims_.pop_back();
  Claim& claim = claims_[added];
  claim.attributes = AttributeTable::Share(content.attributes);
  claim.parent = content.parent;
  claim.token_ids.assign(content.token_ids.begin(), content.token_ids.end());
  claim.extra_keys = *content.extra_keys;

  ClaimId* last = &blocks_[id].claims;
  while (*last != kNoId) last = &claims_[*last].next;
  *last = added;
  return added;
}

void ClaimTable::Hold(ClaimId claim, std::uint32_t worker, std::uint64_t order) {
  assert(order > 0 && Order(claim, worker) == 0);
  orders_[std::size_t{claim} * num_workers_ + worker] = order;
  ++claims_[claim].holders;
}

void ClaimTable::LetGo(BlockId id, ClaimId claim, std::uint32_t worker) {
  assert(Order(claim, worker) > 0);
  orders_[std::size_t{claim} * num_workers_ + worker] = 0;
  Claim& left = claims_[claim];
  if (--left.holders > 0) return;
  ClaimId* to_it = &blocks_[id].claims;
  while (*to_it != claim) to_it = &claims_[*to_it].next;
  *to_it = left.next;
  if (blocks_[id].announced_claim == claim) blocks_[id].announced_claim = kNoId;
  attributes_.Release(left.attributes);
  left.attributes = nullptr;
  left.next = kNoId;
  left.token_ids.clear();
  left.extra_keys = {};
  free_claims_.push_back(claim);
}

std::uint64_t ClaimTable::Order(ClaimId claim, std::uint32_t worker) const {
  return orders_[std::size_t{claim} * num_workers_ + worker];
}

std::uint32_t ClaimTable::FirstHolder(ClaimId claim) const {
  std::uint32_t worker = 0;
  while (Order(claim, worker) == 0) ++worker;
  return worker;
}

std::size_t ClaimTable::Bytes(BlockId id) const {
  std::size_t bytes = sizeof(Block);
  for (ClaimId i = blocks_[id].claims; i != kNoId; i = claims_[i].next) {
    const Claim& claim = claims_[i];
    bytes += sizeof(Claim) + num_workers_ * sizeof(std::uint64_t) + claim.token_ids.size() * sizeof(TokenId) +
             KeyBytes(claim.extra_keys);
  }
  return bytes;
}

std::string_view DifferentField(const BlockContent& content, const Claim& claim) {
  if (content.attributes != claim.attributes) {
    const std::string_view field = DifferentField(content.attributes->first, claim.attributes->first);
    if (!field.empty()) return field;
  }
  if (content.parent != claim.parent) return "parent_block_hash";
  if (!std::ranges::equal(content.token_ids, claim.token_ids)) return "token_ids";
  if (*content.extra_keys != claim.extra_keys) return "extra_keys";
  return {};
}

}  // namespace kvwire
