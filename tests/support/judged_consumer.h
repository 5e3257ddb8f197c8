// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kv_events/clock.h"
#include "kv_events/event_publisher.h"
#include "kv_events/subscribe/event_stream.h"
#include "kv_events/subscribe/mirror.h"
#include "kv_events/subscribe/stream_sink.h"
#include "kv_events/subscribe/watched_stream.h"
#include "kv_events/transport/endpoint.h"
#include "kv_events/transport/zmq_link.h"
#include "tests/support/forwarding_publisher.h"

namespace kvwire::test {

// What a stream holds after each of its numbers, by whoever publishes it.
// Threads: Append by one; the rest by any. No locks. Bounds: what the constructor is told; what comes beyond is not
//   kept, and overflowed() says so.
class DigestLog {
 public:
  explicit DigestLog(std::size_t capacity) : digests_(capacity) {}

  // Of the next number, from 0 on.
  void Append(DigestEntries digest) {
    const std::size_t at = size_.load(std::memory_order_relaxed);
    if (at < digests_.size()) digests_[at] = std::move(digest);
    size_.store(at + 1, std::memory_order_release);
  }

  std::size_t size() const noexcept { return size_.load(std::memory_order_acquire); }
  bool overflowed() const noexcept { return size() > digests_.size(); }
  // Null: not known.
  const DigestEntries* After(SequenceNumber number) const noexcept {
    return number < size() && number < digests_.size() ? &digests_[number] : nullptr;
  }

 private:
  std::vector<DigestEntries> digests_;
  std::atomic<std::size_t> size_{0};
};

// Notes the digest of each batch before it is passed on. For a publisher without heartbeats whose first number is 0.
class NotingPublisher final : public ForwardingPublisher {
 public:
  NotingPublisher(EventPublisher* publisher, DigestLog* log) : ForwardingPublisher(publisher), log_(log) {}

  PublishResult Publish(KVEventBatch&& batch) noexcept override {
    log_->Append(batch.digest.entries());
    return ForwardingPublisher::Publish(std::move(batch));
  }
  PublishResult PublishChunk(StateChunk&& chunk) noexcept override {
    ++chunks_;
    return ForwardingPublisher::PublishChunk(std::move(chunk));
  }

  std::uint64_t chunks() const noexcept { return chunks_; }  // calls of PublishChunk

 private:
  DigestLog* const log_;
  std::uint64_t chunks_ = 0;
};

// A mirror that is compared with the publisher's word after every number while it is synchronised, and after a
// snapshot.
class JudgedSink final : public StreamSink {
 public:
  // `log` outlives it.
  explicit JudgedSink(const DigestLog* log) : log_(log), mirror_(Removals::kExact) {}

  std::uint64_t judged() const noexcept { return judged_; }  // numbers
  std::uint64_t judged_since_snapshot() const noexcept { return since_snapshot_; }
  std::uint64_t gaps_since_snapshot() const noexcept { return gaps_; }
  std::uint64_t snapshots() const noexcept { return snapshots_; }
  const std::string& first_difference() const noexcept { return first_difference_; }  // empty: none
  bool synchronised() const noexcept { return status_.state == StreamState::kSynchronised; }
  const StreamStatus& status() const noexcept { return status_; }
  const Mirror& mirror() const noexcept { return mirror_; }

