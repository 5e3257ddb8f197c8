// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <optional>

#include "kv_events/transport/frame_link.h"
#include "kv_events/wire/frames.h"

namespace kvwire {

// The last batches as they were sent, oldest first, for consumers that missed some. Numbers rise but need not follow
// each other: a number whose batch was lost is absent.
//
// Threads: none of its own; one thread at a time.
// Bounds: max_batches and max_bytes of payload; the oldest fall out, if need be all of them.
class ReplayBuffer {
 public:
  struct Entry {
    SequenceNumber number = 0;
    SharedBytes payload;
  };

  ReplayBuffer(std::size_t max_batches, std::size_t max_bytes) : max_batches_(max_batches), max_bytes_(max_bytes) {}

  // REQUIRES: number is above every number before.
  void Append(SequenceNumber number, SharedBytes payload);

  // The first entry with a number of at least `start`, or null. Valid until the next Append.
  const Entry* Find(SequenceNumber start) const;

  // The highest number held.
  std::optional<SequenceNumber> newest() const;

  std::size_t size() const noexcept { return entries_.size(); }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  const std::size_t max_batches_;
  const std::size_t max_bytes_;
  std::deque<Entry> entries_;
  std::size_t bytes_ = 0;
};

}  // namespace kvwire
