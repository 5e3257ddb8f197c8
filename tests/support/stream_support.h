// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv_events/batch.h"
#include "kv_events/event_publisher.h"
#include "kv_events/publish/publish_queue.h"
#include "kv_events/publish/publisher_agent.h"
#include "kv_events/transport/frame_link.h"
#include "kv_events/transport/zmq_link.h"
#include "kv_events/wire/extensions.h"
#include "kv_events/wire/frames.h"
#include "tests/support/memory_link.h"

namespace kvwire::test {

// A batch of `events` stores of one block each, with hashes base + 1, base + 2, ...
KVEventBatch StoreBatch(std::size_t events, std::uint64_t base = 0);
// The hashes that a payload stores, in order.
std::vector<std::uint64_t> StoredHashes(std::span<const std::uint8_t> payload);
// Changes a set of hashes as a payload says; throws if it cannot be read.
void ApplyEvents(std::span<const std::uint8_t> payload, std::set<std::uint64_t>* held);
// The rank that a payload carries.
std::optional<std::int64_t> RankOf(std::span<const std::uint8_t> payload);

struct Live {
  std::string topic;
  SequenceNumber number = 0;
  std::vector<std::uint8_t> payload;
};
std::optional<Live> ReceiveLive(FrameLink* link);

struct Replayed {
  std::optional<std::string> topic;
  SequenceNumber number = 0;
  std::vector<std::uint8_t> payload;
  bool end = false;
  std::size_t frames = 0;
};
std::optional<Replayed> ReceiveReplayed(FrameLink* link);

// Sends a request as a DEALER does: these frames.
SendResult SendFrames(FrameLink* link, const std::vector<std::vector<std::uint8_t>>& frames);
SendResult Ask(FrameLink* link, SequenceNumber start);

// A message of an answer beyond replay; with an empty name and `end` the end mark.
struct Told {
  std::string name;
  SequenceNumber number = 0;
  std::vector<std::uint8_t> payload;
  bool end = false;
};
std::optional<Told> ReceiveTold(FrameLink* link);
SendResult Ask(FrameLink* link, const ExtensionRequest& request);

// Repeats until the condition holds; false when it did not within five seconds.
bool Eventually(const std::function<bool()>& condition);

// The numbers of `messages` without the end mark.
std::vector<SequenceNumber> Numbers(const std::vector<Replayed>& messages);
std::vector<SequenceNumber> Numbers(const std::vector<Live>& messages);
std::vector<SequenceNumber> Range(SequenceNumber first, SequenceNumber last);

// submitted == sent + dropped_full + dropped_error + dropped_closed + queued, and as many submitted as the test did.
bool Balanced(const PublisherStats& stats, std::uint64_t submitted);

// Where an agent's two sockets live in a test: in memory, or in a ZeroMQ context of its own.
class MemoryRig {
 public:
  FrameLink* publish() { return &publish_; }
  FrameLink* replay() { return &router_; }
  std::unique_ptr<FrameLink> Subscribe(const std::string& prefix, int receive_hwm = 1000);
  std::unique_ptr<FrameLink> Dealer(const std::string& identity, int receive_hwm = 1000);

 private:
  MemoryPub publish_;
  MemoryRouter router_;
};

class ZmqRig {
 public:
  ZmqRig();
  FrameLink* publish() { return publish_.get(); }
  FrameLink* replay() { return router_.get(); }
  std::unique_ptr<FrameLink> Subscribe(const std::string& prefix, int receive_hwm = 1000);
  std::unique_ptr<FrameLink> Dealer(const std::string& identity, int receive_hwm = 1000);

 private:
  const std::shared_ptr<ZmqContext> context_ = ZmqContext::Create();
  std::unique_ptr<ZmqLink> publish_;
  std::unique_ptr<ZmqLink> router_;
};

// A queue and an agent over a rig, driven by hand.
struct AgentSettings {
  std::string topic = "test";
  ReplayLayout layout = ReplayLayout::kTopic;
  std::size_t max_batches = 1000;
  std::size_t buffer_steps = 100;
  std::size_t buffer_bytes = std::size_t{1} << 30;
  std::size_t max_payload_bytes = std::size_t{64} << 20;
  SequenceNumber first_number = 0;
  PublisherAgent::EncodeFunction encode;  // empty: BatchEncoder
  LogSink log;
  std::function<void(PublisherAgent::Options*)> adjust;  // the rest; may be empty
};

class DrivenPublisher {
 public:
  DrivenPublisher(const AgentSettings& settings, FrameLink* publish, FrameLink* replay);

  PublishResult Publish(KVEventBatch batch);
  PublishResult PublishChunk(StateChunk chunk) { return queue.PushChunk(&chunk); }
  void PublishMany(std::size_t batches);
  // DoWork until there is nothing to do.
  void Drain();
  void Turn() { agent.DoWork(now); }

  // Everything up to the end mark, turning the agent meanwhile; what came, if no end mark does.
  std::vector<Replayed> Replay(FrameLink* dealer, SequenceNumber start);
  std::vector<Replayed> ReadReplay(FrameLink* dealer);
  // `count` live messages, or fewer if they do not come.
  std::vector<Live> ReadLive(FrameLink* subscriber, std::size_t count);

  MonotonicNanos now = 0;
  PublishQueue queue;
  PublisherAgent agent;
  std::uint64_t submitted = 0;
};

// A ZeroMQ client of a publisher's endpoint.
std::unique_ptr<ZmqLink> ConnectTo(const std::shared_ptr<ZmqContext>& context, LinkKind kind,
                                   const std::string& endpoint, const LinkOptions& options = {});

// Publishes empty batches until the subscriber hears one, and drops what it heard. The number of the next batch.
SequenceNumber Join(EventPublisher* publisher, FrameLink* subscriber, SequenceNumber next = 0);

// `count` live messages, or fewer if they do not come in time.
std::vector<Live> ReadLive(FrameLink* subscriber, std::size_t count);
// Everything up to the end mark, or what came in time.
std::vector<Replayed> ReadReplay(FrameLink* dealer);

// Collects log lines. Threads: any.
class LogCapture {
 public:
  LogSink sink();
  std::size_t Count(LogLevel level, std::string_view part) const;

 private:
  struct State;
  std::shared_ptr<State> state_ = MakeState();
  static std::shared_ptr<State> MakeState();
};

}  // namespace kvwire::test
