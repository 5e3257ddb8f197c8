// SPDX-License-Identifier: Apache-2.0
// EventStream by its connections: what is asked with the first one, whether a publisher is the same after a lost one,
// and whether what came is all.
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/subscribe/event_stream.h"
#include "tests/unit/subscribe/event_stream_rig.h"

namespace kvwire::test {
namespace {

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
    CHECK(rig.Work() == Lines{"replay 1", "joined 0-1", "live 2", "live 3", "confirmed"});
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
    CHECK(rig.Work() == Lines{"forgotten"});
    CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(0)}});
    rig.Answer({ReplayWithTopic(3, 1), ReplayWithTopic(4, 1), ReplayWithTopic(5, 1), ReplayWithTopic(6, 1),
                ReplayWithTopic(7, 1), ReplayWithTopic(8, 1), ReplayWithTopic(9, 1), EndWithTopic()});
    CHECK(rig.Work() == Lines{"gap 0-2 late: not in the replay", "replay 3", "replay 4", "replay 5", "replay 6",
                              "replay 7", "replay 8", "replay 9", "confirmed"});
  }
  SUBCASE("nobody answers at first: all is forgotten, and what comes later is a late join") {
    CHECK(rig.See({Live(3, 1)}) == Lines{});
    rig.Work(2 * kSecond);
    rig.Work(4 * kSecond);
    CHECK(rig.Work(6 * kSecond) == Lines{"forgotten"});
    CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(0)}});
    CHECK(rig.See({Live(4, 1)}, 6 * kSecond) == Lines{"recovery 0-3"});
    rig.Answer({ReplayWithTopic(0, 1), ReplayWithTopic(1, 1), ReplayWithTopic(2, 1), ReplayWithTopic(3, 1)});
    CHECK(rig.Work(6 * kSecond) ==
          Lines{"replay 0", "replay 1", "replay 2", "replay 3", "joined 0-3", "live 4", "confirmed"});
  }
  SUBCASE("more live messages than may wait: all is forgotten, and the rest of them may be of either life, too") {
    std::vector<InFrames> many;
    for (SequenceNumber i = 3; i < 3 + 4097 + 10; ++i) many.push_back(Live(i));
    CHECK(rig.See(many) == Lines{"forgotten", "forgotten"});
    CHECK(rig.stream->stats().left_out == 4107);
    CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(0)}});
    rig.Answer({ReplayWithTopic(4109), EndWithTopic()});
    CHECK(rig.Work() == Lines{"gap 0-4108 late: not in the replay", "replay 4109", "confirmed"});
  }
}

TEST_CASE("C14: more messages than may wait behind a hole of a lost connection: all is forgotten, still interrupted") {
  EventStreamOptions options;
  options.max_waiting_messages = 3;
  WatchedRig rig(2, true, options);
  rig.Disconnect();
  CHECK(rig.See({Live(4), Live(5), Live(6), Live(7)}) == Lines{"interrupted", "forgotten", "interrupted"});
  CHECK(rig.See({Live(8)}) == Lines{});
  CHECK(rig.stream->stats().left_out == 4);
  SUBCASE("the next connection is asked for all") {
    rig.Connect();
    CHECK(rig.See({Live(9, 1)}) == Lines{"forgotten"});
    CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(0)}});
    CHECK(rig.stream->stats().left_out == 6);
  }
  SUBCASE("without one the end is a late join") {
    rig.stream->Finish();
    CHECK(rig.sink.Take() == Lines{"gap 0-7 late: stopped before the replay was complete", "live 8"});
  }
}

TEST_CASE("C14: when all is forgotten, only what came after the question is applied: the rest may be of either life") {
  WatchedRig rig(2);
  CHECK(rig.See({Live(4), Live(5)}) == Lines{"recovery 2-3"});
  rig.Disconnect();
  CHECK(rig.See({Live(6)}) == Lines{"interrupted"});
  rig.Connect();
  CHECK(rig.See({Live(9, 1)}) == Lines{});
  CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(1)}});
  SUBCASE("nothing came") {
    rig.Answer({ReplayWithTopic(8, 1)});
    CHECK(rig.Work() == Lines{"forgotten"});
    rig.Answer({ReplayWithTopic(8, 1), ReplayWithTopic(9, 1), EndWithTopic()});
    CHECK(rig.Work() == Lines{"gap 0-7 late: not in the replay", "replay 8", "replay 9", "confirmed"});
  }
  SUBCASE("something came, and the replay tells no life") {
    CHECK(rig.See({Live(10, 1)}) == Lines{});
    rig.Answer({ReplayWithTopic(8, 1)});
    CHECK(rig.Work() == Lines{"forgotten", "recovery 0-9"});
    rig.Answer({ReplayWithTopic(8, 1), ReplayWithTopic(9, 1), ReplayWithTopic(10, 1), EndWithTopic()});
    CHECK(rig.Work() == Lines{"gap 0-7 late: not in the replay", "replay 8", "replay 9", "live 10"});
  }
  SUBCASE("something came, and the replay tells another life") {
    CHECK(rig.See({Live(10, 1)}) == Lines{});
    rig.Answer({ReplayWithTopic(1, 1)});
    CHECK(rig.Work() == Lines{"restart 1 by replay", "recovery 0-9"});
  }
  SUBCASE("something came, and that connection ends, too: now it may be of either life") {
    CHECK(rig.See({Live(10, 1)}) == Lines{});
    rig.Disconnect();
    rig.Connect();
    CHECK(rig.See({Live(11, 2)}) == Lines{"interrupted"});
    rig.Answer({ReplayWithTopic(8, 2)});
    CHECK(rig.Work() == Lines{"forgotten"});
    CHECK(rig.stream->stats().left_out == 6);
    return;
  }
  CHECK(rig.stream->stats().left_out == 4);
}

