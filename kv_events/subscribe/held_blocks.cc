// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/held_blocks.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "kv_events/escape_text.h"

namespace kvwire {

namespace {

constexpr std::size_t kInitialSlots = 1024;

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace

std::string ShortDigest(const std::vector<StateDigest::Entry>& entries) {
  constexpr std::size_t kShown = 32;
  if (entries.size() <= kShown) return DescribeDigest(entries);
  const std::vector<StateDigest::Entry> shown(entries.begin(), entries.begin() + kShown);
  return fmt::format("{} and {} more", DescribeDigest(shown), entries.size() - kShown);
}

// Linear probing over a power of two of slots; no slot between an entry's home and its place is free. Removing closes
// the hole by moving later entries of the run back, so there are no tombstones.

HeldBlocks::HeldBlocks() : slots_(kInitialSlots) {}

HeldBlocks::ShelfId HeldBlocks::ShelfOf(const std::optional<std::uint32_t>& group,
                                        const std::optional<std::string_view>& medium) {
  std::string name = CanonicalMedium(medium.value_or(std::string_view()));
  const std::uint32_t number = group.value_or(0);
  if (const std::optional<ShelfId> known = FindShelf(number, name)) return *known;
  const auto id = static_cast<ShelfId>(shelves_.size());
  shelves_.push_back({{number, name}, digest_.SlotOf(number, name)});
  shelf_of_.emplace(Place(number, std::move(name)), id);
  return id;
}

std::optional<HeldBlocks::ShelfId> HeldBlocks::FindShelf(std::uint32_t group, std::string_view medium) const noexcept {
  const auto found = shelf_of_.find(std::pair(group, medium));
  return found == shelf_of_.end() ? std::nullopt : std::optional(found->second);
}

std::size_t HeldBlocks::Home(ShelfId shelf, std::uint64_t low64) const noexcept {
  return salt_.Mix(shelf, low64) & (slots_.size() - 1);
}

std::size_t HeldBlocks::Find(ShelfId shelf, std::uint64_t low64) const noexcept {
  std::size_t i = Home(shelf, low64);
  while (slots_[i].count != 0 && (slots_[i].low64 != low64 || slots_[i].shelf != shelf)) {
    i = (i + 1) & (slots_.size() - 1);
  }
  return i;
}

std::uint32_t HeldBlocks::Add(ShelfId shelf, std::uint64_t low64) {
  std::size_t i = Find(shelf, low64);
  if (slots_[i].count == 0) {
    if ((size_ + 1) * 5 > slots_.size() * 4) {
      Grow();
      i = Find(shelf, low64);
    }
    slots_[i].low64 = low64;
    slots_[i].shelf = shelf;
    ++size_;
    digest_.Add(shelves_[shelf].digest_slot, low64);
  }
  return ++slots_[i].count;
}

bool HeldBlocks::Remove(ShelfId shelf, std::uint64_t low64) {
  const std::size_t i = Find(shelf, low64);
  if (slots_[i].count == 0) return false;
  if (--slots_[i].count == 0) {
    --size_;
    digest_.Remove(shelves_[shelf].digest_slot, low64);
    Erase(i);
  }
  return true;
}

void HeldBlocks::SetCount(ShelfId shelf, std::uint64_t low64, std::uint32_t count) {
  if (count > 0) {
    Add(shelf, low64);
    slots_[Find(shelf, low64)].count = count;
  } else if (const std::size_t i = Find(shelf, low64); slots_[i].count != 0) {
    slots_[i].count = 1;
    Remove(shelf, low64);
  }
}

void HeldBlocks::ForEach(const BlockVisitor& visit) const {
  for (const Slot& slot : slots_) {
    if (slot.count != 0) visit(slot.shelf, slot.low64, slot.count);
  }
}

void HeldBlocks::Erase(std::size_t index) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t hole = index;
  for (std::size_t i = (hole + 1) & mask; slots_[i].count != 0; i = (i + 1) & mask) {
    const std::size_t home = Home(slots_[i].shelf, slots_[i].low64);
    // Movable unless its home lies behind the hole, cyclically.
    if (((i - home) & mask) >= ((i - hole) & mask)) {
      slots_[hole] = slots_[i];
      hole = i;
    }
  }
  slots_[hole] = Slot();
}

void HeldBlocks::Grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.count != 0) slots_[Find(slot.shelf, slot.low64)] = slot;
  }
}

// A large table goes with what filled it: whoever clears again and again pays for what came between.
void HeldBlocks::Clear() {
  if (slots_.size() > kInitialSlots) {
    slots_ = std::vector<Slot>(kInitialSlots);
  } else if (size_ > 0) {
    std::fill(slots_.begin(), slots_.end(), Slot());
  }
  size_ = 0;
  if (shelves_.empty()) return;
  shelves_.clear();
  shelf_of_.clear();
  digest_.Clear();
}

std::size_t HeldBlocks::Apply(const KVEventBatch& batch) {
  std::size_t unknown = 0;
  batch.Visit(Overloaded{[this](const BlockStored& stored) {
                           const ShelfId shelf = ShelfOf(stored.group_idx, stored.medium);
                           for (const BlockHash& hash : stored.block_hashes) Add(shelf, hash.Low64());
                         },
                         [this, &unknown](const BlockRemoved& removed) {
                           const ShelfId shelf = ShelfOf(removed.group_idx, removed.medium);
                           for (const BlockHash& hash : removed.block_hashes) {
                             if (!Remove(shelf, hash.Low64())) ++unknown;
                           }
                         },
                         [this](const AllBlocksCleared&) { Clear(); }});
  return unknown;
}

void HeldBlocks::ApplyChunk(const KVEventBatch& chunk) {
  // A block may be announced by several events of it.
  std::map<std::pair<ShelfId, std::uint64_t>, std::uint32_t> counts;
  chunk.Visit(Overloaded{[this, &counts](const BlockStored& stored) {
                           const ShelfId shelf = ShelfOf(stored.group_idx, stored.medium);
                           for (const BlockHash& hash : stored.block_hashes) ++counts[{shelf, hash.Low64()}];
                         },
                         [](const BlockRemoved&) {}, [](const AllBlocksCleared&) {}});
  for (const auto& [block, count] : counts) SetCount(block.first, block.second, count);
}

std::uint32_t HeldBlocks::Count(ShelfId shelf, std::uint64_t low64) const { return slots_[Find(shelf, low64)].count; }

void HeldBlocks::Dump(const std::function<void(std::string_view line)>& write) const {
  // Shelves in the order of their names.
  std::vector<ShelfId> order(shelves_.size());
  std::iota(order.begin(), order.end(), ShelfId{0});
  std::sort(order.begin(), order.end(), [this](ShelfId a, ShelfId b) {
    return std::tie(shelf(a).group, shelf(a).medium) < std::tie(shelf(b).group, shelf(b).medium);
  });
  std::vector<std::vector<std::uint64_t>> blocks(shelves_.size());
  for (const Slot& slot : slots_) {
    if (slot.count != 0) blocks[slot.shelf].push_back(slot.low64);
  }
  std::string line;
  for (const ShelfId id : order) {
    std::sort(blocks[id].begin(), blocks[id].end());
    for (const std::uint64_t low64 : blocks[id]) {
      line.clear();
      fmt::format_to(std::back_inserter(line), "{} {} {:016x}", shelf(id).group, EscapeField(shelf(id).medium), low64);
      write(line);
    }
  }
}

}  // namespace kvwire
