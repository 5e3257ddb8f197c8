// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv_events/block_attributes.h"
#include "kv_events/events.h"

namespace kvwire {

// Small numbers for what a ClaimTable holds; kNoId for none.
using BlockId = std::uint32_t;
using ClaimId = std::uint32_t;
inline constexpr std::uint32_t kNoId = 0xffffffff;

// What a report says of one block.
struct BlockContent {
  AttributeTable::Handle attributes = nullptr;
  BlockHash parent;  // empty: none
  std::span<const TokenId> token_ids;
  const ExtraKeys* extra_keys = nullptr;  // never null in use
};

// A content and how many workers say that a block has it.
struct Claim {
  AttributeTable::Handle attributes = nullptr;
  ClaimId next = kNoId;       // another content of the same block
  std::uint32_t holders = 0;  // workers
  BlockHash parent;           // empty: none
  std::vector<TokenId> token_ids;
  ExtraKeys extra_keys;
};

// Neighbours in a BlockList.
struct BlockLinks {
  BlockId before = kNoId;
  BlockId after = kNoId;
};

// Whether a block counts as pending.
enum class BlockPlace : std::uint8_t {
  kNowhere,      // nobody holds it
  kPending,      // it was never complete
  kEstablished,  // it was complete since somebody held it first
};

// During WorkerEventAggregator::Take().
enum class TakeMark : std::uint8_t { kNone, kReady, kClimbing };

// A block that a worker holds, or that is announced.
struct Block {
  BlockHash hash;
  BlockPlace place = BlockPlace::kNowhere;
  bool available = false;  // complete
  bool disputed = false;   // has several claims
  bool due = false;        // is announced wrongly, or not announced and available
  TakeMark mark = TakeMark::kNone;
  std::uint32_t shelf = 0;
  ClaimId claims = kNoId;                      // the first
  ClaimId announced_claim = kNoId;             // kNoId also when that claim is gone
  AttributeTable::Handle announced = nullptr;  // null: not announced
  std::size_t bytes = 0;
  BlockLinks age;  // of its place
  BlockLinks due_links;
};

// Elements that stay where they are while more are added.
template <class T>
class Slab {
 public:
  T& operator[](std::size_t i) { return chunks_[i / kChunk][i % kChunk]; }
  const T& operator[](std::size_t i) const { return chunks_[i / kChunk][i % kChunk]; }
  std::size_t size() const noexcept { return size_; }

  // Adds default elements.
  void Grow(std::size_t count) {
    for (size_ += count; chunks_.size() * kChunk < size_;) chunks_.push_back(std::make_unique<T[]>(kChunk));
  }

 private:
  static constexpr std::size_t kChunk = 256;

  std::vector<std::unique_ptr<T[]>> chunks_;
  std::size_t size_ = 0;
};

// What each worker says of each block. A block has one claim, or several when workers disagree; a worker holds at most
// one claim of a block. Ids stay until they are erased; the memory is used again.
//
// Threads: one thread at a time.
// Bounds: 8 bytes a block in the index, times at most 2.7; the rest is Bytes().
class ClaimTable {
 public:
  explicit ClaimTable(std::uint32_t num_workers);

  ClaimTable(const ClaimTable&) = delete;
  ClaimTable& operator=(const ClaimTable&) = delete;

  Block& block(BlockId id) { return blocks_[id]; }
  const Claim& claim(ClaimId id) const { return claims_[id]; }
  AttributeTable& attributes() { return attributes_; }

  // Ids are below this; Exists() tells which of them are in use.
  BlockId end() const noexcept { return static_cast<BlockId>(blocks_.size()); }
  bool Exists(BlockId id) const { return !blocks_[id].hash.empty(); }

  // kNoId when there is none.
  BlockId Find(std::uint32_t shelf, const BlockHash& hash) const noexcept;
  // REQUIRES: Find() gives none, the hash is not empty.
  BlockId Add(std::uint32_t shelf, const BlockHash& hash);
  // REQUIRES: it has no claims and is in no list.
  void Erase(BlockId id);

  // The block's claim that the worker holds, or that has this content; kNoId when there is none.
  ClaimId HeldBy(BlockId id, std::uint32_t worker) const;
  ClaimId With(BlockId id, const BlockContent& content) const;

  // A claim without holders. REQUIRES: With() gives none.
  ClaimId AddClaim(BlockId id, const BlockContent& content);
  // `order` > 0: when the worker said it. REQUIRES: HeldBy() gives none.
  void Hold(ClaimId claim, std::uint32_t worker, std::uint64_t order);
  // The claim ends with its last holder. REQUIRES: the worker holds it.
  void LetGo(BlockId id, ClaimId claim, std::uint32_t worker);

  // 0 when the worker does not hold the claim.
  std::uint64_t Order(ClaimId claim, std::uint32_t worker) const;
  // The lowest worker that holds it. REQUIRES: it has holders.
  std::uint32_t FirstHolder(ClaimId claim) const;

  // Memory of the block and its claims.
  std::size_t Bytes(BlockId id) const;

 private:
  struct Slot {
    BlockId id = kNoId;     // kNoId: free
    std::uint32_t tag = 0;  // of shelf and hash; its low bits say where to look first
  };

  static std::uint32_t Tag(std::uint32_t shelf, const BlockHash& hash) noexcept;
  std::size_t FindSlot(std::uint32_t shelf, const BlockHash& hash) const noexcept;
  void Grow();
  void EraseSlot(std::size_t slot);

  const std::uint32_t num_workers_;
  AttributeTable attributes_;
  Slab<Block> blocks_;
  Slab<Claim> claims_;
  Slab<std::uint64_t> orders_;  // num_workers_ a claim
  std::vector<BlockId> free_blocks_;
  std::vector<ClaimId> free_claims_;
  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

// The first part in which the content differs from the claim's, spelled as on the wire; empty if there is none.
std::string_view DifferentField(const BlockContent& content, const Claim& claim);

// Blocks of a table in the order they were pushed, linked through one of their members.
template <BlockLinks Block::*kLinks>
class BlockList {
 public:
  explicit BlockList(ClaimTable* table) : table_(table) {}

  BlockId front() const noexcept { return front_; }
  BlockId After(BlockId id) const { return (table_->block(id).*kLinks).after; }
  std::size_t size() const noexcept { return size_; }

  // REQUIRES: it is not in the list.
  void PushBack(BlockId id) {
    BlockLinks& links = table_->block(id).*kLinks;
    links = {back_, kNoId};
    (back_ == kNoId ? front_ : (table_->block(back_).*kLinks).after) = id;
    back_ = id;
    ++size_;
  }

  // REQUIRES: it is in the list.
  void Erase(BlockId id) {
    const BlockLinks links = table_->block(id).*kLinks;
    (links.before == kNoId ? front_ : (table_->block(links.before).*kLinks).after) = links.after;
    (links.after == kNoId ? back_ : (table_->block(links.after).*kLinks).before) = links.before;
    --size_;
  }

 private:
  ClaimTable* const table_;
  BlockId front_ = kNoId;
  BlockId back_ = kNoId;
  std::size_t size_ = 0;
};

}  // namespace kvwire
