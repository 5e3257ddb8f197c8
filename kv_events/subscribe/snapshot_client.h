// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kv_events/clock.h"
#include "kv_events/subscribe/dealer_ask.h"
#include "kv_events/subscribe/dialect.h"
#include "kv_events/wire/decoder.h"
#include "kv_events/wire/extensions.h"

namespace kvwire {

// Bounds of the attempts to get one snapshot.
struct SnapshotLimits {
  MonotonicNanos idle = 10'000'000'000;  // an attempt without a message for so long has failed
  MonotonicNanos total = 300'000'000'000;
  int max_attempts = 5;
  MonotonicNanos first_pause = 100'000'000;  // between attempts; doubled each time, up to
  MonotonicNanos longest_pause = 10'000'000'000;
  MonotonicNanos rest = 60'000'000'000;  // after the last attempt failed
};

// A piece of a snapshot: blocks as they are after the batch number - 1, or its end.
struct SnapshotPiece {
  SequenceNumber number = 0;  // of the live batch that comes after it
  DecodedBatch blocks;        // not of an end; BlockStored, and an AllBlocksCleared in front in dialects that send it
  bool end = false;
  std::optional<DigestEntries> digest;  // of an end
};

// Asks a publisher for its whole state, once: kvwire's chunks, or the one message of a dialect whose replay is a state.
// What it hands out was read and has its numbers in order.
// Threads: one thread at a time. Time is an argument.
// Source: docs/protocol.md, "State".
class SnapshotClient {
 public:
  // REQUIRES: factory is callable.
  SnapshotClient(ReplayLinkFactory factory, ReplayForm form, const SnapshotLimits& limits, const DecodeOptions& decode);

  // `next`: the number to apply next.
  void Start(SequenceNumber next, MonotonicNanos now);
  void Stop() noexcept;

  enum class Outcome : std::uint8_t {
    kNothing,  // call again later
    kPiece,    // *piece is set; after the end the client is idle
    kRefused,  // the publisher has none to give
    kFailed,   // no answer, one that breaks off, or one that cannot be read
  };
  // One step; after kRefused and kFailed the client is idle. REQUIRES: active().
  Outcome Poll(MonotonicNanos now, SnapshotPiece* piece);

  bool active() const noexcept { return ask_.active() || end_due_; }
  bool reached() const noexcept { return ask_.reached(); }
  FrameLink* link() const noexcept { return ask_.link(); }

 private:
  Outcome End(Outcome outcome);
  Outcome TakeChunked(const InFrames& frames, SnapshotPiece* piece);
  Outcome TakeState(const InFrames& frames, SnapshotPiece* piece);
  bool Read(FrameView payload, SnapshotPiece* piece) const;

  DealerAsk ask_;
  const ReplayForm form_;
  const SnapshotLimits limits_;
  DecodeOptions decode_;
  MonotonicNanos give_up_at_ = 0;
  SequenceNumber next_ = 0;
  std::optional<SequenceNumber> last_;  // number of the latest piece
  // kState: the message, until the end mark makes it valid; then its end is still to be handed out.
  std::optional<SnapshotPiece> state_;
  bool end_due_ = false;
};

}  // namespace kvwire
