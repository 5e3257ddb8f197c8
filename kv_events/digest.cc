// SPDX-License-Identifier: Apache-2.0
#include "kv_events/digest.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "kv_events/escape_text.h"
#include "kv_events/events.h"

namespace kvwire {

namespace {

char Upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

bool SameMedium(std::string_view canonical, std::string_view medium) {
  if (medium.empty()) medium = kMediumGpu;
  return std::ranges::equal(canonical, medium, [](char a, char b) { return a == Upper(b); });
}

}  // namespace

std::string CanonicalMedium(std::string_view medium) {
  std::string text(medium.empty() ? kMediumGpu : medium);
  std::ranges::transform(text, text.begin(), Upper);
  return text;
}

std::size_t StateDigest::SlotOf(std::uint32_t group, std::string_view medium) {
  const auto matches = [&](const Entry& entry) { return entry.group == group && SameMedium(entry.medium, medium); };
  if (last_ < entries_.size() && matches(entries_[last_])) return last_;
  const auto found = std::ranges::find_if(entries_, matches);
  last_ = static_cast<std::size_t>(found - entries_.begin());
  if (found == entries_.end()) entries_.push_back(Entry{group, CanonicalMedium(medium), 0, 0});
  return last_;
}

void StateDigest::Add(std::uint32_t group, std::string_view medium, std::uint64_t low64) {
  Add(SlotOf(group, medium), low64);
}

void StateDigest::Remove(std::uint32_t group, std::string_view medium, std::uint64_t low64) {
  Remove(SlotOf(group, medium), low64);
}

void StateDigest::Clear() noexcept { entries_.clear(); }

void StateDigest::ClearMedium(std::string_view medium) noexcept {
  for (Entry& entry : entries_) {
    if (SameMedium(entry.medium, medium)) entry.count = entry.sum = 0;
  }
}

bool StateDigest::empty() const noexcept {
  return std::ranges::all_of(entries_, [](const Entry& entry) { return entry.count == 0 && entry.sum == 0; });
}

std::vector<StateDigest::Entry> StateDigest::entries() const {
  std::vector<Entry> held;
  std::ranges::copy_if(entries_, std::back_inserter(held),
                       [](const Entry& entry) { return entry.count != 0 || entry.sum != 0; });
  std::ranges::sort(
      held, [](const Entry& a, const Entry& b) { return std::tie(a.group, a.medium) < std::tie(b.group, b.medium); });
  return held;
}

std::string StateDigest::ToString() const { return DescribeDigest(entries()); }

std::string DescribeDigest(const std::vector<StateDigest::Entry>& entries) {
  std::string text;
  for (const StateDigest::Entry& entry : entries) {
    if (!text.empty()) text += ' ';
    text += fmt::format("{}/{} {}:{:016x}", entry.group, EscapeField(entry.medium), entry.count, entry.sum);
  }
  return text.empty() ? "empty" : text;
}

}  // namespace kvwire
