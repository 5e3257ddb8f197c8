// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "kv_events/batch.h"
#include "kv_events/digest.h"
#include "kv_events/subscribe/table_salt.h"

namespace kvwire {

// The blocks a stream says are resident, per (group, medium), by the low 64 bits of their hash, each with the number of
// its announcements that were not taken back. A block is gone when as many removals as announcements came; sources that
// remove per physical copy and sources that remove a block with its last copy, as often as it was announced, both end
// there at the end of every batch.
//
// Threads: one thread at a time.
// Bounds: 16 bytes a block, times at most 2.5 (open addressing at a load of 0.4 to 0.8); shelves are the caller's to
// bound. What a call costs does not depend on how the hashes were chosen, nor Clear on what was held long ago.
class HeldBlocks {
 public:
  // A (group, medium) as a small number.
  using ShelfId = std::uint32_t;
  struct Shelf {
    std::uint32_t group = 0;
    std::string medium;  // canonical
  };

  HeldBlocks();

  // The shelf of an event; made on first use, valid until Clear. No group is group 0, no medium is GPU.
  ShelfId ShelfOf(const std::optional<std::uint32_t>& group, const std::optional<std::string_view>& medium);
  // Nothing if no event was of it yet. `medium` is canonical.
  std::optional<ShelfId> FindShelf(std::uint32_t group, std::string_view medium) const noexcept;
  const Shelf& shelf(ShelfId id) const { return shelves_[id].shelf; }

  // One more announcement. Returns how many there are now.
  std::uint32_t Add(ShelfId shelf, std::uint64_t low64);

  // Takes one announcement back. False, and nothing happens, when the block is not held.
  bool Remove(ShelfId shelf, std::uint64_t low64);

  // As many announcements as given, whatever there were; 0: the block is not held.
  void SetCount(ShelfId shelf, std::uint64_t low64, std::uint32_t count);

  // Nothing is held, and there are no shelves.
  void Clear();

  // The events of a batch in order. Returns how many removals named a block that is not held.
  std::size_t Apply(const KVEventBatch& batch);

  // A chunk of a snapshot: for every block stored in it, as many announcements as it has there replace those so far.
  void ApplyChunk(const KVEventBatch& chunk);

  // Announcements not taken back; 0 = not held.
  std::uint32_t Count(ShelfId shelf, std::uint64_t low64) const;

  std::size_t size() const noexcept { return size_; }
  const StateDigest& digest() const noexcept { return digest_; }

  // Hands out every block, in no order.
  using BlockVisitor = std::function<void(ShelfId shelf, std::uint64_t low64, std::uint32_t count)>;
  void ForEach(const BlockVisitor& visit) const;

  // Hands out "group medium low64" lines, the hash as 16 lower-case hexadecimal digits, ordered by group, medium, hash.
  void Dump(const std::function<void(std::string_view line)>& write) const;

 private:
  struct Slot {
    std::uint64_t low64 = 0;
    ShelfId shelf = 0;
    std::uint32_t count = 0;  // 0 = free
  };

  struct KeptShelf {
    Shelf shelf;
    std::size_t digest_slot = 0;
  };
  using Place = std::pair<std::uint32_t, std::string>;
  struct ByPlace {
    using is_transparent = void;
    template <class A, class B>
    bool operator()(const A& a, const B& b) const noexcept {
      return std::tuple(a.first, std::string_view(a.second)) < std::tuple(b.first, std::string_view(b.second));
    }
  };

  std::size_t Home(ShelfId shelf, std::uint64_t low64) const noexcept;
  std::size_t Find(ShelfId shelf, std::uint64_t low64) const noexcept;
  void Grow();
  void Erase(std::size_t index);

  TableSalt salt_ = TableSalt::OfProcess();
  std::vector<KeptShelf> shelves_;
  std::map<Place, ShelfId, ByPlace> shelf_of_;
  std::vector<Slot> slots_;
  std::size_t size_ = 0;
  StateDigest digest_;
};

// DescribeDigest for people: of many entries the first few dozen, and how many follow.
std::string ShortDigest(const std::vector<StateDigest::Entry>& entries);

}  // namespace kvwire
