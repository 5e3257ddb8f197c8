// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/live_link.h"

#include <memory>
#include <vector>

#include <doctest/doctest.h>

#include "tests/unit/subscribe/event_stream_rig.h"

namespace kvwire::test {
namespace {

// Links that are made one after the other.
struct Links {
  std::unique_ptr<FrameLink> Make() {
    made.push_back(std::make_shared<Wire>());
    if (refuse) return nullptr;
    return std::make_unique<ScriptedLink>(made.back());
  }
  Wire& last() { return *made.back(); }

  std::vector<std::shared_ptr<Wire>> made;
  bool refuse = false;
};

TEST_CASE("J8: a connection's end is followed by a new link, when all that it left was read") {
  Links links;
  LiveLink live([&links] { return links.Make(); });
  live.DoWork(0);
  REQUIRE(links.made.size() == 1);
  links.last().peers.connected = 1;
  links.last().inbox = {Live(0), Live(1)};
  CHECK(live.TryReceive());
  links.last().peers.disconnected = 1;
  live.DoWork(0);
  CHECK(links.made.size() == 1);
  CHECK(live.TryReceive());
  CHECK_FALSE(live.TryReceive());
  CHECK(live.peers() == PeerCounts{1, 1, 0});
  live.DoWork(0);
  CHECK(links.made.size() == 2);
  CHECK(live.peers() == PeerCounts{1, 1, 0});
  links.last().peers.connected = 1;
  CHECK(live.peers() == PeerCounts{2, 1, 0});
}

TEST_CASE("C14: what a link connects to by itself after its connection's end is never read") {
  Links links;
  LiveLink live([&links] { return links.Make(); });
  live.DoWork(0);
  links.last().peers = {2, 1, 0};
  links.last().inbox = {Live(5, 1)};
  CHECK_FALSE(live.TryReceive());
  CHECK(live.peers() == PeerCounts{1, 1, 0});
  live.DoWork(kSecond);
  live.DoWork(2 * kSecond);
  CHECK(links.made.size() == 2);
}

TEST_CASE("B12: links that bring nothing are made ever less often") {
  Links links;
  SUBCASE("because none can be made") { links.refuse = true; }
  SUBCASE("because their connections end at once") {}
  LiveLink live([&links] { return links.Make(); });
  std::vector<MonotonicNanos> times;
  for (MonotonicNanos now = 0; now < 60 * kSecond; now += LiveLink::kFirstPause / 2) {
    const std::size_t before = links.made.size();
    live.DoWork(now);
    if (links.made.size() > before) times.push_back(now);
    links.last().peers = {1, 1, 0};
    live.TryReceive();
  }
  CHECK(times.size() < 20);
  CHECK(times.back() - times[times.size() - 2] >= LiveLink::kLongestPause);
}

TEST_CASE("C21: a link to where a name was is given up when nobody is there, and one with a connection is not") {
  Links links;
  LiveLink live([&links] { return links.Make(); }, 10 * kSecond);
  live.DoWork(0);
  live.DoWork(9 * kSecond);
  CHECK(links.made.size() == 1);
  live.DoWork(10 * kSecond);
  live.DoWork(10 * kSecond + LiveLink::kFirstPause);
  REQUIRE(links.made.size() == 2);
  links.last().peers.connected = 1;
  live.DoWork(100 * kSecond);
  CHECK(links.made.size() == 2);
}

TEST_CASE("a link that is given is kept, whatever happens to its connections") {
  const auto wire = std::make_shared<Wire>();
  LiveLink live(std::make_unique<ScriptedLink>(wire));
  wire->peers = {3, 2, 0};
  wire->inbox = {Live(0)};
  live.DoWork(0);
  live.Renew(0);
  CHECK(live.TryReceive());
  CHECK(live.peers() == PeerCounts{3, 2, 0});
  CHECK_FALSE(live.renewable());
}

// A stream whose live link is made anew for each connection.
struct RenewedRig : Rig {
  RenewedRig() {
    EventStreamOptions options;
    options.gate = gate;
    hello = Hello();
    hello->epoch = 7;
    stream =
        std::make_unique<EventStream>([this] { return links.Make(); }, [this] { return NewAttempt(); }, options, &sink);
    Work();
  }
  Lines Receive(const std::vector<InFrames>& messages, MonotonicNanos now) {
    for (const InFrames& message : messages) links.last().inbox.push_back(message);
    return Work(now);
  }
  void Publish(SequenceNumber next) {
    hello->next = next;
    hello->oldest = 0;
  }

