// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "kv_events/batch.h"
#include "kv_events/subscribe/event_stream.h"
#include "kv_events/subscribe/stream_sink.h"
#include "kv_events/transport/frame_link.h"
#include "kv_events/wire/encoder.h"
#include "kv_events/wire/extensions.h"
#include "kv_events/wire/frames.h"

namespace kvwire::test {

using Bytes = std::vector<std::uint8_t>;

inline Bytes ToBytes(std::string_view text) { return Bytes(text.begin(), text.end()); }

inline Bytes SequenceBytes(SequenceNumber number) {
  const SequenceFrame frame = EncodeSequence(number);
  return Bytes(frame.begin(), frame.end());
}

// What the two ends of a ScriptedLink share: the test fills `inbox` and reads `sent`.
struct Wire {
  std::deque<InFrames> inbox;
  std::vector<InFrames> sent;
  SendResult send_result = SendResult::kSent;
  PeerCounts peers;
  std::function<void()> on_receive;  // called when a message is taken
  std::function<void()> on_send;     // called when a message was sent
};

// A link over a Wire.
class ScriptedLink final : public FrameLink {
 public:
  explicit ScriptedLink(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}

  SendResult TrySend(std::span<const OutFrame> frames) noexcept override {
    if (wire_->send_result != SendResult::kSent) return wire_->send_result;
    InFrames copy;
    for (const OutFrame& frame : frames) copy.emplace_back(frame.bytes.begin(), frame.bytes.end());
    wire_->sent.push_back(std::move(copy));
    if (wire_->on_send) wire_->on_send();
    return SendResult::kSent;
  }

  std::optional<InFrames> TryReceive() override {
    if (wire_->inbox.empty()) return std::nullopt;
    InFrames frames = std::move(wire_->inbox.front());
    wire_->inbox.pop_front();
    if (wire_->on_receive) wire_->on_receive();
    return frames;
  }

  PeerCounts peers() noexcept override { return wire_->peers; }

  std::string endpoint() const override { return "test"; }

 private:
  const std::shared_ptr<Wire> wire_;
};

// Writes what it is told as lines, e.g. "live 3", "replay 4", "gap 5-6 not in the replay", "gap 0-3 late ...".
class LineSink final : public StreamSink {
 public:
  void OnBatch(const StreamMessage& message, const DecodedBatch& batch) override {
    lines.push_back(fmt::format("{} {}", message.origin == MessageOrigin::kLive ? "live" : "replay", message.sequence));
    topics.emplace_back(message.topic);
    events += batch.batch.size();
  }
  void OnUndecodable(const StreamMessage& message, const DecodeError&) override {
    lines.push_back(fmt::format("undecodable {}", message.sequence));
  }
  void OnRecovery(SequenceNumber from, SequenceNumber to) override {
    lines.push_back(fmt::format("recovery {}-{}", from, to));
  }
  void OnJoined(SequenceNumber from, SequenceNumber to) override {
    lines.push_back(fmt::format("joined {}-{}", from, to));
  }
  void OnHealed(SequenceNumber from, SequenceNumber to) override {
    lines.push_back(fmt::format("healed {}-{}", from, to));
  }
  void OnGap(const StreamGap& gap) override {
    lines.push_back(
        fmt::format("gap {}-{} {}{}", gap.from, gap.to, gap.joined_late ? "late: " : "", ToString(gap.reason)));
  }
  void OnRestart(SequenceNumber last, std::optional<SequenceNumber> first_seen) override {
    lines.push_back(fmt::format("restart {} {}", last, first_seen ? std::to_string(*first_seen) : "by replay"));
  }
  void OnContinuity(Continuity continuity) override {
    static constexpr const char* kWords[] = {"interrupted", "confirmed", "unconfirmed", "forgotten", "several"};
    lines.emplace_back(kWords[static_cast<int>(continuity)]);
  }
  void OnContradiction(SequenceNumber number, Contradiction contradiction) override {
    static constexpr const char* kWords[] = {"differs", "behind", "back"};
    lines.push_back(fmt::format("contradiction {} {}", number, kWords[static_cast<int>(contradiction)]));
  }
  void OnMalformed(std::size_t frame_count) override { lines.push_back(fmt::format("malformed {}", frame_count)); }
  void OnOtherTopic(SequenceNumber number) override { lines.push_back(fmt::format("other topic {}", number)); }
  void OnTopicUnknown() override { lines.emplace_back("topic unknown"); }
  void OnSnapshotBegin(SequenceNumber first) override { lines.push_back(fmt::format("snapshot from {}", first)); }
  void OnSnapshotChunk(SequenceNumber number, const DecodedBatch& chunk) override {
    lines.push_back(fmt::format("chunk {} of {}", number, chunk.batch.size()));
  }
  void OnSnapshotEnd(SequenceNumber next, const std::optional<DigestEntries>&) override {
    lines.push_back(fmt::format("snapshot to {}", next));
  }
  void OnSnapshotAbandoned() override { lines.emplace_back("snapshot abandoned"); }
  std::optional<DigestEntries> HeldDigest() const override { return digest; }
  void OnState(const StreamStatus& status) override {
    states.push_back(fmt::format("{}: {}", ToString(status.state), status.reason));
  }

