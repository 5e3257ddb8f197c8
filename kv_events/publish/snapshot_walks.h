// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "kv_events/batch.h"
#include "kv_events/clock.h"
#include "kv_events/publish/counter.h"
#include "kv_events/publish/publish_queue.h"
#include "kv_events/publish/state_merger.h"
#include "kv_events/publish/state_requests.h"
#include "kv_events/transport/frame_link.h"
#include "kv_events/wire/frames.h"

namespace kvwire {

// How a snapshot is given out: chunk by chunk, or as one batch with everything.
enum class SnapshotShape : std::uint8_t { kChunks, kWhole };

// Hands the chunks of snapshot walks to those who asked for them. A walk is asked of the step thread when somebody
// wants one; who asks before its first chunk has passed shares it, who asks later gets the next one. A chunk is encoded
// once.
//
// Threads: one, the publishing thread; the counters by any.
// Bounds: a walk is let run kChunksAhead chunks or kBytesAhead bytes ahead of its slowest client; what was under way by
//   then still comes. kMaxWalks walks with something in them; who asks beyond waits. A whole state takes up to twice
//   max_payload_bytes while it is put together.
// Errors: a state that does not come within kPatience, or stops coming for kPatienceInside, or cannot be encoded, ends
// the
//   answer without the end of the snapshot.
class SnapshotWalks {
 public:
  static constexpr std::size_t kChunksAhead = 64;
  static constexpr std::size_t kBytesAhead = std::size_t{32} << 20;
  static constexpr std::size_t kMaxWalks = 4;
  static constexpr std::size_t kBlocksPerCall = 512;  // put together for a whole state
  static constexpr MonotonicNanos kPatience = 5'000'000'000;
  static constexpr MonotonicNanos kPatienceInside = 30'000'000'000;

  struct Options {
    StateMerger::EncodeFunction encode;
    std::size_t max_payload_bytes = std::size_t{64} << 20;
  };
  using TicketId = std::uint64_t;

  // What a client is to be sent next.
  struct Offer {
    enum class Kind : std::uint8_t { kWait, kMessage, kEnd };
    Kind kind = Kind::kWait;
    std::string_view name;  // of an extension message; empty: a message of replay
    SequenceNumber number = 0;
    SharedBytes payload;
  };

  // Borrows requests, which outlive it.
  SnapshotWalks(Options options, StateRequests* requests);

  TicketId Join(SnapshotShape shape, MonotonicNanos now);
  // REQUIRES of both: Join gave the ticket, and Leave has not taken it back.
  Offer Next(TicketId ticket, MonotonicNanos now);
  void Advance(TicketId ticket);  // the offered message was sent
  void Leave(TicketId ticket);
  // Whether the walk does not go on because this client takes nothing, and another client waits for the next walk.
  bool HoldsUp(TicketId ticket) const;

  // In the order of the queue. `next` is the number after the last one that was taken from the queue; another one in
  // the chunk means that batches were lost. `digest` is of the state after them, when the chunk has none itself.
  bool TakeChunk(QueuedBatch* chunk, SequenceNumber next, const SharedBytes& digest, MonotonicNanos now);
  // Some batches before the next one were lost.
  void NoteLoss();
  void NoteBatch(KVEventBatch&& batch);

  // Asks for what may come, and puts a piece of a whole state together. Returns how much was done.
  std::size_t DoWork();

  // The host was asked for a state and did not give any.
  bool unanswered() const noexcept { return unanswered_; }

  std::uint64_t sent() const noexcept { return sent_.value(); }
  std::uint64_t failed() const noexcept { return failed_.value(); }
  std::uint64_t bytes() const noexcept { return bytes_.value(); }

 private:
  struct Chunk {
    SequenceNumber number = 0;
    SharedBytes payload;
  };
  struct Walk {
    std::uint64_t number = 0;  // as in StateWants
    std::deque<Chunk> chunks;
    std::uint64_t base = 0;  // index of the first of them
    std::size_t bytes = 0;
    enum class Stage : std::uint8_t { kAsked, kRunning, kFinished, kFailed } stage = Stage::kAsked;
    SequenceNumber end_number = 0;
    SharedBytes end_digest;
    std::unique_ptr<StateMerger> merger;  // when somebody wants it whole
    SharedBytes whole;

    bool over() const { return stage == Stage::kFinished || stage == Stage::kFailed; }
  };
  struct Ticket {
    SnapshotShape shape = SnapshotShape::kChunks;
    std::uint64_t walk = 0;  // its number; 0: none yet
    std::uint64_t index = 0;
    bool ended = false;  // its last message was sent
    bool given_up = false;
    MonotonicNanos since = 0;
  };

  Walk* Find(std::uint64_t number);
  static bool Full(const Walk& walk) { return walk.bytes >= kBytesAhead || walk.chunks.size() >= kChunksAhead; }
  void Seat(Ticket* ticket);
  bool Wanted(const Walk& walk, SnapshotShape shape) const;
  Walk* Begin(std::uint64_t number);
  bool Encode(Walk* walk, const QueuedBatch& chunk);
  void Merge(Walk* walk, QueuedBatch* chunk);
  void Finish(Walk* walk, const QueuedBatch& chunk, const SharedBytes& digest);
  void Fail(Walk* walk);
  Offer Wait(Ticket* ticket, const Walk* walk, MonotonicNanos now);
  Offer NextChunk(const Ticket& ticket, const Walk& walk) const;
  void Trim();
  void Allow();

  const Options options_;
  StateRequests* const requests_;
  std::deque<Walk> walks_;  // by number
  std::map<TicketId, Ticket> tickets_;
  TicketId last_ticket_ = 0;
  std::uint64_t received_ = 0;  // chunks
  MonotonicNanos last_chunk_ = 0;
  bool unanswered_ = false;
  std::vector<std::uint8_t> scratch_;
  Counter sent_;
  Counter failed_;
  Counter bytes_;
};

}  // namespace kvwire
