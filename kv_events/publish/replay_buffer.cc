// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/replay_buffer.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace kvwire {

void ReplayBuffer::Append(SequenceNumber number, SharedBytes payload) {
  assert(entries_.empty() || number > entries_.back().number);
  bytes_ += payload->size();
  entries_.push_back(Entry{number, std::move(payload)});
  while (!entries_.empty() && (entries_.size() > max_batches_ || bytes_ > max_bytes_)) {
    bytes_ -= entries_.front().payload->size();
    entries_.pop_front();
  }
}

const ReplayBuffer::Entry* ReplayBuffer::Find(SequenceNumber start) const {
  const auto found = std::lower_bound(entries_.begin(), entries_.end(), start,
                                      [](const Entry& entry, SequenceNumber number) { return entry.number < number; });
  return found == entries_.end() ? nullptr : &*found;
}

std::optional<SequenceNumber> ReplayBuffer::newest() const {
  if (entries_.empty()) return std::nullopt;
  return entries_.back().number;
}

}  // namespace kvwire
