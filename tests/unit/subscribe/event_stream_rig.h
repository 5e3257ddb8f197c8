// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/subscribe/event_stream.h"
#include "tests/unit/subscribe/stream_fixture.h"

namespace kvwire::test {

inline constexpr MonotonicNanos kSecond = 1'000'000'000;
using Lines = std::vector<std::string>;

// A stream over scripted links: `live` and, for every replay attempt, a new entry of `attempts`; for every snapshot
// that is asked for, one of `snapshots`. A hello is answered by `hello`, or as by a publisher that knows none.
struct Rig {
  explicit Rig(bool with_replay = true, EventStreamOptions options = {}) {
    ReplayLinkFactory factory;
    if (with_replay) {
      factory = [this] { return NewAttempt(); };
    }
    options.gate = gate;
    stream = std::make_unique<EventStream>(std::make_unique<ScriptedLink>(live), factory, options, &sink);
  }

  std::unique_ptr<FrameLink> NewAttempt() {
    auto wire = std::make_shared<Wire>();
    wire->send_result = replay_send;
    attempts.push_back(wire);
    auto link = std::make_unique<ScriptedLink>(wire);
    wire->on_send = [this, wire = wire.get(), link = link.get()] { Sort(wire, link); };
    return link;
  }

  // What is no request for replay is no attempt.
  void Sort(const Wire* asked, const FrameLink* link) {
    const auto place = std::ranges::find(attempts, asked, [](const auto& wire) { return wire.get(); });
    const std::shared_ptr<Wire> wire = *place;
    const std::optional<ExtensionRequest> request = ParseExtensionRequest(wire->sent.back()[1]);
    const bool proof = stream->links()[4] == link;
    if (!request && !proof) return;
    attempts.erase(place);
    if (proof) {
      proofs.push_back(wire);
      return;
    }
    if (request->kind == ExtensionKind::kSnapshot) {
      snapshots.push_back(wire);
      return;
    }
    ++hellos;
    hello_wire = wire;
    if (silent_to_hello) return;
    if (hello) {
      Bytes payload;
      EncodeHello(*hello, &payload);
      wire->inbox.push_back({{}, ToBytes(kHelloName), SequenceBytes(hello->next), payload});
    }
    wire->inbox.push_back(EndWithTopic());
  }

  // Puts live messages in and lets the stream work until it has nothing to do. Returns what the sink was told.
  Lines See(const std::vector<InFrames>& messages, MonotonicNanos now = 0) {
    for (const InFrames& message : messages) live->inbox.push_back(message);
    return Work(now);
  }
  Lines Work(MonotonicNanos now = 0) {
    while (stream->DoWork(now) > 0) {
    }
    return sink.Take();
  }
  void Answer(const std::vector<InFrames>& messages) {
    REQUIRE_FALSE(attempts.empty());
    for (const InFrames& message : messages) attempts.back()->inbox.push_back(message);
  }
  void AnswerProof(const InFrames& message) {
    REQUIRE_FALSE(proofs.empty());
    proofs.back()->inbox.push_back(message);
  }
  void AnswerSnapshot(const std::vector<InFrames>& messages) {
    REQUIRE_FALSE(snapshots.empty());
    for (const InFrames& message : messages) snapshots.back()->inbox.push_back(message);
  }

  std::shared_ptr<Wire> live = std::make_shared<Wire>();
  std::shared_ptr<ReplayGate> gate = std::make_shared<ReplayGate>();
  std::vector<std::shared_ptr<Wire>> attempts;
  std::vector<std::shared_ptr<Wire>> proofs;  // of live messages that a replay is asked for, to compare
  std::vector<std::shared_ptr<Wire>> snapshots;
  std::optional<Hello> hello;  // what the publisher says of itself
  bool silent_to_hello = false;
  std::shared_ptr<Wire> hello_wire;  // of the last one asked
  int hellos = 0;                    // asked
  SendResult replay_send = SendResult::kSent;
  LineSink sink;
  std::unique_ptr<EventStream> stream;
};

// A stream whose live link watches its peers, connected, with messages 0 to `count` - 1 applied.
struct WatchedRig : Rig {
  explicit WatchedRig(SequenceNumber count, bool with_replay = true, EventStreamOptions options = {})
      : Rig(with_replay, options) {
    Connect();
    for (SequenceNumber i = 0; i < count; ++i) live->inbox.push_back(Live(i));
    Work();
    if (with_replay) {
      Answer({EndWithTopic()});
      Work();
    }
  }
  void Connect() { ++live->peers.connected; }
  void Disconnect() { ++live->peers.disconnected; }
};

inline const StreamStatus kByAnswers{
    StreamState::kSynchronised, "every number was applied, by the replay address's word alone: nothing came live yet"};

// Of a publisher whose numbers begin with 0 and that keeps them all.
inline Hello HelloOf(SequenceNumber next, std::uint64_t epoch = 7) {
  Hello hello;
  hello.epoch = epoch;
  hello.next = next;
  if (next > 0) hello.oldest = 0;
  return hello;
}

}  // namespace kvwire::test
