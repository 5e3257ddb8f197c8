// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv_events/clock.h"
#include "kv_events/digest.h"
#include "kv_events/subscribe/event_stream_stats.h"
#include "kv_events/subscribe/stream_checker.h"
#include "kv_events/subscribe/stream_state.h"
#include "kv_events/transport/endpoint.h"
#include "kv_events/wire/frames.h"

namespace kvwire {

// Where a stream is, and what it is called. A value.
struct StreamAddress {
  std::string name;  // unique among those that are watched together
  Endpoint endpoint;
  std::optional<Endpoint> replay_endpoint = std::nullopt;  // gaps stay without it
  std::string topic = {};                                  // only topics with this beginning
  std::optional<std::int64_t> rank = std::nullopt;         // that its batches should name
  std::string instance = {};                               // the engine whose rank it is; empty: none is said
  std::int64_t dp_size = 0;                                // ranks that the instance has; 0: not said

  friend bool operator==(const StreamAddress&, const StreamAddress&) = default;
};

// What is known of one watched stream at a moment. A value.
struct StreamFigures {
  StreamAddress address;
  StreamStatus status;
  MonotonicNanos status_since = 0;
  bool recovering = false;  // a question or replay is open: nothing can be concluded from silence
  SequenceNumber next = 0;  // the number to apply next
  EventStreamStats stream;
  CheckCounts counts;
  std::vector<StateDigest::Entry> blocks;         // per (group, medium), those that hold something
  std::optional<MonotonicNanos> last_message_at;  // nothing: none came
  std::optional<MonotonicNanos> last_news_at;     // when what is no mere sign of life came last
  double events_per_second = 0;                   // over the last second or so
  double last_ts = 0;                             // of the latest batch, Unix seconds
  std::optional<std::int64_t> rank;               // that it names
  CheckVerdict verdict = CheckVerdict::kSilent;
  std::string why;         // the verdict is, or would be, incomplete
  bool connected = false;  // a publisher is there now
  bool reached = false;    // one was there at some time, or sent something

  // Of all kinds, well-formed or not.
  std::uint64_t messages() const noexcept {
    return stream.live_messages + stream.malformed + stream.replayed + stream.undecodable;
  }
  // Whether anything came: a message, or what was published before in a snapshot.
  bool heard() const noexcept { return messages() > 0 || stream.snapshots > 0; }
  // What is no mere sign of life: a batch without events is one.
  std::uint64_t news() const noexcept {
    return counts.events + stream.rejected_events + stream.undecodable + stream.malformed + stream.snapshots;
  }
  std::uint64_t blocks_held() const noexcept {
    std::uint64_t sum = 0;
    for (const StateDigest::Entry& entry : blocks) sum += entry.count;
    return sum;
  }
};

}  // namespace kvwire
