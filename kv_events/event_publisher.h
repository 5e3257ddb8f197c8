// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv_events/batch.h"

namespace kvwire {

// What became of a batch handed to Publish().
enum class PublishResult : std::uint8_t {
  kAccepted,          // numbered and queued, or kept
  kDroppedQueueFull,  // numbered and dropped: the number is burnt, consumers see a gap
  kDroppedClosed,     // Close() was called before
  kUsedAfterFork,     // in a forked child: the publisher is the parent's, and nothing of it is touched or counted
};

// Counters of a publisher. At any moment
//   submitted == sent + dropped_full + dropped_error + dropped_closed + queued.
struct PublisherStats {
  std::uint64_t submitted = 0;       // calls of Publish()
  std::uint64_t sent = 0;            // handed to the transport
  std::uint64_t dropped_full = 0;    // queue at its count or byte bound
  std::uint64_t dropped_error = 0;   // could not be encoded or sent
  std::uint64_t dropped_closed = 0;  // published after Close(), or still queued when its deadline passed
  std::uint64_t queued = 0;
  std::uint64_t queued_bytes = 0;
  std::uint64_t bytes_sent = 0;        // payload bytes
  std::uint64_t subscriptions = 0;     // present now, to this stream's topic
  std::uint64_t subscribers_cut = 0;   // connections ended: their subscriptions were more bytes than they may be
  std::uint64_t replay_requests = 0;   // answered or being answered
  std::uint64_t replay_malformed = 0;  // requests of a wrong shape
  std::uint64_t replay_dropped = 0;    // clients given up: gone, no progress before the deadline, too slow, too many
  std::uint64_t replay_slow = 0;       // of these, too slow while others waited for a place
  std::uint64_t replay_messages = 0;   // data messages handed to the transport
  std::uint64_t replay_buffered = 0;   // batches in the replay buffer
  std::uint64_t replay_buffered_bytes = 0;
  std::optional<std::uint64_t> replay_oldest;  // numbers in the replay buffer, heartbeats included
  std::optional<std::uint64_t> replay_newest;
  std::uint64_t replay_clients = 0;          // being answered, whatever they asked for
  std::optional<std::uint64_t> last_number;  // of the last batch handed to Publish()
  std::uint64_t encode_nanos = 0;            // spent in encoding,
  std::uint64_t send_nanos = 0;              // and in handing over to the transport
  std::uint64_t heartbeats = 0;              // numbers taken by heartbeats; no batch that was submitted
  std::uint64_t resyncs_wanted = 0;          // StateWants.resyncs
  std::uint64_t chunks = 0;                  // of snapshot walks, taken from the queue; no batches that were submitted
  std::uint64_t chunks_dropped = 0;          // refused (full, closed), or could not be encoded
  std::uint64_t chunks_queued = 0;           // their bytes are among queued_bytes
  std::uint64_t hello_requests = 0;
  std::uint64_t digest_requests = 0;
  std::uint64_t snapshot_requests = 0;  // by name, or replay requests that are answered with the state
  std::uint64_t snapshots_sent = 0;     // of these, answered with the whole state
  std::uint64_t snapshots_failed = 0;   // of these, answered with an end mark only: no state came, or not all of it
  std::uint64_t snapshot_bytes = 0;     // payload of chunks that wait for clients

  friend bool operator==(const PublisherStats&, const PublisherStats&) = default;
};

// Where consumers find a publisher. Endpoints are resolved: rank offset applied, port 0 replaced by the real port,
// a wildcard host replaced by an address of this machine.
struct EventSourceInfo {
  std::int64_t data_parallel_rank = 0;
  std::string endpoint;
  std::optional<std::string> replay_endpoint;
  std::string topic;

  friend bool operator==(const EventSourceInfo&, const EventSourceInfo&) = default;
};

// What the publishing side wants of the step thread, which does it at its step boundaries. Counts, which only rise.
struct StateWants {
  std::uint64_t resyncs = 0;  // in-band resyncs: a loss behind the queue, a subscription while the restart guard is on
  std::uint64_t walks = 0;    // snapshot walks; the n-th is number n
  std::uint64_t chunks = 0;   // chunks that may be handed over, of all walks together

