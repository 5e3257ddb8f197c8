// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kv_events/clock.h"
#include "kv_events/config.h"
#include "kv_events/event_publisher.h"
#include "kv_events/log.h"
#include "kv_events/publish/counter.h"
#include "kv_events/publish/publish_queue.h"
#include "kv_events/publish/replay_buffer.h"
#include "kv_events/publish/replay_service.h"
#include "kv_events/transport/frame_link.h"

namespace kvwire {

// The publishing side of a stream as an agent: takes batches from a queue, encodes each once, sends it, keeps the same
// bytes for replay, and answers replay requests between. No thread and no clock inside.
//
// Threads: DoWork and PublishQueued by one thread, the same that uses the links; stats and last_error by any.
// Ownership: borrows queue and links.
// Errors: a batch that cannot be encoded or sent is counted, its number is left out, and the next one is taken. An
//   episode of failures, or of a full queue, is one log line at its start and one at its end.
class PublisherAgent {
 public:
  // Appends the payload of a batch; may throw.
  using EncodeFunction = std::function<void(const KVEventBatch&, std::vector<std::uint8_t>*)>;

  struct Options {
    std::string topic;
    ReplayLayout replay_layout = ReplayLayout::kTopic;
    std::size_t buffer_steps = 10000;
    std::size_t buffer_bytes = std::size_t{512} << 20;
    std::size_t max_payload_bytes = std::size_t{64} << 20;  // what consumers must accept; larger ones are not sent
    EncodeFunction encode;
    LogSink log;
  };

  // Batches taken from the queue per call, so that replay clients get their turn.
  static constexpr std::size_t kBatchesPerCall = 32;

  // `replay` is null when there is no replay. REQUIRES: options.encode is set.
  PublisherAgent(Options options, PublishQueue* queue, FrameLink* publish, FrameLink* replay);

  // Takes note of subscriptions, publishes what is queued, up to kBatchesPerCall, then serves one slice of replay.
  // Returns how much was done; 0 means that there is nothing to do until something arrives.
  std::size_t DoWork(MonotonicNanos now);

  // Only the publishing of DoWork, for a close that has no time for replay.
  std::size_t PublishQueued();

  PublisherStats stats() const noexcept;

  // Why a batch was last lost; empty if none ever was. Not cleared by success.
  std::string last_error() const;

 private:
  SharedBytes Encode(const QueuedBatch& queued);
  SendResult Send(SequenceNumber number, const SharedBytes& payload) noexcept;
  std::size_t CountSubscriptions();
  void Keep(SequenceNumber number, SharedBytes payload);
  void Fail(SequenceNumber number, const std::string& reason);
  void Recover();
  void ReportOverflow();

  const Options options_;
  PublishQueue* const queue_;
  FrameLink* const publish_;
  ReplayBuffer buffer_;
  std::unique_ptr<ReplayService> replay_;
  std::vector<std::uint8_t> scratch_;
  SharedBytes pending_;         // the queue's front, encoded, when the link had no room
  std::uint64_t failures_ = 0;  // of the current episode
  std::uint64_t overflow_seen_ = 0;
  std::uint64_t overflow_start_ = 0;
  bool overflowing_ = false;

  Counter subscribed_;
  Counter unsubscribed_;
  Counter bytes_sent_;
  Counter buffered_;
  Counter buffered_bytes_;
  mutable std::mutex error_mutex_;
  std::string last_error_;
};

}  // namespace kvwire
