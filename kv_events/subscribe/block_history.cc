// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/block_history.h"

#include <algorithm>

namespace kvwire {

namespace {

constexpr std::size_t kInitialHistorySlots = 1024;
constexpr std::uint64_t kMaxSequence = (std::uint64_t{1} << 42) - 1;
constexpr std::uint64_t kMaxEvent = (std::uint64_t{1} << 20) - 1;

}  // namespace

BlockMoment::BlockMoment(SequenceNumber sequence, std::size_t event, Kind kind) noexcept
    : bits_(std::min<std::uint64_t>(sequence, kMaxSequence) << 22 | std::min<std::uint64_t>(event, kMaxEvent) << 2 |
            static_cast<std::uint64_t>(kind)) {}

// Linear probing over a power of two of slots; entries are never removed one by one.

BlockHistory::BlockHistory() : slots_(kInitialHistorySlots) {}

std::size_t BlockHistory::Find(std::uint32_t group, std::uint64_t low64) const noexcept {
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = salt_.Mix(group, low64) & mask;
  while (slots_[i].used && (slots_[i].low64 != low64 || slots_[i].group != group)) i = (i + 1) & mask;
  return i;
}

void BlockHistory::Add(std::uint32_t group, std::uint64_t low64, BlockMoment moment) {
  std::size_t i = Find(group, low64);
  if (!slots_[i].used) {
    if ((size_ + 1) * 5 > slots_.size() * 4) {
      Grow();
      i = Find(group, low64);
    }
    slots_[i].low64 = low64;
    slots_[i].group = group;
    slots_[i].used = true;
    ++size_;
  }
  Slot& slot = slots_[i];
  if (moment.kind() == BlockMoment::Kind::kStored) slot.announced = true;
  std::rotate(slot.moments.begin(), slot.moments.end() - 1, slot.moments.end());
  slot.moments[0] = moment;
}

void BlockHistory::Grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.used) slots_[Find(slot.group, slot.low64)] = slot;
  }
}

bool BlockHistory::WasAnnounced(std::uint32_t group, std::uint64_t low64) const noexcept {
  return slots_[Find(group, low64)].announced;
}

BlockHistory::Moments BlockHistory::LastThree(std::uint32_t group, std::uint64_t low64) const noexcept {
  return slots_[Find(group, low64)].moments;
}

void BlockHistory::Clear() {
  if (slots_.size() > kInitialHistorySlots) {
    slots_ = std::vector<Slot>(kInitialHistorySlots);
  } else if (size_ > 0) {
    std::fill(slots_.begin(), slots_.end(), Slot());
  }
  size_ = 0;
}

}  // namespace kvwire
