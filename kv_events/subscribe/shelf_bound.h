// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "kv_events/batch.h"

namespace kvwire {

// Keeps a stream to so many (group, medium) pairs: whoever holds its blocks keeps something for each.
// Threads: one thread at a time.
// Bounds: kMostShelves pairs, whose media have kMostNameBytes together.
class ShelfBound {
 public:
  static constexpr std::size_t kMostShelves = 1024;
  static constexpr std::size_t kMostNameBytes = std::size_t{256} << 10;

  // False, and nothing happens, when the batch names too many with those that are known; AllBlocksCleared forgets
  // those, and what the batch itself names counts wherever it stands.
  bool Take(const KVEventBatch& batch);

  void Clear() noexcept {
    known_.clear();
    name_bytes_ = 0;
  }

 private:
  using Shelf = std::pair<std::uint32_t, std::string>;

  std::set<Shelf> known_;
  std::size_t name_bytes_ = 0;
};

}  // namespace kvwire
