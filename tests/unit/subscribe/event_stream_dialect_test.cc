// SPDX-License-Identifier: Apache-2.0
// EventStream and the dialects: whose stream it is decides what is asked and how an event is read.
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/subscribe/dialect.h"
#include "kv_events/subscribe/event_stream.h"
#include "kv_events/subscribe/mirror.h"
#include "tests/unit/subscribe/event_stream_rig.h"

namespace kvwire::test {
namespace {

const StreamStatus kSynchronised{StreamState::kSynchronised, "every number was applied"};

EventStreamOptions Of(Dialect dialect) {
  EventStreamOptions options;
  options.dialect = dialect;
  return options;
}

// A connected stream of an xLLM engine. Its replay is asked as attempts are.
struct XllmRig : Rig {
  explicit XllmRig(EventStreamOptions options = Of(Dialect::kXllm)) : Rig(true, options) {
    live->peers.connected = 1;
    Work();
  }
};

// The one message of the answer: the whole state after batch `watermark`.
InFrames State(SequenceNumber watermark, const std::vector<std::uint64_t>& hashes) {
  return {{}, SequenceBytes(watermark), Chunk(0, hashes)[3]};
}

TEST_CASE("a dialect has a name, and what differs between them is in one table") {
  for (std::size_t i = 0; i < kNumDialects; ++i) {
    CHECK(DialectByName(kDialects[i].name) == static_cast<Dialect>(i));
  }
  CHECK_FALSE(DialectByName("XLLM"));
  CHECK(TraitsOf(Dialect::kXllm).replay == ReplayForm::kState);
  CHECK_FALSE(TraitsOf(Dialect::kXllm).extensions);
  CHECK(TraitsOf(Dialect::kSglang).hash_bits == HashBits::kFirst64);
}

TEST_CASE("a hello is asked of every dialect but the one whose ROUTER would answer it with its state") {
  for (std::size_t i = 0; i < kNumDialects; ++i) {
    Rig rig(true, Of(static_cast<Dialect>(i)));
    rig.live->peers.connected = 1;
    rig.Work();
    CHECK(rig.hellos == (kDialects[i].extensions ? 1 : 0));
  }
}

TEST_CASE("the dialect says which eight bytes of a long hash count") {
  for (const Dialect dialect : {Dialect::kVllm, Dialect::kSglang}) {
    Mirror mirror(Removals::kPerCopy);
    const auto wire = std::make_shared<Wire>();
    EventStream stream(std::make_unique<ScriptedLink>(wire), {}, Of(dialect), &mirror);
    Bytes hash(32, 0);
    hash[7] = 1;
    hash[31] = 2;
    const BlockHash block = *BlockHash::FromBytes(hash);
    BlockStored stored;
    stored.block_hashes = {&block, 1};
    stored.block_size = 2;
    KVEventBatch batch;
    batch.ts = 1.5;
    batch.Add(stored);
    KVEventsConfig::Extensions bytes;
    bytes.hash_form = HashForm::kBytes;
    Bytes payload;
    BatchEncoder(bytes).Encode(batch, &payload);
    wire->inbox.push_back({ToBytes("kv"), SequenceBytes(0), payload});
    stream.DoWork(0);
    CHECK(mirror.Holds(0, "GPU", dialect == Dialect::kSglang ? 1 : 2));
  }
}

TEST_CASE("xllm: with the connection the state is asked for by a number, and what follows its watermark is applied") {
  XllmRig rig;
  REQUIRE(rig.attempts.size() == 1);
  CHECK(rig.attempts[0]->sent == std::vector<InFrames>{{{}, SequenceBytes(0)}});
  CHECK(rig.stream->status().state == StreamState::kRecovering);
  CHECK(rig.See({Live(6), Live(7), Live(8)}) == Lines{});
  rig.Answer({State(7, {1, 2, 3})});
  CHECK(rig.Work() == Lines{});  // valid only with the end mark
  rig.Answer({EndLegacy()});
  CHECK(rig.Work() == Lines{"snapshot from 8", "chunk 8 of 3", "snapshot to 8", "confirmed", "live 8"});
  CHECK(rig.stream->status() == kSynchronised);
  CHECK(rig.See({Live(9)}) == Lines{"live 9"});
}

TEST_CASE("xllm: a watermark of 0 above an empty state does not say whether message 0 is in it, so it is applied") {
  XllmRig rig;
  rig.Answer({State(0, {}), EndLegacy()});
  CHECK(rig.Work() == Lines{"snapshot from 0", "chunk 0 of 0", "snapshot to 0", "confirmed"});
  CHECK(rig.See({Live(0), Live(1)}) == Lines{"live 0", "live 1"});
  CHECK(rig.stream->status() == kSynchronised);
}

TEST_CASE("xllm: an answer that is not one state and the end mark is none, and it is asked again on a new socket") {
  const InFrames state = State(7, {1});
  const std::vector<std::vector<InFrames>> answers{
      {state, state, EndLegacy()},
      {{{}, SequenceBytes(7)}},
      {{{}, {1, 2}, Payload(1)}},
      {{{}, SequenceBytes(7), {0xc1}}},
      {{{}, SequenceBytes(7), Chunk(0, {1})[3], {}, {}}},
  };
  for (const auto& answer : answers) {
    XllmRig rig;
    rig.Answer(answer);
    CHECK(rig.Work() == Lines{"unconfirmed"});
    rig.Work(kSecond);
    CHECK(rig.attempts.size() == 2);
    rig.Answer({state, EndLegacy()});
    rig.Work(kSecond);
    CHECK(rig.stream->status() == kByAnswers);
  }
}

TEST_CASE("xllm: there is no history to replay: a gap, and a hole behind the watermark, take a new state") {
  XllmRig rig;
  SUBCASE("a gap") {
    rig.Answer({State(7, {1}), EndLegacy()});
    rig.Work();
    CHECK(rig.See({Live(10)}) == Lines{"gap 8-9 not in the replay", "live 10"});
  }
  SUBCASE("a hole behind the watermark") {
    CHECK(rig.See({Live(10)}) == Lines{});
    rig.Answer({State(7, {1}), EndLegacy()});
    CHECK(rig.Work() == Lines{"snapshot from 8", "chunk 8 of 1", "snapshot to 8", "confirmed",
                              "gap 8-9 not in the replay", "live 10"});
  }
  CHECK(rig.stream->status().state == StreamState::kRecovering);
  REQUIRE(rig.attempts.size() == 2);
  CHECK(rig.attempts[1]->sent == std::vector<InFrames>{{{}, SequenceBytes(11)}});
  rig.Answer({State(10, {1}), EndLegacy()});
  CHECK(rig.Work() == Lines{"snapshot from 11", "chunk 11 of 1", "snapshot to 11"});
  CHECK(rig.stream->status() == kSynchronised);
}

TEST_CASE("xllm: an event that cannot be read voids what is held, until the next state") {
  XllmRig rig;
  rig.Answer({State(7, {1}), EndLegacy()});
  rig.Work();
  const InFrames unknown{ToBytes("kv"),
                         SequenceBytes(8),
                         // [1, [{"type": "Other"}], 0]
                         {0x93, 1, 0x91, 0x81, 0xa4, 't', 'y', 'p', 'e', 0xa5, 'O', 't', 'h', 'e', 'r', 0}};
  CHECK(rig.See({unknown}) == Lines{"undecodable 8"});
  CHECK(rig.attempts.size() == 2);
  rig.Answer({State(8, {1}), EndLegacy()});
  rig.Work();
  CHECK(rig.stream->status() == kSynchronised);
}

TEST_CASE("xllm: after a lost connection all is forgotten, for nobody tells whose state it is") {
  XllmRig rig;
  rig.Answer({State(7, {1}), EndLegacy()});
  CHECK(rig.See({Live(8)}).back() == "live 8");
  ++rig.live->peers.disconnected;
  CHECK(rig.Work() == Lines{"interrupted"});
  ++rig.live->peers.connected;
  CHECK(rig.See({Live(3, 1)}) == Lines{"forgotten"});
  rig.Answer({State(3, {5}), EndLegacy()});
  CHECK(rig.Work() == Lines{"snapshot from 4", "chunk 4 of 1", "snapshot to 4", "confirmed"});
  CHECK(rig.See({Live(4, 1)}) == Lines{"live 4"});
}

TEST_CASE("C12, xllm: the state is asked for again from time to time, which repairs a lost tail") {
  XllmRig rig;
  rig.Answer({State(7, {1}), EndLegacy()});
  rig.Work();
  rig.Work(30 * kSecond);
  REQUIRE(rig.attempts.size() == 2);
  rig.Answer({State(9, {1, 2}), EndLegacy()});
  CHECK(rig.Work(30 * kSecond) == Lines{"snapshot from 10", "chunk 10 of 2", "snapshot to 10"});
  CHECK(rig.stream->stats().superseded == 8 + 2);
}

TEST_CASE("C12: how often a stream is checked is the dialect's, unless an option says it") {
  const auto checked_at = [](const EventStreamOptions& options) {
    XllmRig rig(options);
    rig.Answer({State(7, {1}), EndLegacy()});
    rig.Work();
    for (MonotonicNanos seconds = 1; seconds < 100; ++seconds) {
      rig.Work(seconds * kSecond);
      if (rig.attempts.size() == 2) return seconds;
    }
    return MonotonicNanos{0};
  };
  EventStreamOptions options = Of(Dialect::kXllm);
  SUBCASE("every 30 s of xllm's") { CHECK(checked_at(options) == 30); }
  SUBCASE("as an option says") {
    options.check_interval = 7 * kSecond;
    CHECK(checked_at(options) == 7);
  }
  SUBCASE("never, as an option says") {
    options.check_interval = 0;
    CHECK(checked_at(options) == 0);
  }
  SUBCASE("every 5 s of the others") {
    for (const DialectTraits& traits : kDialects)
      CHECK(traits.check_interval == (traits.extensions ? 5 : 30) * kSecond);
  }
}

TEST_CASE("xllm: a state of before what was applied is another engine's") {
  XllmRig rig;
  rig.Answer({State(7, {1}), EndLegacy()});
  rig.See({Live(8)});
  rig.Work(30 * kSecond);
  rig.Answer({State(5, {1}), EndLegacy()});
  CHECK(rig.Work(30 * kSecond) == Lines{"forgotten"});
  CHECK(rig.stream->stats().snapshots_failed == 1);
  rig.Work(31 * kSecond);
  REQUIRE(rig.attempts.size() == 3);
  rig.Answer({State(5, {1}), EndLegacy()});
  CHECK(rig.Work(31 * kSecond) == Lines{"snapshot from 6", "chunk 6 of 1", "snapshot to 6"});
}

}  // namespace
}  // namespace kvwire::test