  void OnBatch(const StreamMessage& message, const DecodedBatch& batch) override {
    mirror_.OnBatch(message, batch);
    if (!whole_ && !synchronised()) return;
    Judge(message.sequence);
    if (snapshots_ > 0) ++since_snapshot_;
  }
  void OnUndecodable(const StreamMessage& message, const DecodeError& error) override {
    whole_ = false;
    mirror_.OnUndecodable(message, error);
  }
  void OnRecovery(SequenceNumber /*from*/, SequenceNumber /*to*/) override {}
  void OnHealed(SequenceNumber /*from*/, SequenceNumber /*to*/) override {}
  void OnGap(const StreamGap& gap) override {
    whole_ = false;
    ++gaps_;
    mirror_.OnGap(gap);
  }
  void OnRestart(SequenceNumber last, std::optional<SequenceNumber> first_seen) override {
    whole_ = false;
    mirror_.OnRestart(last, first_seen);
  }
  void OnContinuity(Continuity continuity) override { mirror_.OnContinuity(continuity); }
  void OnMalformed(std::size_t /*frame_count*/) override { Differ("a malformed message"); }
  void OnSnapshotBegin(SequenceNumber first) override { mirror_.OnSnapshotBegin(first); }
  void OnSnapshotChunk(SequenceNumber number, const DecodedBatch& chunk) override {
    mirror_.OnSnapshotChunk(number, chunk);
  }
  void OnSnapshotEnd(SequenceNumber next, const std::optional<DigestEntries>& digest) override {
    mirror_.OnSnapshotEnd(next, digest);
    ++snapshots_;
    gaps_ = 0;
    since_snapshot_ = 0;
    whole_ = true;
    if (next > 0) Judge(next - 1);
  }
  void OnSnapshotAbandoned() override { mirror_.OnSnapshotAbandoned(); }
  std::optional<DigestEntries> HeldDigest() const override { return mirror_.HeldDigest(); }
  void OnDigestDiffers(SequenceNumber next, const DigestEntries& theirs) override {
    if (synchronised()) Differ("the publisher has " + DescribeDigest(theirs) + " before " + std::to_string(next));
  }
  void OnState(const StreamStatus& status) override { status_ = status; }

 private:
  void Judge(SequenceNumber number) {
    const DigestEntries* const theirs = log_->After(number);
    const DigestEntries ours = mirror_.digest().entries();
    ++judged_;
    if (theirs == nullptr) {
      Differ("number " + std::to_string(number) + " was not published");
    } else if (*theirs != ours) {
      Differ("after " + std::to_string(number) + " it is " + DescribeDigest(*theirs) + ", not " + DescribeDigest(ours));
    }
  }
  void Differ(std::string what) {
    if (first_difference_.empty()) first_difference_ = std::move(what);
  }

  const DigestLog* const log_;
  Mirror mirror_;
  StreamStatus status_;
  bool whole_ = false;  // since a snapshot nothing was lost
  std::uint64_t judged_ = 0;
  std::uint64_t since_snapshot_ = 0;
  std::uint64_t snapshots_ = 0;
  std::uint64_t gaps_ = 0;
  std::string first_difference_;
};

// A consumer of a publisher's stream over sockets of its own.
// Threads: one.
class JudgedConsumer {
 public:
  JudgedConsumer(const std::shared_ptr<ZmqContext>& context, const EventSourceInfo& source,
                 const EventStreamOptions& options, const DigestLog* log,
                 const std::shared_ptr<const CurveClient>& curve)
      : sink_(log) {
    const Endpoint live = *Endpoint::Parse(source.endpoint, "endpoint");
    const Endpoint replay = *Endpoint::Parse(source.replay_endpoint.value(), "replay_endpoint");
    LinkOptions link;
    link.subscription = source.topic;
    link.receive_hwm = 0;
    link.watch_peers = true;
    link.curve_client = curve;
    stream_ = std::make_unique<EventStream>(LiveLinksTo(context, std::make_shared<EndpointLookup>(live), link,
                                                        ZmqLink::Connect(context, LinkKind::kSub, live, link).value()),
                                            ReplayLinksTo(context, std::make_shared<EndpointLookup>(replay), curve),
                                            options, &sink_);
  }

  int DoWork() { return stream_->DoWork(SystemClock::Get().Now()); }
  const JudgedSink& sink() const noexcept { return sink_; }
  const EventStream& stream() const noexcept { return *stream_; }

 private:
  JudgedSink sink_;
  std::unique_ptr<EventStream> stream_;
};

}  // namespace kvwire::test
