// SPDX-License-Identifier: Apache-2.0
// EventStream and a publisher that answers a hello: epochs instead of bytes, lost tails, digests, heartbeats.
#include <cstdint>
#include <optional>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/subscribe/event_stream.h"
#include "tests/unit/subscribe/event_stream_rig.h"

namespace kvwire::test {
namespace {

const DigestEntries kOneBlock{{0, "GPU", 1, 42}};
const DigestEntries kTwoBlocks{{0, "GPU", 2, 99}};

// A connected stream of a publisher that says who it is, with messages 0 to `count` - 1 applied.
struct KnownRig : Rig {
  explicit KnownRig(SequenceNumber count, EventStreamOptions options = {}) : Rig(true, options) {
    hello = HelloOf(count);
    live->peers.connected = 1;
    for (SequenceNumber i = 0; i < count; ++i) live->inbox.push_back(Live(i));
    Work();
  }
  // The connection ends and a new one is made, to a publisher that says this.
  Lines Reconnect(const Hello& answer, const std::vector<InFrames>& messages = {}) {
    hello = answer;
    ++live->peers.disconnected;
    Work();
    ++live->peers.connected;
    return See(messages);
  }
  StreamStatus status() const { return stream->status(); }
};

const StreamStatus kSynchronised{StreamState::kSynchronised, "every number was applied"};

TEST_CASE("with the first connection a publisher is asked who it is, and nothing else when nothing is missing") {
  Rig rig;
  rig.live->peers.connected = 1;
  SUBCASE("it has sent nothing: what is held is all there is") {
    rig.hello = HelloOf(0);
    CHECK(rig.Work() == Lines{"confirmed"});
    CHECK(rig.stream->status() == kByAnswers);
  }
  SUBCASE("all it sent came live") {
    rig.hello = HelloOf(2);
    CHECK(rig.See({Live(0), Live(1)}) == Lines{"live 0", "live 1", "confirmed"});
    CHECK(rig.stream->status() == kSynchronised);
  }
  CHECK(rig.attempts.empty());
  CHECK(rig.hellos == 1);
  CHECK(rig.stream->epoch() == 7);
}

TEST_CASE("C19: what a publisher sent before the first connection is replayed") {
  Rig rig;
  rig.live->peers.connected = 1;
  rig.hello = HelloOf(2);
  CHECK(rig.Work() == Lines{});
  CHECK(rig.stream->status().state == StreamState::kRecovering);
  REQUIRE(rig.attempts.size() == 1);
  rig.Answer({ReplayWithTopic(0)});
  CHECK(rig.Work() == Lines{"replay 0"});
  CHECK(rig.stream->status().state == StreamState::kRecovering);
  rig.Answer({ReplayWithTopic(1), EndWithTopic()});
  CHECK(rig.Work() == Lines{"replay 1", "confirmed"});
  CHECK(rig.stream->status() == kByAnswers);
}

TEST_CASE("the first number is the one the publisher tells") {
  Rig rig;
  rig.live->peers.connected = 1;
  rig.hello = HelloOf(1);
  rig.hello->first = rig.hello->next = 1;
  CHECK(rig.Work() == Lines{"confirmed"});
  CHECK(rig.See({Live(1)}) == Lines{"live 1"});
  CHECK(rig.stream->status() == kSynchronised);
}

TEST_CASE("C14: after a lost connection the epoch tells the life, without a comparison of bytes") {
  KnownRig rig(3);
  SUBCASE("the same life, nothing was missed") {
    CHECK(rig.Reconnect(HelloOf(3)) == Lines{"confirmed"});
    CHECK(rig.attempts.empty());
  }
  SUBCASE("the same life, something was missed") {
    CHECK(rig.Reconnect(HelloOf(5)) == Lines{});
    CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(3)}});
    rig.Answer({ReplayWithTopic(3), ReplayWithTopic(4), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 3", "replay 4", "confirmed"});
  }
  SUBCASE("the same life, and live messages came meanwhile") {
    CHECK(rig.Reconnect(HelloOf(6), {Live(5)}) == Lines{"confirmed", "recovery 3-4"});
    rig.Answer({ReplayWithTopic(3), ReplayWithTopic(4), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 3", "replay 4", "healed 3-4", "live 5"});
  }
  SUBCASE("another life that passed the old numbers, and whose replay has the last one") {
    CHECK(rig.Reconnect(HelloOf(10, 8), {Live(9, 1)}) == Lines{"restart 2 by replay"});
    CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(0)}});
    for (SequenceNumber i = 0; i < 10; ++i) rig.Answer({ReplayWithTopic(i, 1)});
    rig.Answer({EndWithTopic()});
    CHECK(rig.Work().back() == "confirmed");
    CHECK(rig.stream->next() == 10);
  }
  SUBCASE("another life with the same messages") {
    CHECK(rig.Reconnect(HelloOf(3, 8)) == Lines{"restart 2 by replay"});
    rig.Answer({ReplayWithTopic(0), ReplayWithTopic(1), ReplayWithTopic(2), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 0", "replay 1", "replay 2", "confirmed"});
  }
  SUBCASE("another life that sent nothing yet") {
    CHECK(rig.Reconnect(HelloOf(0, 8)) == Lines{"restart 2 by replay", "confirmed"});
    CHECK(rig.stream->epoch() == 8);
  }
  CHECK(rig.status().state == StreamState::kSynchronised);
}

TEST_CASE("C14: a publisher that no longer answers a hello is told by its bytes, as one that never did") {
  KnownRig rig(3);
  rig.silent_to_hello = true;
  CHECK(rig.Reconnect(HelloOf(3)) == Lines{});
  CHECK(rig.attempts.empty());
  CHECK(rig.Work(2 * kSecond) == Lines{});
  CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(2)}});
  rig.Answer({ReplayWithTopic(2), EndWithTopic()});
  CHECK(rig.Work(2 * kSecond) == Lines{"confirmed"});
}

