// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/publisher_agent.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace kvwire {

PublisherAgent::PublisherAgent(Options options, PublishQueue* queue, FrameLink* publish, FrameLink* replay)
    : options_(std::move(options)),
      queue_(queue),
      publish_(publish),
      buffer_(replay == nullptr ? 0 : options_.buffer_steps, options_.buffer_bytes) {
  assert(options_.encode);
  if (replay != nullptr) {
    replay_ = std::make_unique<ReplayService>(options_.topic, options_.replay_layout, replay, &buffer_);
  }
}

std::size_t PublisherAgent::DoWork(MonotonicNanos now) {
  const std::size_t subscriptions = CountSubscriptions();
  const std::size_t published = PublishQueued();
  ReportOverflow();
  return subscriptions + published + (replay_ ? replay_->DoWork(now) : 0);
}

// Counts only subscriptions that let this stream's topic through. Bounded, so that peers who subscribe without end do
// not stop the stream.
std::size_t PublisherAgent::CountSubscriptions() {
  std::size_t read = 0;
  while (read < kBatchesPerCall) {
    const std::optional<InFrames> frames = publish_->TryReceive();
    if (!frames) break;
    ++read;
    if (frames->size() != 1 || frames->front().empty()) continue;
    const std::vector<std::uint8_t>& subscription = frames->front();
    const std::uint8_t kind = subscription.front();
    const std::string& topic = options_.topic;
    const bool matches = subscription.size() - 1 <= topic.size() &&
                         std::equal(subscription.begin() + 1, subscription.end(), topic.begin(),
                                    [](std::uint8_t byte, char c) { return byte == static_cast<std::uint8_t>(c); });
    if (!matches) continue;
    if (kind == 1) subscribed_.Add(1);
    if (kind == 0) unsubscribed_.Add(1);
  }
  return read;
}

std::size_t PublisherAgent::PublishQueued() {
  std::size_t done = 0;
  while (done < kBatchesPerCall) {
    const QueuedBatch* queued = queue_->Front();
    if (queued == nullptr) break;
    if (!pending_) pending_ = Encode(*queued);
    if (!pending_) {
      queue_->Finish(PublishQueue::Outcome::kError);
      ++done;
      continue;
    }
    const SequenceNumber number = queued->number;
    const SendResult result = Send(number, pending_);
    if (result == SendResult::kWouldBlock) break;
    ++done;
    const std::size_t size = pending_->size();
    // Also when sending failed: then a consumer that sees the gap can still have it.
    Keep(number, std::exchange(pending_, nullptr));
    if (result == SendResult::kSent) {
      bytes_sent_.Add(size);
      queue_->Finish(PublishQueue::Outcome::kSent);
      Recover();
    } else {
      queue_->Finish(PublishQueue::Outcome::kError);
      Fail(number, "the socket refused it");
    }
  }
  return done;
}

// Null if it failed.
SharedBytes PublisherAgent::Encode(const QueuedBatch& queued) {
  try {
    // Encoded aside and copied: the buffer holds thousands of payloads, and none may carry spare capacity.
    scratch_.clear();
    options_.encode(queued.batch, &scratch_);
    if (scratch_.size() > options_.max_payload_bytes) {
      throw std::length_error(
          fmt::format("its payload of {} bytes is above {}", scratch_.size(), options_.max_payload_bytes));
    }
    return std::make_shared<const std::vector<std::uint8_t>>(scratch_.begin(), scratch_.end());
  } catch (const std::exception& error) {
    Fail(queued.number, error.what());
  } catch (...) {
    Fail(queued.number, "unknown exception");
  }
  return nullptr;
}

SendResult PublisherAgent::Send(SequenceNumber number, const SharedBytes& payload) noexcept {
  const SequenceFrame sequence = EncodeSequence(number);
  const std::string& topic = options_.topic;
  const OutFrame frames[] = {OutFrame::Copy({reinterpret_cast<const std::uint8_t*>(topic.data()), topic.size()}),
                             OutFrame::Copy(sequence), OutFrame::Share(payload)};
  return publish_->TrySend(frames);
}

void PublisherAgent::Keep(SequenceNumber number, SharedBytes payload) {
  buffer_.Append(number, std::move(payload));
  buffered_.Set(buffer_.size());
  buffered_bytes_.Set(buffer_.bytes());
}

void PublisherAgent::Fail(SequenceNumber number, const std::string& reason) {
  std::string text = fmt::format("batch {} was not published: {}", number, reason);
  if (failures_++ == 0) Log(options_.log, LogLevel::kError, text);
  const std::lock_guard<std::mutex> lock(error_mutex_);
  last_error_ = std::move(text);
}

void PublisherAgent::Recover() {
  if (failures_ == 0) return;
  Log(options_.log, LogLevel::kInfo, fmt::format("publishing again; batches lost: {}", failures_));
  failures_ = 0;
}

void PublisherAgent::ReportOverflow() {
  const std::uint64_t dropped = queue_->dropped_full();
  if (dropped != overflow_seen_) {
    if (!overflowing_) {
      overflow_start_ = overflow_seen_;
      Log(options_.log, LogLevel::kWarning,
          "the event queue is full: batches are dropped and consumers see a gap (max_queue_size, queue_bytes)");
    }
    overflowing_ = true;
    overflow_seen_ = dropped;
  } else if (overflowing_ && queue_->Front() == nullptr) {
    overflowing_ = false;
    Log(options_.log, LogLevel::kInfo,
        fmt::format("the event queue is empty again; batches dropped: {}", dropped - overflow_start_));
  }
}

PublisherStats PublisherAgent::stats() const noexcept {
  PublisherStats stats = queue_->stats();
  // What ends began before, so the ends are read first.
  const std::uint64_t unsubscribed = unsubscribed_.value();
  stats.subscriptions = subscribed_.value() - unsubscribed;
  stats.bytes_sent = bytes_sent_.value();
  stats.replay_buffered = buffered_.value();
  stats.replay_buffered_bytes = buffered_bytes_.value();
  if (replay_) {
    stats.replay_requests = replay_->requests();
    stats.replay_malformed = replay_->malformed();
    stats.replay_dropped = replay_->dropped();
    stats.replay_messages = replay_->messages();
  }
  return stats;
}

std::string PublisherAgent::last_error() const {
  const std::lock_guard<std::mutex> lock(error_mutex_);
  return last_error_;
}

}  // namespace kvwire
