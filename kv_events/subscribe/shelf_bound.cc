// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/shelf_bound.h"

#include <optional>
#include <string_view>
#include <type_traits>

#include "kv_events/digest.h"

namespace kvwire {

namespace {

constexpr std::string_view NameOf(const std::optional<std::string_view>& medium) noexcept {
  return medium.value_or(std::string_view());
}

}  // namespace

bool ShelfBound::Take(const KVEventBatch& batch) {
  std::set<Shelf> named;
  std::size_t bytes = 0;
  bool cleared = false;
  bool fits = true;
  // Most events name what the one before named.
  std::optional<std::pair<std::uint32_t, std::string>> last;
  batch.Visit([&](const auto& event) {
    if constexpr (std::is_same_v<std::decay_t<decltype(event)>, AllBlocksCleared>) {
      cleared = true;
    } else {
      const std::uint32_t group = event.group_idx.value_or(0);
      const std::string_view medium = NameOf(event.medium);
      if (!fits || (last && last->first == group && last->second == medium)) return;
      last.emplace(group, medium);
      const auto [place, added] = named.emplace(group, CanonicalMedium(medium));
      if (added) bytes += place->second.size();
      fits = named.size() <= kMostShelves && bytes <= kMostNameBytes;
    }
  });
  if (!fits) return false;
  if (cleared) {
    known_ = std::move(named);
    name_bytes_ = bytes;
    return true;
  }
  std::erase_if(named, [this, &bytes](const Shelf& shelf) {
    if (!known_.contains(shelf)) return false;
    bytes -= shelf.second.size();
    return true;
  });
  if (known_.size() + named.size() > kMostShelves || name_bytes_ + bytes > kMostNameBytes) return false;
  known_.merge(named);
  name_bytes_ += bytes;
  return true;
}

}  // namespace kvwire
