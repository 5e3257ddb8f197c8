// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/event_stream.h"

#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/subscribe/stream_checker.h"
#include "tests/unit/subscribe/stream_fixture.h"

namespace kvwire::test {
namespace {

constexpr MonotonicNanos kSecond = 1'000'000'000;
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

TEST_CASE("messages in order are applied as they come") {
  Rig rig;
  CHECK(rig.See({Live(0), Live(1), Live(2)}) == Lines{"live 0", "live 1", "live 2"});
  CHECK(rig.attempts.empty());
  CHECK(rig.sink.topics == Lines{"kv", "kv", "kv"});
  CHECK(rig.stream->stats().applied == 3);
}

TEST_CASE("a live message that comes twice is ignored") {
  Rig rig;
  CHECK(rig.See({Live(0), Live(1), Live(1), Live(2)}) == Lines{"live 0", "live 1", "live 2"});
  CHECK(rig.stream->stats().duplicates == 1);
}

TEST_CASE("C1: a gap is healed by a replay in either layout, even mixed in one answer") {
  const std::vector<std::vector<InFrames>> answers{
      {ReplayWithTopic(1), ReplayWithTopic(2), EndWithTopic()},
      {ReplayLegacy(1), ReplayLegacy(2), EndLegacy()},
      {ReplayWithTopic(1), ReplayLegacy(2), EndLegacy()},
  };
  for (const auto& answer : answers) {
    Rig rig;
    CHECK(rig.See({Live(0), Live(3)}) == Lines{"live 0", "recovery 1-2"});
    CHECK(rig.stream->recovering());
    rig.Answer(answer);
    CHECK(rig.Work() == Lines{"replay 1", "replay 2", "healed 1-2", "live 3"});
    CHECK_FALSE(rig.stream->recovering());
    CHECK(rig.sink.topics == Lines{"kv", "kv", "kv", "kv"});
    CHECK(rig.See({Live(4)}) == Lines{"live 4"});
    CHECK(rig.stream->stats().healed == 1);
    CHECK(rig.stream->stats().gaps == 0);
  }
}

TEST_CASE("C1: an answer of one, two or five frames ends the attempt, and the next one uses a new socket") {
  const std::vector<InFrames> malformed{
      {{}}, {{}, SequenceBytes(1)}, {{}, ToBytes("kv"), SequenceBytes(1), Payload(1), {}}};
  for (const InFrames& message : malformed) {
    Rig rig;
    rig.See({Live(0), Live(2)});
    rig.Answer({message});
    CHECK(rig.Work() == Lines{});
    REQUIRE(rig.attempts.size() == 2);
    CHECK(rig.stream->stats().replay_malformed == 1);
    rig.Answer({ReplayWithTopic(1), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 1", "healed 1-1", "live 2"});
  }
}

TEST_CASE("C2: the request is an empty frame and the first missing number in eight bytes") {
  Rig rig;
  rig.See({Live(0), Live(1), Live(300)});
  REQUIRE(rig.attempts.size() == 1);
  CHECK(rig.attempts[0]->sent == std::vector<InFrames>{{{}, SequenceBytes(2)}});
}

TEST_CASE("A8: a number that an answered replay lacks is lost after one attempt") {
  Rig rig;
  rig.See({Live(3), Live(4)});
  rig.Answer({ReplayWithTopic(0), ReplayWithTopic(1), ReplayWithTopic(2)});
  rig.Work();
  SUBCASE("the answer goes on behind the hole") {
    CHECK(rig.See({Live(6)}) == Lines{"recovery 5-5"});
    rig.Answer({ReplayWithTopic(6), EndWithTopic()});
    CHECK(rig.Work() == Lines{"gap 5-5 not in the replay", "live 6"});
  }
  SUBCASE("the answer ends before the hole") {
    CHECK(rig.See({Live(6)}) == Lines{"recovery 5-5"});
    rig.Answer({EndWithTopic()});
    CHECK(rig.Work() == Lines{"gap 5-5 not in the replay", "live 6"});
  }
  SUBCASE("the hole is one of several missing numbers") {
    CHECK(rig.See({Live(9)}) == Lines{"recovery 5-8"});
    rig.Answer({ReplayWithTopic(5), ReplayWithTopic(7), ReplayWithTopic(8), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 5", "gap 6-6 not in the replay", "replay 7", "replay 8", "live 9"});
  }
  CHECK(rig.attempts.size() == 2);
  CHECK(rig.Work(100 * kSecond) == Lines{});
  CHECK(rig.attempts.size() == 2);
  CHECK(rig.stream->stats().gaps == 1);
}

TEST_CASE("without a replay endpoint a gap is reported and the stream goes on") {
  Rig rig(false);
  CHECK(rig.See({Live(0), Live(3), Live(4)}) == Lines{"live 0", "gap 1-2 no replay endpoint", "live 3", "live 4"});
  CHECK(rig.stream->stats().missing == 2);
}

TEST_CASE("live messages wait for a replay and are applied once and in order") {
  Rig rig;
  rig.See({Live(9)});
  rig.Answer({EndWithTopic()});
  rig.Work();
  CHECK(rig.See({Live(13)}) == Lines{"recovery 10-12"});
  CHECK(rig.See({Live(14), Live(15)}) == Lines{});
  // The first attempt brings one message and dies; the second resumes behind it.
  rig.Answer({ReplayWithTopic(10)});
  CHECK(rig.Work(kSecond) == Lines{"replay 10"});
  CHECK(rig.Work(4 * kSecond) == Lines{});
  REQUIRE(rig.attempts.size() == 3);
  CHECK(rig.attempts[2]->sent == std::vector<InFrames>{{{}, SequenceBytes(11)}});
  rig.Answer({ReplayWithTopic(11), ReplayWithTopic(12), ReplayWithTopic(13), EndWithTopic()});
  CHECK(rig.Work(4 * kSecond) == Lines{"replay 11", "replay 12", "healed 10-12", "live 13", "live 14", "live 15"});
}

TEST_CASE("numbers below the requested one are ignored in an answer") {
  Rig rig;
  rig.See({Live(0), Live(1), Live(3)});
  rig.Answer({ReplayWithTopic(0), ReplayWithTopic(1), ReplayWithTopic(2), EndWithTopic()});
  CHECK(rig.Work() == Lines{"replay 2", "healed 2-2", "live 3"});
}

TEST_CASE("a second hole among the waiting messages is recovered after the first") {
  Rig rig;
  CHECK(rig.See({Live(0), Live(2), Live(4)}) == Lines{"live 0", "recovery 1-1"});
  rig.Answer({ReplayWithTopic(1), EndWithTopic()});
  CHECK(rig.Work() == Lines{"replay 1", "healed 1-1", "live 2", "recovery 3-3"});
  rig.Answer({ReplayWithTopic(3), EndWithTopic()});
  CHECK(rig.Work() == Lines{"replay 3", "healed 3-3", "live 4"});
}

TEST_CASE("an unanswered replay is asked for three times, two idle seconds each") {
  Rig rig;
  rig.See({Live(0), Live(2)});
  CHECK(rig.Work(2 * kSecond - 1) == Lines{});
  CHECK(rig.attempts.size() == 1);
  CHECK(rig.Work(2 * kSecond) == Lines{});
  CHECK(rig.attempts.size() == 2);
  CHECK(rig.Work(4 * kSecond) == Lines{});
  CHECK(rig.attempts.size() == 3);
  CHECK(rig.Work(6 * kSecond) == Lines{"gap 1-1 replay not answered to its end", "live 2"});
  CHECK(rig.stream->stats().replay_attempts == 3);
}

TEST_CASE("a request that cannot be sent at once is sent later") {
  Rig rig;
  rig.replay_send = SendResult::kWouldBlock;
  rig.See({Live(0), Live(2)});
  CHECK(rig.attempts[0]->sent.empty());
  rig.attempts[0]->send_result = SendResult::kSent;
  CHECK(rig.Work(kSecond) == Lines{});
  CHECK(rig.attempts[0]->sent.size() == 1);
  rig.Answer({ReplayWithTopic(1)});
  CHECK(rig.Work(kSecond) == Lines{"replay 1", "healed 1-1", "live 2"});
}

TEST_CASE("an answer that trickles is given up after the total time") {
  Rig rig;
  rig.See({Live(0), Live(1000)});
  MonotonicNanos now = 0;
  SequenceNumber next = 1;
  for (; now < 119 * kSecond; now += kSecond, ++next) {
    rig.Answer({ReplayWithTopic(next)});
    REQUIRE(rig.Work(now) == Lines{"replay " + std::to_string(next)});
  }
  rig.Answer({ReplayWithTopic(next)});
  const std::string gap = "gap " + std::to_string(next) + "-999 replay not answered to its end";
  CHECK(rig.Work(121 * kSecond) == Lines{gap, "live 1000"});
  CHECK(rig.attempts.size() == 1);
}

TEST_CASE("too many waiting messages end the recovery as not healed") {
  EventStreamOptions options;
  SUBCASE("by count") { options.max_waiting_messages = 3; }
  SUBCASE("by bytes") { options.max_waiting_bytes = 3 * (2 + 8 + Payload(2).size()); }
  Rig rig(true, options);
  CHECK(rig.See({Live(0), Live(2), Live(3), Live(5)}) == Lines{"live 0", "recovery 1-1"});
  CHECK(rig.See({Live(6)}) == Lines{"gap 1-1 too many live messages while waiting for the replay", "live 2", "live 3",
                                    "gap 4-4 too many live messages while waiting for the replay", "live 5", "live 6"});
  CHECK_FALSE(rig.stream->recovering());
}

TEST_CASE("a late join asks from the first number") {
  Rig rig;
  CHECK(rig.See({Live(5)}) == Lines{"recovery 0-4"});
  CHECK(rig.attempts[0]->sent == std::vector<InFrames>{{{}, SequenceBytes(0)}});
  SUBCASE("and is complete when the answer begins there") {
    rig.Answer({ReplayWithTopic(0), ReplayWithTopic(1), ReplayWithTopic(2), ReplayWithTopic(3), ReplayWithTopic(4)});
    CHECK(rig.Work() == Lines{"replay 0", "replay 1", "replay 2", "replay 3", "replay 4", "healed 0-4", "live 5"});
  }
  SUBCASE("and is incomplete when the answer begins later") {
    rig.Answer({ReplayWithTopic(3), ReplayWithTopic(4), ReplayWithTopic(5), EndWithTopic()});
    CHECK(rig.Work() == Lines{"gap 0-2 late: not in the replay", "replay 3", "replay 4", "live 5"});
  }
  SUBCASE("and is incomplete when nobody answers") {
    rig.Work(2 * kSecond);
    rig.Work(4 * kSecond);
    CHECK(rig.Work(6 * kSecond) == Lines{"gap 0-4 late: replay not answered to its end", "live 5"});
  }
}

TEST_CASE("a late join without a replay endpoint is reported as such") {
  Rig rig(false);
  CHECK(rig.See({Live(5), Live(6)}) == Lines{"gap 0-4 late: no replay endpoint", "live 5", "live 6"});
}

TEST_CASE("a stream whose numbers begin with 1 is complete when that was declared") {
  EventStreamOptions options;
  options.first_sequence = 1;
  Rig rig(true, options);
  CHECK(rig.See({Live(1), Live(2)}) == Lines{"live 1", "live 2"});
}

TEST_CASE("a lower number is a restart, with and without replay") {
  for (const bool with_replay : {false, true}) {
    Rig rig(with_replay);
    rig.See({Live(0), Live(1), Live(2)});
    CHECK(rig.See({Live(0, 1), Live(1, 1)}) == Lines{"restart 2 0", "live 0", "live 1"});
    CHECK(rig.stream->stats().restarts == 1);
  }
}

TEST_CASE("the same number with other content is a restart") {
  Rig rig;
  rig.See({Live(0)});
  CHECK(rig.See({Live(0, 1), Live(1, 1)}) == Lines{"restart 0 0", "live 0", "live 1"});
}

TEST_CASE("a restart whose beginning was missed is a late join") {
  Rig rig;
  rig.See({Live(0), Live(1), Live(2), Live(3)});
  CHECK(rig.See({Live(2, 1)}) == Lines{"restart 3 2", "recovery 0-1"});
  rig.Answer({ReplayWithTopic(0, 1), ReplayWithTopic(1, 1), EndWithTopic()});
  CHECK(rig.Work() == Lines{"replay 0", "replay 1", "healed 0-1", "live 2"});
}

TEST_CASE("a restart during a recovery gives up what the old life owed, and says so") {
  Rig rig;
  rig.See({Live(0), Live(5), Live(6)});
  CHECK(rig.See({Live(0, 1)}) == Lines{"gap 1-4 the publisher began anew before the replay was complete", "live 5",
                                       "live 6", "restart 6 0", "live 0"});
  CHECK_FALSE(rig.stream->recovering());
  rig.Answer({ReplayWithTopic(1)});
  CHECK(rig.Work(10 * kSecond) == Lines{});
}

TEST_CASE("an undecodable message has its number and the stream goes on") {
  Rig rig;
  const InFrames bad{ToBytes("kv"), SequenceBytes(1), {0xc1}};
  CHECK(rig.See({Live(0), bad, Live(2)}) == Lines{"live 0", "undecodable 1", "live 2"});
  CHECK(rig.stream->stats().undecodable == 1);
}

TEST_CASE("a live message of another shape is counted and reported") {
  Rig rig;
  const InFrames two{SequenceBytes(1), Payload(1)};
  const InFrames four{ToBytes("kv"), SequenceBytes(1), Payload(1), {}};
  const InFrames short_number{ToBytes("kv"), {0, 1}, Payload(1)};
  const InFrames reserved{ToBytes("kv"), SequenceBytes(kEndOfReplay), Payload(1)};
  CHECK(rig.See({Live(0), two, four, short_number, reserved, Live(1)}) ==
        Lines{"live 0", "malformed 2", "malformed 4", "malformed 3", "malformed 3", "live 1"});
  CHECK(rig.stream->stats().malformed == 4);
}

TEST_CASE("Finish gives a running recovery up and applies what waited") {
  Rig rig;
  rig.See({Live(0), Live(2), Live(4)});
  rig.stream->Finish();
  CHECK(rig.sink.Take() == Lines{"gap 1-1 stopped before the replay was complete", "live 2",
                                 "gap 3-3 stopped before the replay was complete", "live 4"});
}

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

TEST_CASE("with the first connection the stream asks what was published before, also when nothing comes live") {
  Rig rig;
  CHECK(rig.Work() == Lines{});
  CHECK(rig.attempts.empty());
  ++rig.live->peers.connected;
  CHECK(rig.Work() == Lines{});
  REQUIRE(rig.attempts.size() == 1);
  CHECK(rig.attempts[0]->sent == std::vector<InFrames>{{{}, SequenceBytes(0)}});
  CHECK(rig.stream->recovering());
  SUBCASE("everything") {
    rig.Answer({ReplayWithTopic(0), ReplayWithTopic(1), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 0", "replay 1", "confirmed"});
    CHECK(rig.See({Live(2)}) == Lines{"live 2"});
  }
  SUBCASE("only the end of it is kept") {
    rig.Answer({ReplayWithTopic(7), EndWithTopic()});
    CHECK(rig.Work() == Lines{"gap 0-6 late: not in the replay", "replay 7", "confirmed"});
  }
  SUBCASE("nothing yet") {
    rig.Answer({EndWithTopic()});
    CHECK(rig.Work() == Lines{"confirmed"});
    CHECK(rig.See({Live(0)}) == Lines{"live 0"});
  }
  SUBCASE("a live message in the middle of the answer bounds it") {
    rig.Answer({ReplayWithTopic(0)});
    CHECK(rig.See({Live(2), Live(3)}) == Lines{"recovery 0-1", "replay 0"});
    rig.Answer({ReplayWithTopic(1), ReplayWithTopic(2), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 1", "healed 0-1", "live 2", "live 3", "confirmed"});
  }
  SUBCASE("the first message comes live and the answer repeats it") {
    CHECK(rig.See({Live(0), Live(1)}) == Lines{"live 0", "live 1"});
    rig.Answer({ReplayWithTopic(0), EndWithTopic()});
    CHECK(rig.Work() == Lines{"confirmed"});
  }
  SUBCASE("nobody answers") {
    rig.Work(2 * kSecond);
    rig.Work(4 * kSecond);
    CHECK(rig.Work(6 * kSecond) == Lines{"unconfirmed"});
    CHECK(rig.See({Live(0)}, 7 * kSecond) == Lines{"live 0"});
  }
  SUBCASE("a message lost behind the answer is asked for again") {
    CHECK(rig.See({Live(0), Live(2)}) == Lines{"live 0", "recovery 1-1"});
    rig.Answer({ReplayWithTopic(0), EndWithTopic()});
    CHECK(rig.Work() == Lines{"confirmed"});
    REQUIRE(rig.attempts.size() == 2);
    rig.Answer({ReplayWithTopic(1), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 1", "healed 1-1", "live 2"});
  }
}

TEST_CASE("Confirm brings a lost end, and says whether the publisher answers") {
  WatchedRig rig(3);
  rig.stream->Confirm();
  CHECK(rig.stream->recovering());
  CHECK(rig.Work() == Lines{});
  CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(2)}});
  SUBCASE("nothing follows") {
    rig.Answer({ReplayWithTopic(2), EndWithTopic()});
    CHECK(rig.Work() == Lines{"confirmed"});
  }
  SUBCASE("the last messages were lost") {
    rig.Answer({ReplayWithTopic(2), ReplayWithTopic(3), ReplayWithTopic(4), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 3", "replay 4", "confirmed"});
  }
  SUBCASE("nobody answers") {
    rig.Work(2 * kSecond);
    rig.Work(4 * kSecond);
    CHECK(rig.Work(6 * kSecond) == Lines{"unconfirmed"});
  }
  SUBCASE("another publisher answers") {
    rig.Answer({ReplayWithTopic(2, 1), EndWithTopic()});
    CHECK(rig.Work() == Lines{"unconfirmed"});
  }
  SUBCASE("a publisher that keeps nothing cannot confirm") {
    rig.Answer({EndWithTopic()});
    CHECK(rig.Work() == Lines{"unconfirmed"});
  }
  CHECK_FALSE(rig.stream->recovering());
}

TEST_CASE("a question is asked also while the stream is busy, and one that was never asked is not confirmed") {
  WatchedRig rig(3);
  rig.stream->Confirm();
  SUBCASE("busy") {
    for (SequenceNumber i = 3; i < 203; ++i) rig.live->inbox.push_back(Live(i));
    rig.stream->DoWork(0);
    CHECK_FALSE(rig.live->inbox.empty());
    CHECK(rig.attempts.size() == 2);
  }
  SUBCASE("never asked") {
    rig.stream->Finish();
    CHECK(rig.sink.Take() == Lines{"unconfirmed"});
  }
}

TEST_CASE("after a lost connection nothing is applied before the publisher's life is known") {
  WatchedRig rig(3);
  rig.Disconnect();
  CHECK(rig.Work() == Lines{"interrupted"});
  CHECK_FALSE(rig.stream->recovering());
  rig.Connect();
  SUBCASE("the same life goes on") {
    CHECK(rig.See({Live(5)}) == Lines{});
    CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(2)}});
    rig.Answer({ReplayWithTopic(2), ReplayWithTopic(3), ReplayWithTopic(4), ReplayWithTopic(5), EndWithTopic()});
    CHECK(rig.Work() == Lines{"confirmed", "recovery 3-4"});
    rig.Answer({ReplayWithTopic(3), ReplayWithTopic(4), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 3", "replay 4", "healed 3-4", "live 5"});
  }
  SUBCASE("the same life, and nothing live") {
    CHECK(rig.Work() == Lines{});
    rig.Answer({ReplayWithTopic(2), ReplayWithTopic(3), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 3", "confirmed"});
  }
  SUBCASE("C14: a new life that passed the old numbers is a restart") {
    CHECK(rig.See({Live(9, 1)}) == Lines{});
    rig.Answer({ReplayWithTopic(2, 1), ReplayWithTopic(3, 1)});
    CHECK(rig.Work() == Lines{"restart 2 by replay"});
    CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(0)}});
    rig.Answer({ReplayWithTopic(0, 1), ReplayWithTopic(1, 1), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 0", "replay 1", "confirmed"});
  }
  SUBCASE("C14: a new life whose first message has the next number is a restart") {
    CHECK(rig.See({Live(3, 1)}) == Lines{});
    rig.Answer({ReplayWithTopic(2, 1), ReplayWithTopic(3, 1), EndWithTopic()});
    CHECK(rig.Work() == Lines{"restart 2 by replay"});
    rig.Answer({ReplayWithTopic(0, 1), ReplayWithTopic(1, 1), ReplayWithTopic(2, 1), ReplayWithTopic(3, 1)});
    rig.Answer({EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 0", "replay 1", "replay 2", "replay 3", "confirmed"});
    CHECK(rig.See({Live(4, 1)}) == Lines{"live 4"});
  }
  SUBCASE("C14: a new life with fewer messages is a restart") {
    CHECK(rig.Work() == Lines{});
    rig.Answer({EndWithTopic()});
    CHECK(rig.Work() == Lines{"restart 2 by replay"});
    rig.Answer({ReplayWithTopic(0, 1), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 0", "confirmed"});
    CHECK(rig.See({Live(1, 1)}) == Lines{"live 1"});
  }
  SUBCASE(
      "C14: the new life's replay begins with the next number: nothing tells the lives apart, so all is forgotten") {
    CHECK(rig.See({Live(9, 1)}) == Lines{});
    rig.Answer({ReplayWithTopic(3, 1), ReplayWithTopic(4, 1), EndWithTopic()});
    CHECK(rig.Work() == Lines{"forgotten", "recovery 0-8"});
    CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(0)}});
    rig.Answer({ReplayWithTopic(3, 1), ReplayWithTopic(4, 1), ReplayWithTopic(5, 1), ReplayWithTopic(6, 1),
                ReplayWithTopic(7, 1), ReplayWithTopic(8, 1), ReplayWithTopic(9, 1), EndWithTopic()});
    CHECK(rig.Work() == Lines{"gap 0-2 late: not in the replay", "replay 3", "replay 4", "replay 5", "replay 6",
                              "replay 7", "replay 8", "live 9"});
  }
  SUBCASE("nobody answers at first: all is forgotten, and what comes later is a late join") {
    CHECK(rig.See({Live(3, 1)}) == Lines{});
    rig.Work(2 * kSecond);
    rig.Work(4 * kSecond);
    CHECK(rig.Work(6 * kSecond) == Lines{"forgotten", "recovery 0-2"});
    rig.Answer({ReplayWithTopic(0, 1), ReplayWithTopic(1, 1), ReplayWithTopic(2, 1), ReplayWithTopic(3, 1)});
    CHECK(rig.Work(6 * kSecond) == Lines{"replay 0", "replay 1", "replay 2", "healed 0-2", "live 3"});
  }
  SUBCASE("more live messages than may wait: all is forgotten") {
    std::vector<InFrames> many;
    for (SequenceNumber i = 3; i < 3 + 4097; ++i) many.push_back(Live(i));
    const Lines lines = rig.See(many);
    REQUIRE(lines.size() == 4100);
    CHECK(lines[0] == "forgotten");
    CHECK(lines[1] == "recovery 0-2");
    CHECK(lines[2] == "gap 0-2 late: too many live messages while waiting for the replay");
    CHECK(lines.back() == "live 4099");
  }
}

TEST_CASE("a new life that is interrupted before its first message is an interruption, too") {
  WatchedRig rig(3);
  rig.Disconnect();
  rig.Connect();
  CHECK(rig.Work() == Lines{"interrupted"});
  rig.Answer({EndWithTopic()});
  CHECK(rig.Work() == Lines{"restart 2 by replay"});
  rig.Answer({EndWithTopic()});
  CHECK(rig.Work() == Lines{"confirmed"});
  rig.Disconnect();
  CHECK(rig.Work() == Lines{"interrupted"});
}

TEST_CASE("a question is answered although live messages arrive meanwhile") {
  WatchedRig rig(3);
  rig.stream->Confirm();
  rig.Work();
  CHECK(rig.See({Live(3), Live(4)}) == Lines{"live 3", "live 4"});
  rig.Answer({ReplayWithTopic(2), ReplayWithTopic(3), EndWithTopic()});
  CHECK(rig.Work() == Lines{"confirmed"});
}

TEST_CASE("what the old connection left is applied until a new one is there") {
  WatchedRig rig(3);
  rig.Disconnect();
  CHECK(rig.See({Live(3), Live(4)}) == Lines{"interrupted", "live 3", "live 4"});
  SUBCASE("but a hole waits: whoever answers now may be another life") {
    CHECK(rig.See({Live(6)}) == Lines{});
    CHECK(rig.attempts.size() == 1);
    rig.stream->Finish();
    CHECK(rig.sink.Take() == Lines{"gap 5-5 stopped before the replay was complete", "live 6"});
  }
  SUBCASE("Confirm asks nobody while nobody is there") {
    rig.stream->Confirm();
    CHECK_FALSE(rig.stream->recovering());
    CHECK(rig.Work() == Lines{});
    CHECK(rig.attempts.size() == 1);
  }
}

TEST_CASE("a connection lost during a recovery ends the answer, and the recovery begins again in the same life") {
  WatchedRig rig(2);
  CHECK(rig.See({Live(4)}) == Lines{"recovery 2-3"});
  rig.Answer({ReplayWithTopic(2)});
  CHECK(rig.Work() == Lines{"replay 2"});
  rig.Answer({ReplayWithTopic(3, 1)});
  rig.Disconnect();
  rig.Connect();
  CHECK(rig.Work() == Lines{"interrupted"});
  CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(2)}});
  SUBCASE("same life") {
    rig.Answer({ReplayWithTopic(2), ReplayWithTopic(3), EndWithTopic()});
    CHECK(rig.Work() == Lines{"confirmed", "recovery 3-3"});
    rig.Answer({ReplayWithTopic(3), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 3", "healed 3-3", "live 4"});
  }
  SUBCASE("another life") {
    rig.Answer({ReplayWithTopic(2, 1), EndWithTopic()});
    CHECK(rig.Work() == Lines{"restart 1 by replay"});
    rig.Answer({ReplayWithTopic(0, 1), ReplayWithTopic(1, 1), ReplayWithTopic(2, 1), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 0", "replay 1", "replay 2", "confirmed"});
  }
}

TEST_CASE("without a replay endpoint a lost connection is reported and the numbers go on") {
  WatchedRig rig(3, false);
  rig.Disconnect();
  rig.Connect();
  CHECK(rig.See({Live(3)}) == Lines{"interrupted", "live 3"});
  rig.stream->Confirm();
  CHECK_FALSE(rig.stream->recovering());
  CHECK(rig.See({Live(0, 1)}) == Lines{"restart 3 0", "live 0"});
}

TEST_CASE("several publishers on one link are reported once") {
  WatchedRig rig(1);
  rig.Connect();
  CHECK(rig.Work() == Lines{"several"});
  rig.Connect();
  CHECK(rig.Work() == Lines{});
}

TEST_CASE(
    "A2: a subscriber that sees 0, 1, 6 knows that it lacks four messages, and a late one that it lacks the "
    "beginning") {
  for (const bool late : {false, true}) {
    CAPTURE(late);
    StreamChecker checker({}, nullptr);
    const auto wire = std::make_shared<Wire>();
    EventStream stream(std::make_unique<ScriptedLink>(wire), {}, {}, &checker);
    for (const SequenceNumber number : {0, 1, 6}) {
      if (!late || number == 6) wire->inbox.push_back(Live(number));
    }
    while (stream.DoWork(0) > 0) {
    }
    CHECK(checker.Verdict() == CheckVerdict::kIncomplete);
    CHECK(checker.counts().missing == (late ? 0 : 4));
    CHECK_FALSE(checker.synchronised());
    CHECK(stream.stats().missing == (late ? 6 : 4));
  }
}

}  // namespace
}  // namespace kvwire::test
