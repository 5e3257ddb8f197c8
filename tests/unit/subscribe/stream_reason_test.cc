// SPDX-License-Identifier: Apache-2.0
// What a stream says of itself when nobody can go on where it asks.
#include <string>

#include <doctest/doctest.h>

#include "kv_events/subscribe/event_stream.h"
#include "tests/unit/subscribe/event_stream_rig.h"

namespace kvwire::test {
namespace {

Hello HelloOf(SequenceNumber oldest, SequenceNumber next) {
  Hello hello;
  hello.epoch = 7;
  hello.next = next;
  hello.oldest = oldest;
  return hello;
}

InFrames Clear(SequenceNumber number) {
  KVEventBatch batch;
  batch.ts = 1.5;
  batch.Add(AllBlocksCleared());
  return {ToBytes("kv"), SequenceBytes(number), Encode(batch)};
}

TEST_CASE("C4: without a baseline the reason says what was asked, and the oldest and newest that the publisher has") {
  Rig rig;
  rig.live->peers.connected = 1;
  rig.hello = HelloOf(5, 8);
  rig.Work();
  REQUIRE(rig.attempts.size() == 1);
  rig.See({Live(8)});
  for (SequenceNumber i = 5; i < 8; ++i) rig.attempts[0]->inbox.push_back(ReplayWithTopic(i));
  rig.attempts[0]->inbox.push_back(EndWithTopic());
  rig.Work();
  CHECK(rig.stream->status().state == StreamState::kUnsynchronised);
  CHECK(rig.stream->status().Reason() ==
        "joined late: what was announced before is not known: cannot resume from 0, oldest=5 newest=8");
}

TEST_CASE("C4: a publisher that answers no hello says no bounds, but what was asked is said") {
  Rig rig;
  rig.See({Live(0), Live(4)});
  REQUIRE(rig.attempts.size() == 1);
  rig.attempts[0]->inbox.push_back(EndWithTopic());
  rig.Work();
  CHECK(rig.stream->status().Reason() == "messages are missing: cannot resume from 1");
}

TEST_CASE("C4: that the replay does not answer is said, until it does, and a join is asked for again meanwhile") {
  Rig rig;
  rig.live->peers.connected = 1;
  rig.hello = HelloOf(0, 4);
  rig.Work();
  REQUIRE(rig.attempts.size() == 1);
  rig.Work(kSecond);
  CHECK(rig.stream->status().Reason() == "the publisher is asked what was missed");
  rig.Work(2 * kSecond);
  CHECK(rig.stream->status().Reason() == "the publisher is asked what was missed; the replay does not answer");
  const std::size_t asked = rig.attempts.size();
  MonotonicNanos now = 2 * kSecond;
  for (; now < 60 * kSecond || (now < 600 * kSecond && rig.stream->links()[1] == nullptr); now += kSecond / 4) {
    rig.Work(now);
  }
  CHECK(rig.attempts.size() > asked + 6);
  CHECK(rig.attempts.size() < asked + 30);
  CHECK(rig.stream->stats().gaps == 0);
  for (SequenceNumber i = 0; i < 4; ++i) rig.attempts.back()->inbox.push_back(ReplayWithTopic(i));
  rig.attempts.back()->inbox.push_back(EndWithTopic());
  rig.Work(now);
  CHECK(rig.stream->status().state == StreamState::kSynchronised);
  CHECK_FALSE(rig.stream->status().replay_silent);
}

TEST_CASE("C4: with nobody to ask nothing was asked") {
  Rig rig(false);
  rig.See({Live(0), Live(4)});
  CHECK(rig.stream->status().Reason() == "messages are missing");
}

TEST_CASE("C4: while a snapshot stands in, the reason says why, and the refusal ends with the next baseline") {
  Rig rig;
  rig.live->peers.connected = 1;
  rig.hello = HelloOf(5, 8);
  rig.hello->snapshots = true;
  rig.Work();
  CHECK(rig.attempts.empty());
  CHECK(rig.stream->status().state == StreamState::kRecovering);
  CHECK(rig.stream->status().Reason() == "a snapshot is under way: cannot resume from 0, oldest=5 newest=7");
}

TEST_CASE("C4: a refusal ends with the next baseline") {
  Rig rig;
  rig.See({Live(0), Live(4)});
  REQUIRE(rig.attempts.size() == 1);
  rig.attempts[0]->inbox.push_back(EndWithTopic());
  rig.Work();
  REQUIRE(rig.stream->status().refused.has_value());
  rig.See({Clear(5)});
  CHECK(rig.stream->status().Reason() == "every number was applied");
}

}  // namespace
}  // namespace kvwire::test
