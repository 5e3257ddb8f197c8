// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvwire {

// Summary of the set of blocks a stream holds: per (group, medium) how many distinct hashes, and the wrapping sum of
// their mixed low 64 bits. It does not depend on order, costs one addition per change, and lets both ends of a stream
// compare "what I hold" at a batch number. Keys are low-64-bit hashes on both sides.
//
// A group without entries is the same as a group never seen. A value: copyable, comparable.
class StateDigest {
 public:
  struct Entry {
    std::uint32_t group = 0;
    std::string medium;  // upper case; an event without medium counts as "GPU", one without group as group 0
    std::uint64_t count = 0;
    std::uint64_t sum = 0;

    friend bool operator==(const Entry&, const Entry&) = default;
  };

  // A hash that was not resident in (group, medium) became so; or the reverse. The caller keeps the set.
  void Add(std::uint32_t group, std::string_view medium, std::uint64_t low64);
  void Remove(std::uint32_t group, std::string_view medium, std::uint64_t low64);

  // The place of (group, medium), for many changes after one search; valid until Clear().
  std::size_t SlotOf(std::uint32_t group, std::string_view medium);
  void Add(std::size_t slot, std::uint64_t low64) {
    ++entries_[slot].count;
    entries_[slot].sum += Mix(low64);
  }
  void Remove(std::size_t slot, std::uint64_t low64) {
    --entries_[slot].count;
    entries_[slot].sum -= Mix(low64);
  }

  void Clear() noexcept;

  // Nothing is held in the medium any more, whatever the group.
  void ClearMedium(std::string_view medium) noexcept;

  // Nothing is held.
  bool empty() const noexcept;

  // Non-empty entries, ordered by group, then medium.
  std::vector<Entry> entries() const;

  // "group/medium count:sum-in-hex" joined by blanks; "empty" when nothing is held.
  std::string ToString() const;

  friend bool operator==(const StateDigest& a, const StateDigest& b) { return a.entries() == b.entries(); }

  // The mixing function: a bijection on 64 bits.
  static std::uint64_t Mix(std::uint64_t low64) noexcept {
    std::uint64_t x = low64 + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

 private:
  std::vector<Entry> entries_;  // few: linear search, the last one used first
  std::size_t last_ = 0;
};

// StateDigest::ToString of these entries.
std::string DescribeDigest(const std::vector<StateDigest::Entry>& entries);

// The medium as digests and indexes name it: upper case, "GPU" for nothing or an empty text.
std::string CanonicalMedium(std::string_view medium);

}  // namespace kvwire