  friend bool operator==(const StateWants&, const StateWants&) = default;
};

// A piece of a snapshot walk. Consumers apply it before the batch whose number is drawn next. Of the batches before the
// first one they see nothing, so no batch is published between the beginning of a walk and its first chunk.
struct StateChunk {
  KVEventBatch blocks;     // BlockStored only; a block is as often in it as it is announced
  std::uint64_t walk = 0;  // its number
  bool first = false;      // of the walk, also of one that begins again
  bool last = false;
};

// Takes one batch per step away from the step thread.
//
// Threads: Publish, PublishChunk, HasRoom, state_wants, TakeSpare and Wake are called by one thread (the step thread);
//   stats and source by any;
//   Close by the owner, after the step thread's last Publish has returned.
// Ownership: the host makes it and outlives the scheduler that uses it. Neither copied nor moved.
// Errors: nothing here throws or blocks on a socket; a loss is a result, a counter and a gap in the numbers.
class EventPublisher {
 public:
  EventPublisher() = default;
  EventPublisher(const EventPublisher&) = delete;
  EventPublisher& operator=(const EventPublisher&) = delete;
  virtual ~EventPublisher() = default;

  // Takes the batch, whatever the result. Stamps the publisher's rank if the batch has none.
  [[nodiscard]] virtual PublishResult Publish(KVEventBatch&& batch) noexcept = 0;

  // An empty batch whose memory was used before, if there is one; else a new one.
  virtual KVEventBatch TakeSpare() noexcept { return {}; }

  // A piece of a walk that state_wants() asked for, in order with the batches; it takes no number. Left as it is when
  // it is refused. A batch's digest, if there is one in the last chunk, is told as that of the whole snapshot.
  [[nodiscard]] virtual PublishResult PublishChunk(StateChunk&& /*chunk*/) noexcept {
    return PublishResult::kDroppedClosed;
  }

  // Whether less than half of the queue is taken, by count and by bytes.
  virtual bool HasRoom() const noexcept { return true; }

  // Wait-free. Nothing is ever wanted of a host that has no state.
  virtual StateWants state_wants() const noexcept { return {}; }

  // Whether a loss is to be healed in-band (overflow "resync").
  virtual bool resyncs_after_loss() const noexcept { return false; }

  // Tells the publishing thread that there is work. A system call, so the host places it where it costs least: after
  // the model was launched. Without it a batch leaves when the publisher looks by itself.
  virtual void Wake() noexcept {}

  // Sends what is queued, up to the deadline, then stops for good. Idempotent; a second call returns at once. Does
  // nothing in a forked child.
  virtual void Close(std::chrono::milliseconds deadline) noexcept = 0;
  void Close() noexcept { Close(std::chrono::milliseconds(2000)); }

  virtual PublisherStats stats() const noexcept = 0;

  // Nothing when there is no stream to find (null, collecting).
  virtual std::optional<EventSourceInfo> source() const { return std::nullopt; }
};

// Discards everything: events are off.
class NullEventPublisher final : public EventPublisher {
 public:
  PublishResult Publish(KVEventBatch&& batch) noexcept override;
  using EventPublisher::Close;
  void Close(std::chrono::milliseconds deadline) noexcept override;
  PublisherStats stats() const noexcept override { return {}; }
};

// Keeps every batch, for tests and for hosts that pull.
class CollectingEventPublisher final : public EventPublisher {
 public:
  explicit CollectingEventPublisher(std::int64_t data_parallel_rank = 0) : rank_(data_parallel_rank) {}

  PublishResult Publish(KVEventBatch&& batch) noexcept override;
  using EventPublisher::Close;
  void Close(std::chrono::milliseconds deadline) noexcept override;
  PublisherStats stats() const noexcept override { return stats_; }

  const std::vector<KVEventBatch>& batches() const noexcept { return batches_; }
  std::vector<KVEventBatch> TakeBatches() noexcept;
  bool closed() const noexcept { return closed_; }

 private:
  const std::int64_t rank_;
  std::vector<KVEventBatch> batches_;
  PublisherStats stats_;
  bool closed_ = false;
};

}  // namespace kvwire