TEST_CASE("C14: what waits while a hello runs is not applied when the stream ends") {
  KnownRig rig(3);
  rig.silent_to_hello = true;
  CHECK(rig.Reconnect(HelloOf(3), {Live(3, 1)}) == Lines{});
  rig.stream->Finish();
  CHECK(rig.sink.Take() == Lines{"unconfirmed"});
  CHECK(rig.stream->stats().left_out == 1);
}

TEST_CASE("C14: a restart that no connection shows is seen by the next check") {
  KnownRig rig(3);
  rig.hello = HelloOf(9, 8);
  CHECK(rig.Work(5 * kSecond) == Lines{"restart 2 by replay"});
  CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(0)}});
}

TEST_CASE("C12: what the publisher has sent by its own word and did not come is not synchronised") {
  KnownRig rig(3);
  CHECK(rig.Reconnect(HelloOf(6)) == Lines{});
  CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(3)}});
  CHECK(rig.status() == StreamStatus{StreamState::kRecovering, "the publisher is asked what was missed"});
  SUBCASE("the replay brings it") {
    rig.Answer({ReplayWithTopic(3), ReplayWithTopic(4)});
    CHECK(rig.Work() == Lines{"replay 3", "replay 4"});
    CHECK(rig.status().state == StreamState::kRecovering);
    rig.Answer({ReplayWithTopic(5), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 5", "confirmed"});
  }
  SUBCASE("nobody answers, and it comes live") {
    Lines said;
    for (int i = 1; i <= 30 && said.empty(); ++i) said = rig.Work(i * kSecond);
    CHECK(said == Lines{"unconfirmed"});
    CHECK(rig.status().Reason() == "the publisher has sent messages that did not come; the replay does not answer");
    CHECK(rig.See({Live(3), Live(4), Live(5)}, 31 * kSecond) == Lines{"live 3", "live 4", "live 5"});
  }
  CHECK(rig.status() == kSynchronised);
}

TEST_CASE("C12: a lost tail shows at the next check, and is replayed") {
  KnownRig rig(3);
  rig.hello = HelloOf(5);
  CHECK(rig.Work(5 * kSecond - 1) == Lines{});
  CHECK(rig.hellos == 1);
  CHECK(rig.Work(5 * kSecond) == Lines{});
  CHECK(rig.hellos == 2);
  SUBCASE("it was only on its way") {
    CHECK(rig.See({Live(3), Live(4)}, 5 * kSecond) == Lines{"live 3", "live 4"});
    CHECK(rig.Work(6 * kSecond) == Lines{});
    CHECK(rig.attempts.empty());
  }
  SUBCASE("it was lost") {
    CHECK(rig.Work(6 * kSecond) == Lines{"recovery 3-4"});
    rig.Answer({ReplayWithTopic(3), ReplayWithTopic(4), EndWithTopic()});
    CHECK(rig.Work(6 * kSecond) == Lines{"replay 3", "replay 4", "healed 3-4"});
  }
  CHECK(rig.status() == kSynchronised);
}

TEST_CASE("checks can be turned off, and end with a publisher that answers none") {
  EventStreamOptions options;
  SUBCASE("off") {
    options.check_interval = 0;
    KnownRig rig(3, options);
    rig.Work(1000 * kSecond);
    CHECK(rig.hellos == 1);
  }
  SUBCASE("not a kvwire publisher") {
    WatchedRig rig(3);
    CHECK(rig.hellos == 1);
    rig.Work(1000 * kSecond);
    CHECK(rig.hellos == 1);
  }
}

TEST_CASE("a publisher that stops to answer makes the stream suspect until it does, and is asked ever less often") {
  KnownRig rig(3);
  rig.silent_to_hello = true;
  std::vector<MonotonicNanos> asked;
  for (MonotonicNanos now = 0; now < 600 * kSecond; now += kSecond) {
    const int before = rig.hellos;
    rig.Work(now);
    if (rig.hellos > before) asked.push_back(now / kSecond);
  }
  CHECK(asked.size() < 14);
  CHECK(asked[1] - asked[0] == 12);                         // 2 s of silence and twice the interval
  CHECK(asked.back() - asked[asked.size() - 2] == 60 + 2);  // the longest pause
  CHECK(rig.status() == StreamStatus{StreamState::kSuspect, "the publisher no longer answers"});
  rig.silent_to_hello = false;
  rig.Work(700 * kSecond);
  CHECK(rig.status() == kSynchronised);
}

TEST_CASE("a digest that differs makes the stream unsynchronised, one that matches synchronised") {
  KnownRig rig(3);
  rig.sink.digest = kOneBlock;
  rig.hello->digest = kTwoBlocks;
  rig.Work(5 * kSecond);
  CHECK(rig.status() == StreamStatus{StreamState::kUnsynchronised, "digest differs"});
  CHECK(rig.stream->stats().digests_differed == 1);
  rig.sink.digest = kTwoBlocks;
  rig.Work(10 * kSecond);
  CHECK(rig.status() == kSynchronised);
  CHECK(rig.stream->stats().digests_compared == 2);
}

TEST_CASE("a digest is compared at its number") {
  KnownRig rig(3);
  rig.sink.digest = kOneBlock;
  rig.hello = HelloOf(4);
  rig.hello->digest = kTwoBlocks;
  rig.Work(5 * kSecond);
  CHECK(rig.stream->stats().digests_compared == 0);
  SUBCASE("which comes later") {
    rig.sink.digest = kTwoBlocks;
    rig.See({Live(3), Live(4)}, 5 * kSecond);
    CHECK(rig.stream->stats().digests_compared == 1);
    CHECK(rig.status() == kSynchronised);
  }
  SUBCASE("or was passed before the answer came") {
    rig.See({Live(3), Live(4), Live(5)}, 5 * kSecond);
    CHECK(rig.stream->stats().digests_compared == 1);
    rig.Work(10 * kSecond);
    CHECK(rig.stream->stats().digests_compared == 1);
  }
}

TEST_CASE("C12: an event or a message that cannot be read makes the stream suspect until the digests match") {
  KnownRig rig(3);
  rig.sink.digest = kOneBlock;
  rig.hello = HelloOf(5);
  rig.hello->digest = kOneBlock;
  CHECK(rig.See({{ToBytes("kv"), SequenceBytes(3), {0xc1}}, Live(4)}) == Lines{"undecodable 3", "live 4"});
  CHECK(rig.status() == StreamStatus{StreamState::kSuspect, "an event or a message could not be read"});
  rig.Work(5 * kSecond);
  CHECK(rig.status() == kSynchronised);
}

TEST_CASE("J5: a publisher of heartbeats that is not heard for three of them is suspect until it is heard") {
  Rig rig;
  rig.live->peers.connected = 1;
  rig.hello = HelloOf(1);
  rig.hello->heartbeat_interval_ms = 1000;
  rig.See({Live(0)});
  rig.Work(3 * kSecond - 1);
  CHECK(rig.stream->status() == kSynchronised);
  rig.Work(3 * kSecond);
  CHECK(rig.stream->status() == StreamStatus{StreamState::kSuspect, "no heartbeat for three intervals"});
  rig.See({Live(1)}, 4 * kSecond);
  CHECK(rig.stream->status() == kSynchronised);
  CHECK(rig.sink.states == Lines{"synchronised: every number was applied", "suspect: no heartbeat for three intervals",
                                 "synchronised: every number was applied"});
}

TEST_CASE("several publishers on one link are not synchronised, whatever their numbers") {
  KnownRig rig(3);
  ++rig.live->peers.connected;
  CHECK(rig.See({Live(3)}) == Lines{"several", "live 3", "confirmed"});
  CHECK(rig.status() == StreamStatus{StreamState::kUnsynchronised, "several publishers feed this stream"});
}

TEST_CASE("C13: a restart voids what is held before its first message is applied, with and without replay") {
  for (const bool with_replay : {false, true}) {
    Rig rig(with_replay);
    rig.See({Live(0), Live(1), Live(2)});
    CHECK(rig.stream->status() == kSynchronised);
    CHECK(rig.See({Live(0, 1)}) == Lines{"restart 2 0", "live 0"});
    CHECK(rig.stream->status() == kSynchronised);
  }
}

TEST_CASE("C17: a stream that is made again for the same publisher takes nothing over") {
  for (int life = 0; life < 2; ++life) {
    Rig rig;
    CHECK(rig.stream->status().state == StreamState::kConnecting);
    CHECK(rig.stream->next() == 0);
    CHECK(rig.See({Live(5)}) == Lines{"recovery 0-4"});
  }
}

TEST_CASE("C15: each stream has its own numbers: a gap of one rank is not one of the other") {
  Rig first(false);
  Rig second(false);
  for (SequenceNumber i = 0; i < 3; ++i) {
    first.See({Live(i)});
    if (i != 1) second.See({Live(i)});
  }
  CHECK(first.stream->status() == kSynchronised);
  CHECK(second.stream->status() == StreamStatus{StreamState::kUnsynchronised, "messages are missing"});
}

}  // namespace
}  // namespace kvwire::test
