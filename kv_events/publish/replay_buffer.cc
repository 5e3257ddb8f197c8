// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/replay_buffer.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace kvwire {

namespace {

std::size_t BytesOf(const ReplayBuffer::Entry& entry) {
  return entry.payload->size() + (entry.digest ? entry.digest->size() : 0);
}

}  // namespace

void ReplayBuffer::Append(SequenceNumber number, SharedBytes payload, SharedBytes digest) {
  assert(!newest() || number > *newest());
  entries_.push_back(Entry{number, std::move(payload), std::move(digest)});
  bytes_ += BytesOf(entries_.back());
  while (!entries_.empty() && (entries_.size() > max_batches_ || bytes_ > max_bytes_)) DropOldest();
}

void ReplayBuffer::AppendHeartbeat(SequenceNumber number, const Heartbeat& heartbeat, SharedBytes digest) {
  assert(!newest() || number > *newest());
  if (max_batches_ == 0) return;
  if (!runs_.empty()) {
    Run& run = runs_.back();
    if (run.last() + 1 == number && run.digest == digest && heartbeat.Follows(run.first, run.count)) {
      ++run.count;
      return;
    }
  }
  runs_.push_back(Run{number, 1, heartbeat, std::move(digest)});
  // What is kept stays without holes: the batches before the run go with it.
  while (runs_.size() > max_batches_ + kMoreRuns) {
    const SequenceNumber last = runs_.front().last();
    runs_.pop_front();
    while (!entries_.empty() && entries_.front().number < last) DropOldest();
  }
}

// The oldest batch, and the heartbeats before the next one.
void ReplayBuffer::DropOldest() {
  bytes_ -= BytesOf(entries_.front());
  const SequenceNumber number = entries_.front().number;
  entries_.pop_front();
  while (!runs_.empty() && runs_.front().last() < number) runs_.pop_front();
}

void ReplayBuffer::Clear() noexcept {
  entries_.clear();
  runs_.clear();
  bytes_ = 0;
}

std::optional<ReplayBuffer::Entry> ReplayBuffer::Find(SequenceNumber start) const {
  const auto entry = std::lower_bound(entries_.begin(), entries_.end(), start,
                                      [](const Entry& e, SequenceNumber number) { return e.number < number; });
  const auto run = std::lower_bound(runs_.begin(), runs_.end(), start,
                                    [](const Run& r, SequenceNumber number) { return r.last() < number; });
  if (run != runs_.end()) {
    const SequenceNumber number = std::max(start, run->number);
    if (entry == entries_.end() || number < entry->number) {
      return Entry{number, heartbeat_payload_(run->first.After(number - run->number).ts()), run->digest};
    }
  }
  if (entry == entries_.end()) return std::nullopt;
  return *entry;
}

std::optional<SequenceNumber> ReplayBuffer::oldest() const {
  if (entries_.empty() && runs_.empty()) return std::nullopt;
  if (runs_.empty()) return entries_.front().number;
  if (entries_.empty()) return runs_.front().number;
  return std::min(entries_.front().number, runs_.front().number);
}

std::optional<SequenceNumber> ReplayBuffer::newest() const {
  if (entries_.empty() && runs_.empty()) return std::nullopt;
  if (runs_.empty()) return entries_.back().number;
  if (entries_.empty()) return runs_.back().last();
  return std::max(entries_.back().number, runs_.back().last());
}

}  // namespace kvwire
