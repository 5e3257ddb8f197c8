// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string_view>

#include "kv_events/wire/frames.h"

namespace kvwire {

// What was applied under the last numbers of a life, by a hash of each payload: two lives, or two publishers, do not
// send the same bytes under the same number. Bounds: the last kKept numbers.
class AppliedPayloads {
 public:
  static constexpr std::size_t kKept = 16'384;

  struct Entry {
    SequenceNumber sequence = 0;
    std::uint64_t content = 0;
    bool answered = false;  // it was in an answer, and did not come live
  };

  static std::uint64_t ContentOf(FrameView payload) noexcept {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(payload.data()), payload.size()});
  }

  // REQUIRES: its number is above every earlier one.
  void Note(const Entry& entry) {
    if (entries_.size() == kKept) entries_.pop_front();
    entries_.push_back(entry);
  }
  void Clear() noexcept { entries_.clear(); }

  std::optional<Entry> Find(SequenceNumber number) const noexcept {
    const auto at = std::lower_bound(entries_.begin(), entries_.end(), number,
                                     [](const Entry& entry, SequenceNumber wanted) { return entry.sequence < wanted; });
    if (at == entries_.end() || at->sequence != number) return std::nullopt;
    return *at;
  }
  std::optional<Entry> last() const noexcept {
    return entries_.empty() ? std::nullopt : std::optional(entries_.back());
  }

 private:
  std::deque<Entry> entries_;  // ascending
};

}  // namespace kvwire
