// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "kv_events/batch.h"
#include "kv_events/event_publisher.h"
#include "kv_events/publish/counter.h"
#include "kv_events/wire/frames.h"

namespace kvwire {

// A batch, or a chunk of a snapshot walk, on its way from the step thread to the publishing thread.
struct QueuedBatch {
  enum class Kind : std::uint8_t { kBatch, kChunk };

  Kind kind = Kind::kBatch;
  bool first = false;      // of a chunk, as in StateChunk
  bool last = false;       // of a chunk
  std::uint64_t walk = 0;  // of a chunk
  // Of a batch: its own. Of a chunk: the one that was drawn next.
  SequenceNumber number = 0;
  std::size_t bytes = 0;  // counted against the queue's bound
  KVEventBatch batch;
  QueuedBatch* next_free = nullptr;
};

// Hands numbered batches from the step thread to the publishing thread, and their memory back.
//
// A number is drawn for every batch that is handed over while the queue is open, so a batch that finds the queue full
// leaves a gap. A batch counts as queued until Finish says what became of it. Chunks take no number and are counted
// apart, but share the bounds. The publishing thread may draw a number, too, while no batch waits.
//
// Threads: the step thread calls Push, PushChunk, HasRoom and TakeSpare, the publishing thread Front, Finish, DropAll
// and
//   TakeNumber, anybody stats.
// Bounds: max_batches and max_bytes of batches and chunks; a few dozen spare ones beyond.
// Errors: a refused batch is a result and a counter. Nothing throws but the constructor.
class PublishQueue {
 public:
  struct Options {
    std::size_t max_batches = 100000;
    std::size_t max_bytes = std::size_t{256} << 20;
    SequenceNumber first_number = 0;
    // Asked once for each number, ascending: true drops its batch as if the queue were full. May be empty. Called by
    // Push, so it is wait-free and does not throw.
    std::function<bool(SequenceNumber)> refuse = nullptr;
  };

  // What the publishing thread did with a batch.
  enum class Outcome : std::uint8_t { kSent, kError, kClosed };

  explicit PublishQueue(const Options& options);
  ~PublishQueue();
  PublishQueue(const PublishQueue&) = delete;
  PublishQueue& operator=(const PublishQueue&) = delete;

  // Takes the content of *batch and leaves an empty one there, with recycled memory where possible. Wait-free;
  // allocates only while more batches are under way than ever before.
  PublishResult Push(KVEventBatch* batch) noexcept;

  // Takes the content of *chunk if it is accepted. Wait-free as Push.
  PublishResult PushChunk(StateChunk* chunk) noexcept;

  // Whether less than half of max_batches and of max_bytes is taken.
  bool HasRoom() const noexcept;

  // The next number, for a heartbeat, if nothing is queued or on its way into the queue; with `only`, if it is that
  // one.
  std::optional<SequenceNumber> TakeNumber(std::optional<SequenceNumber> only) noexcept;
  // What TakeNumber would give now; a Push may come between.
  std::optional<SequenceNumber> NumberToTake(std::optional<SequenceNumber> only) const noexcept;

  SequenceNumber first_number() const noexcept { return options_.first_number; }
  // The number that is drawn next. Threads: any; exact for none but the step thread, and only without heartbeats.
  SequenceNumber next_number() const noexcept { return next_number_.load(std::memory_order_acquire); }

  // From now on Push refuses.
  void Close() noexcept { closed_.store(true, std::memory_order_release); }

  KVEventBatch TakeSpare() noexcept;

  // The oldest batch, or null. It stays the oldest until Finish.
  QueuedBatch* Front() noexcept;

  // REQUIRES: Front() gave a batch since the last Finish. Invalidates it.
  void Finish(Outcome outcome) noexcept;

  // Finishes everything with kClosed.
  void DropAll() noexcept;

  // Batches refused because the queue was full.
  std::uint64_t dropped_full() const noexcept { return refused_full_.value(); }

  // submitted, sent, dropped_*, queued, queued_bytes, last_number, heartbeats and chunks*; the rest is 0.
  PublisherStats stats() const noexcept;

 private:
  struct Rings;

  QueuedBatch* TakeSlot() noexcept;
  QueuedBatch* NewSlot() noexcept;
  bool Fits(std::size_t bytes) const noexcept;
  bool Enqueue(QueuedBatch* slot, KVEventBatch* batch, std::size_t bytes, Counter* pushed) noexcept;
  PublishResult Refuse(KVEventBatch* batch) noexcept;

  // Constant after construction.
  const Options options_;
  const std::unique_ptr<Rings> rings_;
  std::atomic<bool> closed_{false};

  // Written by both: the step thread adds one for each batch, TakeNumber one when nobody else did.
  alignas(64) std::atomic<SequenceNumber> next_number_;

  // Written by the step thread.
  alignas(64) QueuedBatch* free_ = nullptr;  // slots whose batch was given away by TakeSpare
  std::uint64_t taken_back_ = 0;
  Counter pushed_;  // batches and chunks
  Counter pushed_bytes_;
  Counter pushed_batches_;
  Counter last_pushed_;  // number of the last batch, plus one; 0: none
  Counter refused_full_;
  Counter refused_closed_;
  Counter pushed_chunks_;
  Counter refused_chunks_;

  // Written by the publishing thread.
  alignas(64) QueuedBatch* front_ = nullptr;
  Counter finished_;
  Counter finished_bytes_;
  Counter finished_chunks_;
  Counter lost_chunks_;
  Counter numbers_taken_;
  Counter given_back_;
  Counter sent_;
  Counter errors_;
  Counter dropped_closed_;
};

}  // namespace kvwire
