// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "kv_events/block_hash.h"
#include "scheduler/scheduler_output.h"

namespace kvwire::scheduler {

// Open-addressing map from a key to a block, where the block itself knows its key: a slot holds 32 bits of the key's
// hash and the block id. Linear probing; erasing moves later entries back, so that there are no tombstones.
// Bounds: at most `max_entries` entries; 16 to 32 bytes of memory per entry; it never grows.
class BlockIndex {
 public:
  using Tag = std::uint32_t;
  static constexpr BlockId kNone = 0;  // the null block is never in the index

  explicit BlockIndex(std::size_t max_entries)
      : slots_(std::bit_ceil(std::size_t{2} * max_entries + 2)), mask_(slots_.size() - 1) {}

  static Tag TagOf(const BlockHash& hash, std::uint32_t group) noexcept {
    return static_cast<Tag>(std::hash<BlockHash>()(hash)) + group * Tag{0x9e3779b1u};
  }

  // The block of the key, or kNone. same(block) compares keys; it is asked only where the tags agree.
  template <class Same>
  BlockId Find(Tag tag, Same&& same) const {
    for (std::size_t i = tag & mask_; slots_[i].block != kNone; i = (i + 1) & mask_) {
      if (slots_[i].tag == tag && same(slots_[i].block)) return slots_[i].block;
    }
    return kNone;
  }

  // Tells the processor that the tag will be asked for soon.
  void Prefetch(Tag tag) const { __builtin_prefetch(&slots_[tag & mask_]); }

  // REQUIRES: the key is not in the index, and there are fewer than max_entries entries.
  void Insert(Tag tag, BlockId block) {
    std::size_t i = tag & mask_;
    while (slots_[i].block != kNone) i = (i + 1) & mask_;
    slots_[i] = Slot{tag, block};
  }

  // REQUIRES: (tag, block) is in the index.
  void Replace(Tag tag, BlockId block, BlockId other) { slots_[SlotOf(tag, block)].block = other; }

  void Erase(Tag tag, BlockId block) {
    std::size_t hole = SlotOf(tag, block);
    for (std::size_t i = (hole + 1) & mask_; slots_[i].block != kNone; i = (i + 1) & mask_) {
      // An entry may fill the hole if the hole lies on its way from its home slot.
      const std::size_t home = slots_[i].tag & mask_;
      if (((i - home) & mask_) >= ((i - hole) & mask_)) {
        slots_[hole] = slots_[i];
        hole = i;
      }
    }
    slots_[hole] = Slot{};
  }

  void Clear() { slots_.assign(slots_.size(), Slot{}); }

 private:
  struct Slot {
    Tag tag = 0;
    BlockId block = kNone;
  };

  std::size_t SlotOf(Tag tag, BlockId block) const {
    std::size_t i = tag & mask_;
    while (slots_[i].block != block) i = (i + 1) & mask_;
    return i;
  }

  std::vector<Slot> slots_;
  const std::size_t mask_;
};

}  // namespace kvwire::scheduler
