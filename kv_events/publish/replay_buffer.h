// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "kv_events/publish/heartbeat.h"
#include "kv_events/transport/frame_link.h"
#include "kv_events/wire/frames.h"

namespace kvwire {

// The last batches as they were sent, oldest first, for consumers that missed some. Numbers rise but need not follow
// each other: a number whose batch was lost is absent. Heartbeats are kept as runs and made again when asked for.
//
// Threads: none of its own; one thread at a time.
// Bounds: max_batches and max_bytes of payload and digests; the oldest fall out, if need be all of them. Heartbeats
// cost
//   nothing but their runs, of which there are at most max_batches and kMoreRuns.
class ReplayBuffer {
 public:
  static constexpr std::size_t kMoreRuns = 1024;

  struct Entry {
    SequenceNumber number = 0;
    SharedBytes payload;
    SharedBytes digest;  // encoded, of the state after this batch; null: not known
  };
  // The payload of a heartbeat with this time; the same each time, for the same one.
  using HeartbeatPayload = std::function<SharedBytes(double ts)>;

  ReplayBuffer(std::size_t max_batches, std::size_t max_bytes, HeartbeatPayload heartbeat_payload = {})
      : max_batches_(max_batches), max_bytes_(max_bytes), heartbeat_payload_(std::move(heartbeat_payload)) {}

  // REQUIRES: number is above every number before.
  void Append(SequenceNumber number, SharedBytes payload, SharedBytes digest = nullptr);
  void AppendHeartbeat(SequenceNumber number, const Heartbeat& heartbeat, SharedBytes digest);

  // Forgets everything: what comes next is a new beginning.
  void Clear() noexcept;

  // The first entry with a number of at least `start`.
  std::optional<Entry> Find(SequenceNumber start) const;

  // The lowest and the highest number held.
  std::optional<SequenceNumber> oldest() const;
  std::optional<SequenceNumber> newest() const;

  // Batches, without heartbeats.
  std::size_t size() const noexcept { return entries_.size(); }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  // Heartbeats that follow each other, in number and in time.
  struct Run {
    SequenceNumber number = 0;  // of the first
    std::uint64_t count = 0;
    Heartbeat first;
    SharedBytes digest;

    SequenceNumber last() const { return number + count - 1; }
  };

  void DropOldest();

  const std::size_t max_batches_;
  const std::size_t max_bytes_;
  const HeartbeatPayload heartbeat_payload_;
  std::deque<Entry> entries_;
  std::deque<Run> runs_;
  std::size_t bytes_ = 0;
};

}  // namespace kvwire