  // The lines since the last call.
  std::vector<std::string> Take() { return std::exchange(lines, {}); }

  std::vector<std::string> lines;
  std::vector<std::string> topics;
  std::vector<std::string> states;
  std::optional<DigestEntries> digest;  // what it says it holds
  std::size_t events = 0;
};

// A batch that stores one block with this hash.
inline KVEventBatch OneBlock(std::uint64_t hash) {
  const BlockHash block = BlockHash::FromUint64(hash);
  const std::vector<TokenId> tokens{1, 2};
  BlockStored stored;
  stored.block_hashes = {&block, 1};
  stored.token_ids = tokens;
  stored.block_size = 2;
  KVEventBatch batch;
  batch.ts = 1.5;
  batch.data_parallel_rank = 0;
  batch.Add(stored);
  return batch;
}

inline Bytes Encode(const KVEventBatch& batch) {
  Bytes payload;
  BatchEncoder(KVEventsConfig::Extensions()).Encode(batch, &payload);
  return payload;
}

// The payload of message `number` of life `life`.
inline Bytes Payload(SequenceNumber number, std::uint64_t life = 0) {
  return Encode(OneBlock(1 + number + (life << 32)));
}

inline InFrames Live(SequenceNumber number, std::uint64_t life = 0) {
  return {ToBytes("kv"), SequenceBytes(number), Payload(number, life)};
}
inline InFrames ReplayWithTopic(SequenceNumber number, std::uint64_t life = 0) {
  return {{}, ToBytes("kv"), SequenceBytes(number), Payload(number, life)};
}
inline InFrames ReplayLegacy(SequenceNumber number) { return {{}, SequenceBytes(number), Payload(number)}; }
inline InFrames EndWithTopic() { return {{}, {}, SequenceBytes(kEndOfReplay), {}}; }
// The pieces of a snapshot: a chunk with a block of each hash, and its end.
inline InFrames Chunk(SequenceNumber number, const std::vector<std::uint64_t>& hashes) {
  KVEventBatch blocks;
  blocks.ts = 1.5;
  blocks.data_parallel_rank = 0;
  for (const std::uint64_t hash : hashes) {
    const BlockHash block = BlockHash::FromUint64(hash);
    const std::vector<TokenId> tokens{1, 2};
    BlockStored stored;
    stored.block_hashes = {&block, 1};
    stored.token_ids = tokens;
    stored.block_size = 2;
    blocks.Add(stored);
  }
  return {{}, ToBytes(kChunkName), SequenceBytes(number), Encode(blocks)};
}
inline InFrames SnapshotEnd(SequenceNumber next, const DigestEntries& digest = {}) {
  Bytes payload;
  EncodeDigest(digest, &payload);
  return {{}, ToBytes(kSnapshotEndName), SequenceBytes(next), payload};
}
// What the stream says without what it was refused.
inline StreamStatus PlainStatus(const EventStream& stream) { return {stream.status().state, stream.status().reason}; }
inline InFrames EndLegacy() { return {{}, SequenceBytes(kEndOfReplay), {}}; }

}  // namespace kvwire::test
