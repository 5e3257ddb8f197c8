// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/publish_queue.h"

#include <algorithm>
#include <new>
#include <utility>

#include <readerwriterqueue/readerwriterqueue.h>

namespace kvwire {

// Invariants.
// * A slot is in exactly one place: the forward ring, front_, the backward ring, the free list, or a function's hands.
// * Each counter has one writer, and a batch is counted once on either side, so submitted (pushed and refused) equals
//   what was finished and refused plus what is queued, whoever looks, whenever.
// * pushed_ is written after the forward ring and read before it, given_back_ likewise for the backward ring: they, not
//   the rings, order the accesses to the slots.

namespace {

// Slots that wait to be used again; more are freed, so that a burst does not keep its memory.
constexpr std::size_t kSpares = 64;

// Every queued batch counts at least its slot, so no more than this many are ever queued.
std::size_t Capacity(const PublishQueue::Options& options) {
  return std::min(options.max_batches, options.max_bytes / sizeof(QueuedBatch) + 1);
}

}  // namespace

struct PublishQueue::Rings {
  Rings(std::size_t capacity, std::size_t spares) : forward(capacity), backward(spares) {}

  moodycamel::ReaderWriterQueue<QueuedBatch*> forward;
  moodycamel::ReaderWriterQueue<QueuedBatch*> backward;
};

PublishQueue::PublishQueue(const Options& options)
    : options_(options),
      rings_(std::make_unique<Rings>(Capacity(options), kSpares)),
      next_number_(options.first_number) {}

PublishQueue::~PublishQueue() {
  DropAll();
  while (QueuedBatch* slot = TakeSlot()) delete slot;
}

// A recycled slot, or null.
QueuedBatch* PublishQueue::TakeSlot() noexcept {
  if (free_ != nullptr) return std::exchange(free_, free_->next_free);
  QueuedBatch* slot = nullptr;
  if (given_back_.value() != taken_back_ && rings_->backward.try_dequeue(slot)) ++taken_back_;
  return slot;
}

PublishResult PublishQueue::Refuse(KVEventBatch* batch) noexcept {
  batch->Clear();
  refused_full_.Add(1);
  return PublishResult::kDroppedQueueFull;
}

PublishResult PublishQueue::Push(KVEventBatch* batch) noexcept {
  if (closed_.load(std::memory_order_acquire)) {
    batch->Clear();
    refused_closed_.Add(1);
    return PublishResult::kDroppedClosed;
  }
  // Never reaches kEndOfReplay: the first number is below 2^63, and a million batches a second take half a million
  // years.
  const SequenceNumber number = next_number_++;
  if (options_.refuse && options_.refuse(number)) return Refuse(batch);
  const std::size_t bytes = sizeof(QueuedBatch) + batch->ByteSize();
  const std::uint64_t queued = pushed_.value() - finished_.value();
  const std::uint64_t queued_bytes = pushed_bytes_.value() - finished_bytes_.value();
  if (queued >= options_.max_batches || bytes > options_.max_bytes || queued_bytes > options_.max_bytes - bytes) {
    return Refuse(batch);
  }

  QueuedBatch* slot = TakeSlot();
  if (slot == nullptr) slot = new (std::nothrow) QueuedBatch;
  if (slot == nullptr) return Refuse(batch);
  slot->number = number;
  slot->bytes = bytes;
  std::swap(slot->batch, *batch);
  if (!rings_->forward.try_enqueue(slot)) {
    // The ring holds all that the bounds admit.
    std::swap(slot->batch, *batch);
    slot->next_free = std::exchange(free_, slot);
    return Refuse(batch);
  }
  pushed_bytes_.Add(bytes);
  pushed_.Add(1);
  return PublishResult::kAccepted;
}

KVEventBatch PublishQueue::TakeSpare() noexcept {
  QueuedBatch* slot = TakeSlot();
  if (slot == nullptr) return {};
  KVEventBatch spare = std::exchange(slot->batch, KVEventBatch());
  slot->next_free = std::exchange(free_, slot);
  return spare;
}

QueuedBatch* PublishQueue::Front() noexcept {
  if (front_ == nullptr && pushed_.value() != finished_.value() && !rings_->forward.try_dequeue(front_)) {
    front_ = nullptr;
  }
  return front_;
}

void PublishQueue::Finish(Outcome outcome) noexcept {
  QueuedBatch* slot = std::exchange(front_, nullptr);
  const std::size_t bytes = slot->bytes;
  slot->batch.Clear();
  if (rings_->backward.size_approx() < kSpares && rings_->backward.try_enqueue(slot)) {
    given_back_.Add(1);
  } else {
    delete slot;
  }
  switch (outcome) {
    case Outcome::kSent:
      sent_.Add(1);
      break;
    case Outcome::kError:
      errors_.Add(1);
      break;
    case Outcome::kClosed:
      dropped_closed_.Add(1);
      break;
  }
  finished_bytes_.Add(bytes);
  finished_.Add(1);
}

void PublishQueue::DropAll() noexcept {
  while (Front() != nullptr) Finish(Outcome::kClosed);
}

PublisherStats PublishQueue::stats() const noexcept {
  PublisherStats stats;
  // The publishing thread's counts first: what is finished was pushed before.
  stats.sent = sent_.value();
  stats.dropped_error = errors_.value();
  stats.dropped_closed = dropped_closed_.value();
  const std::uint64_t finished = stats.sent + stats.dropped_error + stats.dropped_closed;
  const std::uint64_t finished_bytes = finished_bytes_.value();
  const std::uint64_t pushed = pushed_.value();
  stats.queued = pushed - finished;
  stats.queued_bytes = pushed_bytes_.value() - finished_bytes;
  const std::uint64_t refused_closed = refused_closed_.value();
  stats.dropped_full = refused_full_.value();
  stats.dropped_closed += refused_closed;
  stats.submitted = pushed + stats.dropped_full + refused_closed;
  return stats;
}

}  // namespace kvwire
