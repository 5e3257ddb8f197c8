// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/publish_queue.h"

#include <algorithm>
#include <new>
#include <utility>

#include <readerwriterqueue/readerwriterqueue.h>

namespace kvwire {

// Invariants.
// * A slot is in exactly one place: the forward ring, front_, the backward ring, the free list, or a function's hands.
// * Each counter has one writer, and a batch is counted once on either side (a chunk on counters of its own), so
//   submitted (pushed and refused) equals what was finished and refused plus what is queued, whoever looks, whenever.
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

QueuedBatch* PublishQueue::NewSlot() noexcept {
  QueuedBatch* slot = TakeSlot();
  return slot != nullptr ? slot : new (std::nothrow) QueuedBatch;
}

bool PublishQueue::Fits(std::size_t bytes) const noexcept {
  const std::uint64_t queued = pushed_.value() - finished_.value();
  const std::uint64_t queued_bytes = pushed_bytes_.value() - finished_bytes_.value();
  return queued < options_.max_batches && bytes <= options_.max_bytes && queued_bytes <= options_.max_bytes - bytes;
}

// Queues the slot with the content of *batch, and counts it in *pushed. False: the ring holds all that the bounds
// admit; the content is still *batch's, and the slot is free.
bool PublishQueue::Enqueue(QueuedBatch* slot, KVEventBatch* batch, std::size_t bytes, Counter* pushed) noexcept {
  slot->bytes = bytes;
  std::swap(slot->batch, *batch);
  if (!rings_->forward.try_enqueue(slot)) {
    std::swap(slot->batch, *batch);
    slot->next_free = std::exchange(free_, slot);
    return false;
  }
  pushed_bytes_.Add(bytes);
  pushed->Add(1);
  pushed_.Add(1);
  return true;
}

PublishResult PublishQueue::Push(KVEventBatch* batch) noexcept {
  if (closed_.load(std::memory_order_acquire)) {
    batch->Clear();
    refused_closed_.Add(1);
    return PublishResult::kDroppedClosed;
  }
  // Never reaches kEndOfReplay: the first number is below 2^63, and a million batches a second take half a million
  // years.
  const SequenceNumber number = next_number_.fetch_add(1, std::memory_order_acq_rel);
  last_pushed_.Set(number + 1);
  if (options_.refuse && options_.refuse(number)) return Refuse(batch);
  const std::size_t bytes = sizeof(QueuedBatch) + batch->ByteSize();
  if (!Fits(bytes)) return Refuse(batch);

  QueuedBatch* slot = NewSlot();
  if (slot == nullptr) return Refuse(batch);
  slot->kind = QueuedBatch::Kind::kBatch;
  slot->number = number;
  return Enqueue(slot, batch, bytes, &pushed_batches_) ? PublishResult::kAccepted : Refuse(batch);
}

PublishResult PublishQueue::PushChunk(StateChunk* chunk) noexcept {
  const bool closed = closed_.load(std::memory_order_acquire);
  const std::size_t bytes = sizeof(QueuedBatch) + chunk->blocks.ByteSize();
  QueuedBatch* slot = closed || !Fits(bytes) ? nullptr : NewSlot();
  if (slot == nullptr) {
    refused_chunks_.Add(1);
    return closed ? PublishResult::kDroppedClosed : PublishResult::kDroppedQueueFull;
  }
  slot->kind = QueuedBatch::Kind::kChunk;
  slot->walk = chunk->walk;
  slot->first = chunk->first;
  slot->last = chunk->last;
  slot->number = next_number_.load(std::memory_order_acquire);
  if (Enqueue(slot, &chunk->blocks, bytes, &pushed_chunks_)) return PublishResult::kAccepted;
  refused_chunks_.Add(1);
  return PublishResult::kDroppedQueueFull;
}

bool PublishQueue::HasRoom() const noexcept {
  const std::uint64_t queued = pushed_.value() - finished_.value();
  const std::uint64_t queued_bytes = pushed_bytes_.value() - finished_bytes_.value();
  return queued < (options_.max_batches + 1) / 2 && queued_bytes < (options_.max_bytes + 1) / 2;
}

// A number that was drawn and is not counted here belongs to a batch that is queued, or to a Push that is under way:
// then there are more of them than expected, and the exchange fails.
std::optional<SequenceNumber> PublishQueue::NumberToTake(std::optional<SequenceNumber> only) const noexcept {
  const std::uint64_t counted =
      sent_.value() + errors_.value() + dropped_closed_.value() + refused_full_.value() + numbers_taken_.value();
  if (front_ != nullptr || pushed_.value() != finished_.value()) return std::nullopt;
  const SequenceNumber number = options_.first_number + counted;
  if ((only && number != *only) || number != next_number()) return std::nullopt;
  return number;
}

std::optional<SequenceNumber> PublishQueue::TakeNumber(std::optional<SequenceNumber> only) noexcept {
  std::optional<SequenceNumber> number = NumberToTake(only);
  if (!number || !next_number_.compare_exchange_strong(*number, *number + 1, std::memory_order_acq_rel)) {
    return std::nullopt;
  }
  numbers_taken_.Add(1);
  return number;
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
  const bool chunk = slot->kind == QueuedBatch::Kind::kChunk;
  slot->batch.Clear();
  if (rings_->backward.size_approx() < kSpares && rings_->backward.try_enqueue(slot)) {
    given_back_.Add(1);
  } else {
    delete slot;
  }
  Counter* counter = nullptr;
  switch (outcome) {
    case Outcome::kSent:
      counter = chunk ? &finished_chunks_ : &sent_;
      break;
    case Outcome::kError:
      counter = chunk ? &lost_chunks_ : &errors_;
      break;
    case Outcome::kClosed:
      counter = chunk ? &lost_chunks_ : &dropped_closed_;
      break;
  }
  counter->Add(1);
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
  stats.heartbeats = numbers_taken_.value();
  stats.chunks = finished_chunks_.value();
  const std::uint64_t lost_chunks = lost_chunks_.value();
  stats.chunks_queued = pushed_chunks_.value() - stats.chunks - lost_chunks;
  stats.chunks_dropped = lost_chunks + refused_chunks_.value();
  const std::uint64_t pushed = pushed_batches_.value();
  stats.queued = pushed - finished;
  stats.queued_bytes = pushed_bytes_.value() - finished_bytes;
  const std::uint64_t refused_closed = refused_closed_.value();
  stats.dropped_full = refused_full_.value();
  stats.dropped_closed += refused_closed;
  stats.submitted = pushed + stats.dropped_full + refused_closed;
  if (const std::uint64_t last = last_pushed_.value(); last != 0) stats.last_number = last - 1;
  return stats;
}

}  // namespace kvwire