  Links links;
};

const StreamStatus kSynchronised{StreamState::kSynchronised, "every number was applied"};

TEST_CASE("C21: a publisher that is absent, comes, goes and comes back is followed each time") {
  RenewedRig rig;
  CHECK(rig.Work(5 * kSecond) == Lines{});
  CHECK(rig.stream->status() == StreamStatus{StreamState::kConnecting, "not connected yet"});
  rig.links.last().peers.connected = 1;
  CHECK(rig.Receive({}, 5 * kSecond) == Lines{"confirmed"});
  CHECK(rig.Receive({Live(0)}, 5 * kSecond) == Lines{"live 0"});
  CHECK(rig.stream->status() == kSynchronised);
  rig.Publish(1);
  for (MonotonicNanos now = 10 * kSecond; now < 40 * kSecond; now += 10 * kSecond) {
    rig.links.last().peers.disconnected = 1;
    CHECK(rig.Work(now) == Lines{"interrupted"});
    CHECK(rig.stream->status().state == StreamState::kSuspect);
    rig.Work(now + kSecond);
    rig.Work(now + 5 * kSecond);
    rig.links.last().peers.connected = 1;
    CHECK(rig.Work(now + 5 * kSecond) == Lines{"confirmed"});
    CHECK(rig.stream->status() == kSynchronised);
  }
  SUBCASE("also as another life, whose messages are surely its own") {
    rig.links.last().peers.disconnected = 1;
    CHECK(rig.Work(50 * kSecond) == Lines{"interrupted"});
    rig.Work(51 * kSecond);
    rig.Work(56 * kSecond);
    rig.hello->epoch = 8;
    rig.Publish(2);
    rig.links.last().peers.connected = 1;
    CHECK(rig.Receive({Live(1, 1)}, 56 * kSecond) == Lines{"restart 0 by replay", "recovery 0-0"});
    CHECK(rig.stream->stats().left_out == 0);
    rig.Answer({ReplayWithTopic(0, 1), EndWithTopic()});
    CHECK(rig.Work(56 * kSecond) == Lines{"replay 0", "joined 0-0", "live 1", "confirmed"});
  }
  SUBCASE("a message that cannot be read ends nothing") {
    rig.Publish(3);
    CHECK(rig.Receive({{ToBytes("kv"), SequenceBytes(1), {0xc1}}, Live(2)}, 50 * kSecond) ==
          Lines{"undecodable 1", "live 2"});
    CHECK(rig.stream->status().state == StreamState::kSuspect);
  }
}

TEST_CASE("J5: a connection that is dead without having ended is replaced, and the stream recovers by itself") {
  RenewedRig rig;
  rig.hello->heartbeat_interval_ms = 1000;
  rig.links.last().peers.connected = 1;
  rig.Publish(1);
  rig.Receive({Live(0)}, 0);
  CHECK(rig.links.made.size() == 1);
  rig.Publish(3);
  CHECK(rig.Work(3 * kSecond) == Lines{"interrupted"});
  CHECK(rig.stream->status().state == StreamState::kSuspect);
  REQUIRE(rig.links.made.size() == 2);
  rig.links.last().peers.connected = 1;
  CHECK(rig.Work(3 * kSecond) == Lines{});
  rig.Answer({ReplayWithTopic(1), ReplayWithTopic(2), EndWithTopic()});
  CHECK(rig.Work(3 * kSecond) == Lines{"replay 1", "replay 2", "confirmed"});
  CHECK(rig.stream->status() == kSynchronised);
  CHECK(rig.stream->stats().renewed == 1);
}

TEST_CASE("J8: a link that brings nothing although the publisher sends is replaced") {
  RenewedRig rig;
  rig.links.last().peers.connected = 1;
  rig.Publish(1);
  rig.Receive({Live(0)}, 0);
  rig.Work(5 * kSecond);
  rig.Publish(3);
  rig.Work(10 * kSecond);
  CHECK(rig.links.made.size() == 1);
  CHECK(rig.Work(11 * kSecond) == Lines{"interrupted"});
  REQUIRE(rig.links.made.size() == 2);
  rig.links.last().peers.connected = 1;
  rig.Work(11 * kSecond);
  rig.Answer({ReplayWithTopic(1), ReplayWithTopic(2), EndWithTopic()});
  CHECK(rig.Work(11 * kSecond) == Lines{"replay 1", "replay 2", "confirmed"});
  CHECK(rig.stream->status() == kSynchronised);
}

TEST_CASE("J8: the link of an idle publisher is kept, whatever its replay does not answer") {
  RenewedRig rig;
  rig.links.last().peers.connected = 1;
  SUBCASE("nothing came live") { rig.Publish(4); }
  SUBCASE("it is idle since") {
    rig.Publish(4);
    rig.Receive({Live(0)}, 0);
  }
  MonotonicNanos now = 0;
  for (; now < 120 * kSecond || (now < 600 * kSecond && rig.stream->links()[1] == nullptr); now += kSecond / 4) {
    rig.Work(now);
  }
  CHECK(rig.links.made.size() == 1);
  CHECK(rig.stream->stats().renewed == 0);
  CHECK(rig.stream->status().replay_silent);
  rig.Answer({ReplayWithTopic(0), ReplayWithTopic(1), ReplayWithTopic(2), ReplayWithTopic(3), EndWithTopic()});
  rig.Work(now);
  CHECK(rig.stream->status().state == StreamState::kSynchronised);
}

TEST_CASE("J5: a link that stays mute is replaced ever less often") {
  RenewedRig rig;
  rig.hello->heartbeat_interval_ms = 1000;
  for (MonotonicNanos now = 0; now < 600 * kSecond; now += kSecond / 4) {
    rig.links.last().peers.connected = 1;
    rig.Work(now);
  }
  CHECK(rig.stream->stats().renewed < 12);
  CHECK(rig.stream->stats().renewed > 4);
}

}  // namespace
}  // namespace kvwire::test