TEST_CASE("C14: what may be of another life is not applied at the end either, what the old connection left is") {
  WatchedRig rig(3);
  rig.Disconnect();
  CHECK(rig.See({Live(3), Live(5)}) == Lines{"interrupted", "live 3"});
  rig.Connect();
  CHECK(rig.See({Live(9, 1)}) == Lines{});
  CHECK(rig.See({Live(10, 1)}) == Lines{});
  rig.stream->Finish();
  CHECK(rig.sink.Take() == Lines{"unconfirmed", "gap 4-4 stopped before the replay was complete", "live 5"});
  CHECK(rig.stream->stats().left_out == 2);
}

TEST_CASE("C14: a connection that ends before its first message is read is an interruption, if there was one") {
  Rig rig;
  rig.live->peers.connected = 1;
  rig.Work();
  rig.Answer({EndWithTopic()});
  CHECK(rig.Work() == Lines{"confirmed"});
  rig.live->peers.disconnected = 1;
  SUBCASE("what it left is applied, and who comes next is asked") {
    CHECK(rig.See({Live(0), Live(1), Live(3), Live(4)}) == Lines{"interrupted", "live 0", "live 1"});
    rig.live->peers.connected = 2;
    CHECK(rig.See({Live(8, 1)}) == Lines{});
    CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(1)}});
    rig.Answer({ReplayWithTopic(1, 1)});
    CHECK(rig.Work() == Lines{"restart 1 by replay"});
    CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(0)}});
  }
  SUBCASE("with the next connection in the same look nothing tells whose it is") {
    rig.live->peers.connected = 2;
    CHECK(rig.See({Live(0), Live(1), Live(8, 1)}) == Lines{"interrupted", "forgotten"});
    CHECK(rig.stream->stats().left_out == 3);
    CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(0)}});
    CHECK(rig.See({Live(2, 1)}) == Lines{"recovery 0-1"});
    rig.Answer({ReplayWithTopic(0, 1), ReplayWithTopic(1, 1), ReplayWithTopic(2, 1), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 0", "replay 1", "joined 0-1", "live 2", "confirmed"});
  }
  SUBCASE("the end is noticed with the first message") {
    rig.live->peers.disconnected = 0;
    rig.live->on_receive = [&rig] { rig.live->peers = {2, 1, 0}; };
    CHECK(rig.See({Live(8, 1)}) == Lines{"interrupted", "forgotten"});
  }
  SUBCASE("it left nothing") {
    CHECK(rig.Work() == Lines{});
    rig.live->peers.connected = 2;
    CHECK(rig.See({Live(0), Live(1)}) == Lines{"live 0", "live 1"});
    rig.Answer({ReplayWithTopic(0), ReplayWithTopic(1), EndWithTopic()});
    CHECK(rig.Work() == Lines{"confirmed"});
  }
}

TEST_CASE("without a replay endpoint a connection that ends before its first message is read is reported, too") {
  Rig rig(false);
  rig.live->peers = {2, 1, 0};
  CHECK(rig.See({Live(0), Live(1), Live(2)}) == Lines{"interrupted", "live 0", "live 1", "live 2"});
}

TEST_CASE("C14: an answer that comes with the end of the connection is not applied") {
  WatchedRig rig(2);
  CHECK(rig.See({Live(4)}) == Lines{"recovery 2-3"});
  rig.attempts.back()->on_receive = [&rig] { rig.live->peers.disconnected = 1; };
  SUBCASE("a message") { rig.Answer({ReplayWithTopic(2, 1)}); }
  SUBCASE("its end") { rig.Answer({EndWithTopic()}); }
  CHECK(rig.Work() == Lines{"interrupted"});
  rig.Connect();
  CHECK(rig.Work() == Lines{});
  rig.Answer({ReplayWithTopic(1, 1)});
  CHECK(rig.Work() == Lines{"restart 1 by replay"});
}

TEST_CASE("C14: a publisher that connects before its predecessor's end is noticed is asked who it is") {
  WatchedRig rig(3);
  rig.Connect();
  CHECK(rig.Work() == Lines{"several"});
  rig.Disconnect();
  CHECK(rig.See({Live(3, 1)}) == Lines{"interrupted"});
  CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(2)}});
  rig.Answer({ReplayWithTopic(2, 1)});
  CHECK(rig.Work() == Lines{"restart 2 by replay"});
}

TEST_CASE("C14: a restart that the old connection's numbers show does not tell who comes next") {
  WatchedRig rig(3);
  rig.Disconnect();
  CHECK(rig.See({Live(0, 1)}) == Lines{"interrupted", "restart 2 0", "interrupted", "live 0"});
  rig.Connect();
  CHECK(rig.See({Live(5, 2)}) == Lines{});
  CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(0)}});
}

TEST_CASE("a hole that is seen while a question runs is closed although the question is not answered") {
  WatchedRig rig(3);
  rig.stream->Confirm();
  rig.Work();
  CHECK(rig.See({Live(5)}) == Lines{"recovery 3-4"});
  SUBCASE("the last message is no longer there to compare") {
    rig.Answer({ReplayWithTopic(3)});
    CHECK(rig.Work() == Lines{"unconfirmed"});
    CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(3)}});
    rig.Answer({ReplayWithTopic(3), ReplayWithTopic(4), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 3", "replay 4", "healed 3-4", "live 5"});
  }
  SUBCASE("but not by another publisher's messages") {
    rig.Answer({ReplayWithTopic(2, 1), ReplayWithTopic(3, 1), ReplayWithTopic(4, 1), EndWithTopic()});
    CHECK(rig.Work() == Lines{"unconfirmed", "gap 3-4 not in the replay", "live 5"});
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

}  // namespace
}  // namespace kvwire::test
