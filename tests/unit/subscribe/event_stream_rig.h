// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kv_events/subscribe/event_stream.h"
#include "tests/unit/subscribe/stream_fixture.h"

namespace kvwire::test {

inline constexpr MonotonicNanos kSecond = 1'000'000'000;
using Lines = std::vector<std::string>;

// A stream over scripted links: `live` and, for every replay attempt, a new entry of `attempts`.
struct Rig {
  explicit Rig(bool with_replay = true, EventStreamOptions options = {}) {
    ReplayLinkFactory factory;
    if (with_replay) {
      factory = [this]() -> std::unique_ptr<FrameLink> {
        attempts.push_back(std::make_shared<Wire>());
        attempts.back()->send_result = replay_send;
        return std::make_unique<ScriptedLink>(attempts.back());
      };
    }
    stream = std::make_unique<EventStream>(std::make_unique<ScriptedLink>(live), factory, options, &sink);
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
    for (const InFrames& message : messages) attempts.back()->inbox.push_back(message);
  }

  std::shared_ptr<Wire> live = std::make_shared<Wire>();
  std::vector<std::shared_ptr<Wire>> attempts;
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

}  // namespace kvwire::test
