// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv_events/clock.h"
#include "kv_events/subscribe/replay_client.h"
#include "kv_events/subscribe/sequence_tracker.h"
#include "kv_events/subscribe/stream_sink.h"
#include "kv_events/transport/frame_link.h"
#include "kv_events/wire/decoder.h"

namespace kvwire {

struct EventStreamOptions {
  SequenceNumber first_sequence = 0;  // of a publisher's first message
  DecodeOptions decode;
  ReplayLimits replay;
  // Live messages that may wait while a replay runs.
  std::size_t max_waiting_messages = 4096;
  std::size_t max_waiting_bytes = std::size_t{32} << 20;
};

struct EventStreamStats {
  std::uint64_t live_messages = 0;  // well-formed live messages, duplicates included
  std::uint64_t applied = 0;        // batches handed to the sink
  std::uint64_t replayed = 0;       // of those, from a replay
  std::uint64_t undecodable = 0;
  std::uint64_t rejected_events = 0;
  std::uint64_t malformed = 0;  // live messages that are not three frames with a number
  std::uint64_t duplicates = 0;
  std::uint64_t restarts = 0;
  std::uint64_t recoveries = 0;
  std::uint64_t healed = 0;           // gaps closed by a replay
  std::uint64_t gaps = 0;             // gaps given up
  std::uint64_t missing = 0;          // numbers in them
  std::uint64_t replay_attempts = 0;  // requests for replay
  std::uint64_t replay_malformed = 0;

  friend bool operator==(const EventStreamStats&, const EventStreamStats&) = default;
};

// The receiving end of one publisher's stream: an agent over a SUB and, for replays, a DEALER. It applies every number
// once and in order, closes gaps by replay while live messages wait, and says what it could not close. A subscriber
// that comes late (first number above first_sequence) asks for everything before. A number below an earlier live one,
// or the last one again with other content, is a publisher's restart.
//
// Threads: made, used and destroyed by one thread; time is an argument.
// Ownership: owns the live link and the replay links; the sink outlives the stream.
// Errors: foreign bytes end in a counter and a call of the sink; nothing throws but for lack of memory.
// Bounds: EventStreamOptions, ReplayLimits; a call of DoWork handles at most 64 messages of each kind.
class EventStream {
 public:
  // `replay` may be empty: gaps stay. REQUIRES: live and sink are not null.
  EventStream(std::unique_ptr<FrameLink> live, ReplayLinkFactory replay, const EventStreamOptions& options,
              StreamSink* sink);
  EventStream(const EventStream&) = delete;
  EventStream& operator=(const EventStream&) = delete;
  ~EventStream();

  // Takes and applies what is there. Returns the number of messages taken: 0 = nothing to do.
  int DoWork(MonotonicNanos now);

  // Ends a running recovery as not healed and applies what waited for it.
  void Finish();

  bool recovering() const noexcept { return replay_.has_value() && replay_->active(); }
  FrameLink* replay_link() const noexcept { return replay_ ? replay_->link() : nullptr; }
  EventStreamStats stats() const noexcept;

 private:
  // A live message and what it says.
  struct Waiting {
    InFrames frames;
    SequenceNumber sequence = 0;
    std::size_t bytes = 0;
  };

  void TakeLive(InFrames frames, MonotonicNanos now);
  void HandleLive(Waiting message, MonotonicNanos now);
  void HandleRestart(SequenceNumber number);
  bool SameAsLast(const Waiting& message) const;
  void ApplyLive(Waiting message);
  void Apply(const StreamMessage& message);

  void StartRecovery(SequenceNumber to, MonotonicNanos now);
  void Wait(Waiting message);
  void TakeReplayed(const InFrames& frames, MonotonicNanos now);
  void EndRecovery(GapReason reason, std::optional<MonotonicNanos> now);
  void GiveUp(SequenceNumber to, GapReason reason);

  const EventStreamOptions options_;
  StreamSink* const sink_;
  const std::unique_ptr<FrameLink> live_;
  std::optional<ReplayClient> replay_;
  SequenceTracker tracker_;
  EventStreamStats stats_;

  // The last live message, to tell a repetition from a restart.
  InFrames last_live_;
  std::string topic_;  // the latest

  // The running recovery: numbers [recover_from_, recover_to_]; those below tracker_.next() are done.
  SequenceNumber recover_from_ = 0;
  SequenceNumber recover_to_ = 0;
  bool recovery_lost_some_ = false;
  std::deque<Waiting> waiting_;  // ascending numbers above recover_to_
  std::size_t waiting_bytes_ = 0;
};

}  // namespace kvwire
