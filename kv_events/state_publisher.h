// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv_events/announced_state.h"
#include "kv_events/batch.h"
#include "kv_events/clock.h"
#include "kv_events/event_publisher.h"

namespace kvwire {

struct StatePublisherStats {
  std::uint64_t losses = 0;      // batches that the publisher refused because its queue was full
  std::uint64_t suppressed = 0;  // batches dropped unnumbered between a loss and the Clear that heals it
  std::uint64_t resyncs = 0;     // Clear batches that began a renewing walk
  std::uint64_t renewed = 0;     // blocks announced by renewing walks
  std::uint64_t walks = 0;       // snapshot walks that were completed
  std::uint64_t walked = 0;      // blocks handed over by snapshot walks
  std::uint64_t chunks = 0;      // of snapshot walks, handed over
  std::uint64_t batches = 0;     // handed to the publisher, whatever became of them
  std::uint64_t events = 0;      // in these
  std::uint64_t dropped = 0;     // of these batches, not accepted

  friend bool operator==(const StatePublisherStats&, const StatePublisherStats&) = default;
};

// Stands between what records a step's events and the publisher: stamps each batch with time and digest, and answers
// what the publisher wants of the state (StateWants).
//
// A loss (kDroppedQueueFull, or one that the publisher tells of) makes it silent: batches are dropped without a number
// until the queue has room. The next number is then a batch that begins with AllBlocksCleared; a renewing walk follows,
// one chunk per call, as batches of their own, among those of the live events. A loss during the walk begins it again,
// after twice as many calls as the time before, up to kLongestBackOff. Without a state, or when the publisher's
// resyncs_after_loss() is false, a loss is the publisher's gap and no more.
//
// A snapshot walk hands chunks to PublishChunk, one per call, as far as the publisher lets it and its queue has room.
// A renewing walk comes first; snapshot walks wait for it.
//
// Threads: the step thread, between two steps.
// Ownership: publisher and state outlive it; state may be null.
// Errors: nothing throws but for lack of memory. Bounds: blocks_per_chunk blocks per call; no lock, no system call.
class StatePublisher {
 public:
  static constexpr std::uint64_t kLongestBackOff = 1024;  // calls

  struct Options {
    std::size_t blocks_per_chunk = 512;
    const Clock* clock = &SystemClock::Get();
  };

  // REQUIRES: publisher is not null.
  StatePublisher(const Options& options, EventPublisher* publisher, AnnouncedState* state);

  // Publishes what a step recorded, if anything, then does one piece of what the publisher wants. The result is that of
  // the batch; kAccepted when there was none or it was suppressed.
  PublishResult Publish(KVEventBatch&& recorded);

  // Whether Publish is to be called although nothing was recorded: a walk or a resync waits for its next piece.
  bool HasStateWork() const noexcept;

  // That next piece cannot be done yet: the queue has no room, or a back-off is not over. Whoever has nothing else to
  // do calls again a moment later.
  bool StateWorkWaits() const noexcept;

  // An empty batch whose memory was used before, if there is one; else a new one.
  KVEventBatch TakeSpare() noexcept;

  // Between a loss and the Clear that heals it.
  bool silent() const noexcept { return phase_ == Phase::kSilent; }
  // A renewing walk is under way: blocks may be resident and not announced.
  bool renewing() const noexcept { return phase_ == Phase::kRenewing; }

  const StatePublisherStats& stats() const noexcept { return stats_; }

 private:
  enum class Phase : std::uint8_t { kLive, kSilent, kRenewing };

  void NoteResyncs(const StateWants& wants);
  void BeSilent();
  bool MayHeal();
  void Suppress(KVEventBatch&& recorded);
  void Heal();
  void RenewSome(KVEventBatch&& batch);
  void WalkSnapshot(const StateWants& wants);
  bool AwaitsSnapshot(const StateWants& wants) const noexcept;
  bool WalkSome(WalkKind kind, KVEventBatch* blocks);
  void Append(const BlockStored& block, std::uint32_t announcements);
  bool ContinuesLast(const BlockStored& block) const;
  void Stamp(KVEventBatch* batch) const;
  PublishResult Send(KVEventBatch&& batch);

  const Options options_;
  EventPublisher* const publisher_;
  AnnouncedState* const state_;
  Phase phase_ = Phase::kLive;
  bool published_ = false;
  bool closed_ = false;
  std::uint64_t resyncs_met_ = 0;  // of the publisher's wants
  std::uint64_t back_off_ = 0;     // calls to let pass before the next renewing walk, if this one fails
  std::uint64_t calls_left_ = 0;   // of the present back-off
  bool walk_begun_ = false;
  KVEventBatch spare_;
  bool has_spare_ = false;
  // Of the piece being walked.
  KVEventBatch* target_ = nullptr;
  std::uint64_t num_blocks_ = 0;
  const WalkVisitor append_;

  StatePublisherStats stats_;
};

}  // namespace kvwire
