// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv_events/clock.h"
#include "kv_events/config.h"
#include "kv_events/event_publisher.h"
#include "kv_events/log.h"
#include "kv_events/publish/counter.h"
#include "kv_events/publish/heartbeat.h"
#include "kv_events/publish/publish_queue.h"
#include "kv_events/publish/replay_buffer.h"
#include "kv_events/publish/replay_service.h"
#include "kv_events/publish/restart_guard.h"
#include "kv_events/publish/state_answers.h"
#include "kv_events/publish/state_requests.h"
#include "kv_events/transport/frame_link.h"

namespace kvwire {

// The publishing side of a stream as an agent: takes batches from a queue, encodes each once, sends it, keeps the same
// bytes for replay, and answers the ROUTER's requests between. Says what it wants of the state: a stream that begins
// again after a batch was lost here, or for who subscribes while the restart guard is on, and walks for snapshots. No
// thread inside; the clock is read to stamp heartbeats and to measure.
//
// Threads: DoWork and PublishQueued by one thread, the same that uses the links; stats, wants and last_error by any.
// Ownership: borrows queue and links.
// Errors: a batch that cannot be encoded or sent is counted, its number is left out, and the next one is taken. An
//   episode of failures, or of a full queue, is one log line at its start and one at its end. Replay requests that get
//   no answer for too many others are one line a kCrowdPeriod.
// Source: docs/protocol.md, "State".
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
    std::int64_t data_parallel_rank = 0;
    std::uint64_t epoch = 0;  // another one in every life
    Removals removals = Removals::kExact;
    Overflow overflow = Overflow::kResync;
    std::int64_t heartbeat_interval_ms = 0;  // 0: none
    std::int64_t restart_guard_s = 0;        // 0: none
    SnapshotForm snapshot = SnapshotForm::kKvwire;
    std::function<void()> on_state_wanted;  // wants() has changed; may be empty
    const Clock* clock = &SystemClock::Get();
    LogSink log;
  };

  // Batches taken from the queue per call, so that replay clients get their turn.
  static constexpr std::size_t kBatchesPerCall = 32;
  // Subscriptions and their ends read per call: what is not read waits inside ZeroMQ, without a bound.
  static constexpr std::size_t kSubscriptionsPerCall = 256;
  static constexpr MonotonicNanos kCrowdPeriod = 60'000'000'000;

  // `replay` is null when there is no replay. REQUIRES: options.encode is set.
  PublisherAgent(Options options, PublishQueue* queue, FrameLink* publish, FrameLink* replay);

  // Takes note of subscriptions, publishes what is queued, up to kBatchesPerCall, or a heartbeat, then serves one slice
  // of what the ROUTER was asked for. Returns how much was done; 0 means that there is nothing to do until something
  // arrives.
  std::size_t DoWork(MonotonicNanos now);

  // Only the publishing of DoWork, for a close that has no time for replay.
  std::size_t PublishQueued();

  // When DoWork has to be called again although nothing arrives: a heartbeat is due.
  MonotonicNanos due() const noexcept { return heartbeats_.due(); }

  StateWants wants() const noexcept { return requests_.wants(); }

  PublisherStats stats() const noexcept;

  // Why a batch was last lost; empty if none ever was. Not cleared by success.
  std::string last_error() const;

 private:
  static StateAnswers::Options AnswerOptions(const Options& options, const PublishQueue& queue);

  bool PublishFront(QueuedBatch* queued);
  void TakeChunk(QueuedBatch* queued);
  SharedBytes Encode(const QueuedBatch& queued);
  SharedBytes EncodeHeartbeat(double ts);
  SendResult Send(SequenceNumber number, const SharedBytes& payload) noexcept;
  std::size_t ReadSubscriptions();
  bool MatchesTopic(std::span<const std::uint8_t> subscription) const;
  std::size_t SendHeartbeat();
  void Note(QueuedBatch* queued, SharedBytes payload);
  void NoteBuffer();
  void Fail(SequenceNumber number, const std::string& reason);
  void Recover();
  void ReportOverflow();
  void ReportCrowd();

  const Options options_;
  PublishQueue* const queue_;
  FrameLink* const publish_;
  StateRequests requests_;
  ReplayBuffer buffer_;
  std::unique_ptr<StateAnswers> answers_;  // both null when there is no replay
  std::unique_ptr<ReplayService> replay_;
  HeartbeatTimer heartbeats_;
  RestartGuard guard_;
  std::optional<MonotonicNanos> started_;
  MonotonicNanos now_ = 0;
  SequenceNumber next_;     // number after the last one that left the queue
  bool published_ = false;  // a batch has left the queue
  bool broken_ = false;     // a number is missing since the buffer began
  std::vector<std::uint8_t> scratch_;
  SharedBytes pending_;         // the queue's front, encoded, when the link had no room
  std::uint64_t failures_ = 0;  // of the current episode
  std::uint64_t overflow_seen_ = 0;
  std::uint64_t overflow_start_ = 0;
  bool overflowing_ = false;
  std::uint64_t turned_away_seen_ = 0;
  std::uint64_t slow_seen_ = 0;
  std::optional<MonotonicNanos> crowd_reported_;

  Counter subscribed_;
  Counter unsubscribed_;
  Counter bytes_sent_;
  Counter buffered_;
  Counter buffered_bytes_;
  Counter oldest_;  // number plus one; 0: none
  Counter newest_;
  Counter encode_nanos_;
  Counter send_nanos_;
  mutable std::mutex error_mutex_;
  std::string last_error_;
};

}  // namespace kvwire
