// SPDX-License-Identifier: Apache-2.0
// EventStream by its numbers: order, gaps, replays, late joins, restarts, topics.
#include "kv_events/subscribe/event_stream.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/subscribe/stream_checker.h"
#include "tests/unit/subscribe/event_stream_rig.h"

namespace kvwire::test {
namespace {

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
  CHECK(rig.attempts.size() == 2);
  CHECK(rig.Work(100 * kSecond) == Lines{});
  CHECK(rig.attempts.size() == 2);
  CHECK(rig.stream->stats().gaps == 1);
}

TEST_CASE("A8: of a hole in the middle of an answer an answer that begins there decides") {
  Rig rig;
  rig.See({Live(3), Live(4)});
  rig.Answer({ReplayWithTopic(0), ReplayWithTopic(1), ReplayWithTopic(2)});
  rig.Work();
  CHECK(rig.See({Live(9)}) == Lines{"recovery 5-8"});
  rig.Answer({ReplayWithTopic(5), ReplayWithTopic(7), ReplayWithTopic(8), EndWithTopic()});
  CHECK(rig.Work() == Lines{"replay 5"});
  REQUIRE(rig.attempts.size() == 3);
  SUBCASE("a ROUTER that dropped it has it") {
    rig.Answer({ReplayWithTopic(6), ReplayWithTopic(7), ReplayWithTopic(8), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 6", "replay 7", "replay 8", "healed 5-8", "live 9"});
  }
  SUBCASE("a publisher that lost it does not") {
    rig.Answer({ReplayWithTopic(7), ReplayWithTopic(8), EndWithTopic()});
    CHECK(rig.Work() == Lines{"gap 6-6 not in the replay", "replay 7", "replay 8", "live 9"});
  }
  CHECK(rig.Work(100 * kSecond) == Lines{});
  CHECK(rig.attempts.size() == 3);
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
    CHECK(rig.Work() == Lines{"replay 0", "replay 1", "replay 2", "replay 3", "replay 4", "joined 0-4", "live 5"});
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
  CHECK(rig.Work() == Lines{"replay 0", "replay 1", "joined 0-1", "live 2"});
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

// A message with a block in each of these groups.
InFrames OfGroups(SequenceNumber number, std::uint32_t first, std::uint32_t count, std::string_view medium = "GPU") {
  KVEventBatch batch;
  batch.ts = 1.5;
  const BlockHash hash = BlockHash::FromUint64(number + 1);
  for (std::uint32_t group = first; group < first + count; ++group) {
    BlockStored stored;
    stored.block_hashes = std::span(&hash, 1);
    stored.block_size = 16;
    stored.medium = medium;
    stored.group_idx = group;
    batch.Add(stored);
  }
  return {ToBytes("kv"), SequenceBytes(number), Encode(batch)};
}

TEST_CASE("E1: a message that names too many groups and media is as one that cannot be read") {
  Rig rig(false);
  CHECK(rig.See({OfGroups(0, 0, 1000)}) == Lines{"live 0"});
  CHECK(rig.See({OfGroups(1, 500, 524)}) == Lines{"live 1"});
  CHECK(rig.stream->status().state == StreamState::kSynchronised);
  CHECK(rig.See({OfGroups(2, 0, 1025)}) == Lines{"undecodable 2"});
  CHECK(rig.stream->status().state == StreamState::kSuspect);
  CHECK(rig.See({OfGroups(3, 1024, 1)}) == Lines{"undecodable 3"});
  CHECK(rig.See({OfGroups(4, 0, 1024)}) == Lines{"live 4"});
  // A clear makes room.
  KVEventBatch clear;
  clear.Add(AllBlocksCleared());
  CHECK(rig.See({{ToBytes("kv"), SequenceBytes(5), Encode(clear)}}) == Lines{"live 5"});
  CHECK(rig.stream->status().state == StreamState::kSynchronised);
  CHECK(rig.See({OfGroups(6, 5000, 1024)}) == Lines{"live 6"});
  CHECK(rig.See({OfGroups(7, 0, 1, std::string(300'000, 'x'))}) == Lines{"undecodable 7"});
  CHECK(rig.stream->stats().undecodable == 3);
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

// A stream of one topic beside another one of the same publisher.
EventStreamOptions OnlyTopic(const char* topic) {
  EventStreamOptions options;
  options.topic = topic;
  return options;
}

InFrames ReplayOfTopic(const char* topic, SequenceNumber number) {
  return {{}, ToBytes(topic), SequenceBytes(number), Payload(number)};
}

TEST_CASE("C1: replayed messages of another topic are left out, and their numbers are not missing") {
  Rig rig(true, OnlyTopic("kv"));
  CHECK(rig.See({Live(0), Live(4)}) == Lines{"live 0", "recovery 1-3"});
  rig.Answer({ReplayOfTopic("other", 1), ReplayOfTopic("kv@a", 2), ReplayOfTopic("k", 3), EndWithTopic()});
  CHECK(rig.Work() == Lines{"other topic 1", "replay 2", "other topic 3", "healed 1-3", "live 4"});
  CHECK(rig.stream->stats().other_topic == 2);
  CHECK(rig.stream->stats().replayed == 1);
  CHECK(rig.stream->stats().gaps == 0);
  SUBCASE("a hole beside them is still a gap") {
    CHECK(rig.See({Live(8)}) == Lines{"recovery 5-7"});
    rig.Answer({ReplayOfTopic("other", 5), ReplayOfTopic("kv", 7), EndWithTopic()});
    CHECK(rig.Work() == Lines{"other topic 5"});
    rig.Answer({ReplayOfTopic("kv", 7), EndWithTopic()});  // also when the question begins there
    CHECK(rig.Work() == Lines{"gap 6-6 not in the replay", "replay 7", "live 8"});
  }
}

TEST_CASE("C1: the last message known of a publisher may be one of another topic") {
  WatchedRig rig(1, true, OnlyTopic("kv"));
  rig.stream->Confirm();
  rig.Work();
  rig.Answer({ReplayWithTopic(0), ReplayOfTopic("other", 1), EndWithTopic()});
  CHECK(rig.Work() == Lines{"other topic 1", "confirmed"});
  rig.stream->Confirm();
  rig.Work();
  CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(1)}});
  rig.Answer({ReplayOfTopic("other", 1), EndWithTopic()});
  CHECK(rig.Work() == Lines{"confirmed"});
}

TEST_CASE("C1: a replay that names no topics is applied as it is, and that is said once") {
  Rig rig(true, OnlyTopic("kv"));
  CHECK(rig.See({Live(0), Live(3)}) == Lines{"live 0", "recovery 1-2"});
  rig.Answer({ReplayLegacy(1), ReplayLegacy(2), EndLegacy()});
  CHECK(rig.Work() == Lines{"topic unknown", "replay 1", "replay 2", "healed 1-2", "live 3"});
  CHECK(rig.See({Live(5)}) == Lines{"recovery 4-4"});
  rig.Answer({ReplayLegacy(4), EndLegacy()});
  CHECK(rig.Work() == Lines{"replay 4", "healed 4-4", "live 5"});
}

TEST_CASE("C1: a checker passes over the numbers of another topic") {
  StreamChecker checker({}, nullptr);
  const auto wire = std::make_shared<Wire>();
  const auto replay = std::make_shared<Wire>();
  replay->inbox = {ReplayOfTopic("other", 0), ReplayOfTopic("kv", 1), ReplayOfTopic("other", 2), EndWithTopic()};
  const auto ask = [&replay]() -> std::unique_ptr<FrameLink> { return std::make_unique<ScriptedLink>(replay); };
  EventStream stream(std::make_unique<ScriptedLink>(wire), ask, OnlyTopic("kv"), &checker);
  wire->inbox.push_back(Live(3));
  while (stream.DoWork(0) > 0) {
  }
  CHECK(checker.Verdict() == CheckVerdict::kClean);
  CHECK(checker.counts().batches == 2);
  CHECK(checker.held().size() == 2);
}

TEST_CASE("a stream knows whether its replay endpoint was ever reached") {
  Rig rig;
  CHECK_FALSE(rig.stream->replay_reached());
  rig.See({Live(0), Live(2)});
  CHECK_FALSE(rig.stream->replay_reached());
  SUBCASE("by an answer") { rig.Answer({ReplayWithTopic(1), EndWithTopic()}); }
  SUBCASE("by a connection") { ++rig.attempts.back()->peers.connected; }
  rig.Work();
  CHECK(rig.stream->replay_reached());
  rig.stream->Finish();
  CHECK(rig.stream->replay_reached());
}

}  // namespace
}  // namespace kvwire::test
