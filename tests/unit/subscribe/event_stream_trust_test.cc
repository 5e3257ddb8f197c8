// SPDX-License-Identifier: Apache-2.0
// EventStream and answers that cannot be true: busy publishers, another publisher's replay, numbers that go back, and
// what is asked again and again.
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/subscribe/applied_payloads.h"
#include "kv_events/subscribe/back_off.h"
#include "kv_events/subscribe/event_stream.h"
#include "tests/unit/subscribe/event_stream_rig.h"

namespace kvwire::test {
namespace {

constexpr MonotonicNanos kTenth = kSecond / 10;
const StreamStatus kSynchronised{StreamState::kSynchronised, "every number was applied"};
const StreamStatus kDiffer{StreamState::kUnsynchronised,
                           "live messages and answers differ: the replay address may be another publisher's"};

// A connected stream of a publisher that says who it is, with messages 0 to `count` - 1 applied.
struct KnownRig : Rig {
  explicit KnownRig(SequenceNumber count) {
    hello = HelloOf(count);
    live->peers.connected = 1;
    for (SequenceNumber i = 0; i < count; ++i) live->inbox.push_back(Live(i));
    Work();
  }
  void Reconnect() {
    ++live->peers.disconnected;
    Work();
    ++live->peers.connected;
  }
};

// A connected stream of a publisher that answers no hello, and whose replay has brought 0 to `count` - 1 of `life`.
struct ReplayedRig : Rig {
  explicit ReplayedRig(SequenceNumber count, std::uint64_t life = 0) {
    live->peers.connected = 1;
    Work();
    AnswerAll(count, life);
    Work();
  }
  void AnswerAll(SequenceNumber count, std::uint64_t life) {
    for (SequenceNumber i = 0; i < count; ++i) Answer({ReplayWithTopic(i, life)});
    Answer({EndWithTopic()});
  }
};

TEST_CASE("a back-off begins with nothing, doubles up to its longest, and is over after a quiet time") {
  BackOff back_off(1, 5, 10);
  CHECK(back_off.Next(100) == 0);
  CHECK(back_off.Next(100) == 1);
  CHECK(back_off.Next(101) == 2);
  CHECK(back_off.Next(103) == 4);
  CHECK(back_off.Next(107) == 5);
  CHECK(back_off.Next(116) == 5);
  CHECK(back_off.Next(126) == 0);
}

TEST_CASE("applied payloads are known for the last 16,384 numbers") {
  AppliedPayloads applied;
  CHECK_FALSE(applied.last());
  for (SequenceNumber i = 0; i <= AppliedPayloads::kKept; ++i)
    applied.Note({2 * i, AppliedPayloads::ContentOf(Payload(i))});
  CHECK_FALSE(applied.Find(0));
  CHECK_FALSE(applied.Find(3));
  REQUIRE(applied.Find(2));
  CHECK(applied.Find(2)->content == AppliedPayloads::ContentOf(Payload(1)));
  CHECK(applied.last()->sequence == 2 * AppliedPayloads::kKept);
}

TEST_CASE("C4: a publisher that answered a hello and gives the end mark to the next one is busy, not another one") {
  KnownRig rig(3);
  rig.hello.reset();
  rig.Work(5 * kSecond);
  CHECK(rig.hellos == 2);
  CHECK(rig.stream->status() == StreamStatus{StreamState::kSuspect, "the publisher no longer answers"});
  CHECK(rig.stream->epoch() == 7);
  rig.Work(1000 * kSecond);
  CHECK(rig.hellos == 3);
  rig.hello = HelloOf(3);
  rig.Work(2000 * kSecond);
  CHECK(rig.hellos == 4);
  CHECK(rig.stream->status() == kSynchronised);
}

TEST_CASE(
    "C4: on a new connection a known publisher that gives the end mark is asked again, and then told by its bytes") {
  KnownRig rig(3);
  rig.hello.reset();
  rig.Reconnect();
  CHECK(rig.Work() == Lines{});
  CHECK(rig.hellos == 2);
  CHECK(rig.attempts.empty());
  CHECK(rig.stream->status().state == StreamState::kRecovering);
  SUBCASE("it was busy") {
    rig.hello = HelloOf(3);
    CHECK(rig.Work(kSecond) == Lines{"confirmed"});
    CHECK(rig.attempts.empty());
    CHECK(rig.stream->status() == kSynchronised);
  }
  SUBCASE("it is busy for long, and its replay answers") {
    for (int i = 1; i < 20; ++i) rig.Work(i * kTenth);
    CHECK(rig.hellos == 4);
    REQUIRE(rig.attempts.size() == 1);
    CHECK(rig.attempts.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(2)}});
    rig.Answer({ReplayWithTopic(2), EndWithTopic()});
    CHECK(rig.Work(2 * kSecond) == Lines{"confirmed"});
    CHECK(rig.stream->epoch() == 7);
    CHECK(rig.stream->status() == StreamStatus{StreamState::kSuspect, "the publisher no longer answers"});
    rig.hello = HelloOf(3);
    rig.Work(100 * kSecond);
    CHECK(rig.stream->status() == kSynchronised);
  }
  SUBCASE("another publisher is there, whose numbers begin anew") {
    for (int i = 1; i < 20; ++i) rig.Work(i * kTenth);
    REQUIRE(rig.attempts.size() == 1);
    rig.Answer({EndWithTopic()});
    CHECK(rig.Work(2 * kSecond) == Lines{"restart 2 by replay"});
    CHECK_FALSE(rig.stream->epoch());
    rig.Answer({ReplayWithTopic(0, 1), EndWithTopic()});
    CHECK(rig.Work(2 * kSecond) == Lines{"replay 0", "confirmed"});
    CHECK(rig.stream->status() == kByAnswers);
  }
}

TEST_CASE("C4: an end mark alone does not confirm that a known publisher has sent nothing") {
  KnownRig rig(0);
  CHECK(rig.stream->status() == kByAnswers);
  rig.hello.reset();
  rig.stream->Confirm();
  CHECK(rig.Work() == Lines{});
  rig.Answer({EndWithTopic()});
  CHECK(rig.Work() == Lines{"unconfirmed"});
  CHECK(rig.stream->status().state == StreamState::kSuspect);
}

TEST_CASE("C8: a live message with other bytes than the replay gave its number ends what was held") {
  ReplayedRig rig(50, 1);
  CHECK(rig.stream->status() == kByAnswers);
  CHECK(rig.See({Live(0)}) == Lines{"contradiction 0 differs", "forgotten"});
  CHECK(rig.stream->status() == kDiffer);
  CHECK(rig.stream->stats().contradictions == 1);
  // The same answers again are no baseline.
  rig.AnswerAll(50, 1);
  rig.Work();
  CHECK(rig.stream->next() == 50);
  CHECK(rig.stream->status() == kDiffer);
}

TEST_CASE("C8: contradictions in quick succession are followed by a rest that grows") {
  ReplayedRig rig(50, 1);
  const std::size_t before = rig.attempts.size();
  SequenceNumber number = 0;
  for (MonotonicNanos now = 0; now < 20 * kSecond; now += kTenth / 2) {
    for (const auto& wire : rig.attempts) wire->inbox.clear();
    if (!rig.attempts.back()->sent.empty()) rig.AnswerAll(50, 1);
    rig.Work(now);
    if (number < 49) rig.See({Live(number++)}, now);
    CHECK(rig.stream->status() != kSynchronised);
  }
  CHECK(rig.attempts.size() - before < 12);
}

// The same in doubt: message 0 came live, and the replay has another one, before and after.
struct DoubtedRig : ReplayedRig {
  explicit DoubtedRig(SequenceNumber count) : ReplayedRig(count, 1) {
    CHECK(See({Live(0)}) == Lines{"contradiction 0 differs", "forgotten"});
    AnswerAll(count, 1);
    Work();
    CHECK(stream->status() == kDiffer);
  }
  std::vector<InFrames> Asked() const { return proofs.empty() ? std::vector<InFrames>() : proofs.back()->sent; }
};

TEST_CASE("C8: an answer that has the bytes of the message that contradicted is proof, of an idle stream, too") {
  ReplayedRig rig(3, 1);
  CHECK(rig.See({Live(0)}) == Lines{"contradiction 0 differs", "forgotten"});
  CHECK(rig.stream->status() == kDiffer);
  rig.AnswerAll(2, 0);
  CHECK(rig.Work() == Lines{"replay 0", "replay 1", "confirmed"});
  CHECK(rig.stream->status() == kSynchronised);
}

TEST_CASE("C8: a live message that has the bytes an answer gave its number is proof, of an idle stream, too") {
  ReplayedRig rig(5, 1);
  CHECK(rig.See({Live(0)}) == Lines{"contradiction 0 differs", "forgotten"});
  rig.Answer({ReplayWithTopic(1), ReplayWithTopic(2), ReplayWithTopic(3), EndWithTopic()});
  rig.Work();
  CHECK(PlainStatus(*rig.stream) == kDiffer);
  CHECK(rig.See({Live(2)}) == Lines{});
  CHECK(PlainStatus(*rig.stream) ==
        StreamStatus{StreamState::kUnsynchronised, "joined late: what was announced before is not known"});
}

TEST_CASE("C8: while it is in doubt an idle stream asks for what came live, ever less often, until it is there") {
  DoubtedRig rig(50);
  const std::size_t before = rig.proofs.size();
  std::size_t asked = before;
  for (MonotonicNanos now = kSecond; now < 300 * kSecond; now += kSecond) {
    rig.Work(now);
    if (rig.proofs.size() == asked) continue;
    asked = rig.proofs.size();
    CHECK(rig.Asked() == std::vector<InFrames>{{{}, SequenceBytes(0)}});
    rig.AnswerProof(ReplayWithTopic(0, 1));
    CHECK(rig.Work(now) == Lines{});
    CHECK(rig.stream->status() == kDiffer);
  }
  CHECK(asked - before > 6);
  CHECK(asked - before < 14);
  // What the other publisher answered is not taken for this one's.
  rig.Work(400 * kSecond);
  rig.AnswerProof(ReplayWithTopic(0));
  CHECK(rig.Work(400 * kSecond) == Lines{"forgotten"});
  CHECK(rig.stream->status().state != StreamState::kSynchronised);
  rig.AnswerAll(2, 0);
  CHECK(rig.Work(400 * kSecond) == Lines{"replay 0", "replay 1", "confirmed"});
  CHECK(rig.stream->status().state == StreamState::kSynchronised);
}

TEST_CASE("C8: a live message that comes soon after a contradiction is asked for though nothing follows it") {
  DoubtedRig rig(2);
  CHECK(rig.See({Live(2)}, kTenth) == Lines{"live 2"});
  rig.Work(2 * kSecond);
  CHECK(rig.Asked() == std::vector<InFrames>{{{}, SequenceBytes(2)}});
  SUBCASE("it is not there") {
    rig.AnswerProof(EndWithTopic());
    CHECK(rig.Work(2 * kSecond) == Lines{});
    CHECK(rig.stream->status() == kDiffer);
  }
  SUBCASE("nobody answers") {
    rig.Work(4 * kSecond);
    CHECK(rig.stream->status() == kDiffer);
  }
  SUBCASE("the connection ends") {
    ++rig.live->peers.disconnected;
    CHECK(rig.Work(2 * kSecond) == Lines{"interrupted"});
    CHECK(rig.stream->links()[4] == nullptr);
  }
}

TEST_CASE("C8: of a life that answers began, the replay is asked once for the first message that came live") {
  ReplayedRig rig(5, 1);
  CHECK(rig.stream->status() == kByAnswers);
  const std::size_t before = rig.proofs.size();
  CHECK(rig.See({Live(5)}) == Lines{"live 5"});
  REQUIRE(rig.proofs.size() == before + 1);
  CHECK(rig.proofs.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(5)}});
  SUBCASE("it is another publisher's, which has other bytes") {
    rig.AnswerProof(ReplayWithTopic(5, 1));
    CHECK(rig.Work() == Lines{"contradiction 5 differs", "forgotten"});
    CHECK(rig.stream->status() == kDiffer);
  }
  SUBCASE("it is the same publisher's") {
    rig.AnswerProof(ReplayWithTopic(5));
    CHECK(rig.Work() == Lines{});
    CHECK(rig.stream->status() == kSynchronised);
  }
  SUBCASE("it does not keep the message") {
    rig.AnswerProof(EndWithTopic());
    CHECK(rig.Work() == Lines{});
    CHECK(rig.stream->status() == kSynchronised);
  }
  CHECK(rig.stream->links()[4] == nullptr);
  const std::size_t after = rig.proofs.size();
  if (rig.stream->status() == kSynchronised) rig.See({Live(6), Live(7)}, 100 * kSecond);
  CHECK(rig.proofs.size() == after);
}

TEST_CASE("C8: where nothing but live messages made what is held, no replay is asked for them") {
  KnownRig rig(3);
  rig.See({Live(3)}, kSecond);
  CHECK(rig.proofs.empty());
}

TEST_CASE("C8: a first hello that names a next number below what came live is another publisher's") {
  Rig rig;
  rig.live->peers.connected = 1;
  rig.hello = HelloOf(3);
  Lines said = rig.See({Live(0), Live(1), Live(2), Live(3), Live(4)});
  CHECK(said == Lines{"live 0", "live 1", "live 2", "live 3", "live 4", "contradiction 3 back", "forgotten"});
  REQUIRE(rig.attempts.size() == 1);
  for (SequenceNumber i = 0; i < 3; ++i) rig.Answer({ReplayWithTopic(i, 1)});
  rig.Answer({EndWithTopic()});
  rig.Work();
  CHECK(rig.stream->status() == kDiffer);
}

TEST_CASE("C8: when digests differ the replay is asked for the last live message, which tells whose digest it is") {
  KnownRig rig(3);
  rig.sink.digest = DigestEntries{{0, "GPU", 1, 42}};
  rig.hello->digest = DigestEntries{{0, "GPU", 2, 99}};
  rig.Work(5 * kSecond);
  REQUIRE(rig.proofs.size() == 1);
  CHECK(rig.proofs.back()->sent == std::vector<InFrames>{{{}, SequenceBytes(2)}});
  SUBCASE("another publisher's") {
    rig.AnswerProof(ReplayWithTopic(2, 1));
    CHECK(rig.Work(5 * kSecond) == Lines{"contradiction 2 differs", "forgotten"});
    CHECK(rig.stream->status() == kDiffer);
  }
  SUBCASE("the same one's") {
    rig.AnswerProof(ReplayWithTopic(2));
    CHECK(rig.Work(5 * kSecond) == Lines{});
    CHECK(rig.stream->status() == StreamStatus{StreamState::kUnsynchronised, "digest differs"});
  }
}

TEST_CASE("C8: what a replay brought before it came live is a duplicate") {
  ReplayedRig rig(5);
  CHECK(rig.See({Live(1), Live(2), Live(4)}, 100 * kSecond) == Lines{});
  CHECK(rig.stream->stats().duplicates == 3);
  CHECK(rig.stream->status() == kSynchronised);
}

// A stream that took a snapshot which ends before batch `next`.
struct SnapshotRig : Rig {
  explicit SnapshotRig(SequenceNumber next, EventStreamOptions options = {}) : Rig(true, options) {
    hello = HelloOf(10);
    hello->oldest = 9;
    hello->snapshots = true;
    live->peers.connected = 1;
    Work();
    AnswerSnapshot({Chunk(next, {1}), SnapshotEnd(next)});
    Work();
  }
};

TEST_CASE(
    "C4: when nobody says who answers on a new connection, and no bytes can be compared, a snapshot is forgotten") {
  SnapshotRig rig(10);
  rig.hello.reset();
  ++rig.live->peers.disconnected;
  rig.Work();
  ++rig.live->peers.connected;
  CHECK(rig.Work() == Lines{});
  Lines said;
  for (int i = 1; i < 20; ++i) {
    for (const std::string& line : rig.Work(i * kTenth)) said.push_back(line);
  }
  CHECK(said == Lines{"forgotten"});
  rig.Answer({ReplayWithTopic(0), EndWithTopic()});
  CHECK(rig.Work(2 * kSecond) == Lines{"replay 0", "confirmed"});
}

// A live message that was made at this time.
InFrames LiveMadeAt(SequenceNumber number, double ts) {
  KVEventBatch batch = OneBlock(1 + number);
  batch.ts = ts;
  return {ToBytes("kv"), SequenceBytes(number), Encode(batch)};
}

TEST_CASE("C8: a digest that has the effect of live messages is proof, one of answers alone is not") {
  SnapshotRig rig(1000);
  rig.sink.digest = DigestEntries{{0, "GPU", 1, 42}};
  CHECK(rig.See({LiveMadeAt(13, 2.6)}, kSecond) == Lines{"contradiction 13 behind", "forgotten"});
  rig.hello = HelloOf(1000);
  rig.hello->oldest = 1000;
  rig.hello->snapshots = true;
  rig.hello->digest = rig.sink.digest;
  rig.Work(kSecond);
  rig.AnswerSnapshot({Chunk(1000, {1}), SnapshotEnd(1000, *rig.sink.digest)});
  CHECK(rig.Work(kSecond).back() == "confirmed");
  CHECK(PlainStatus(*rig.stream) == kDiffer);
  rig.See({Live(1000)}, kSecond);
  CHECK(PlainStatus(*rig.stream) == kDiffer);
  rig.hello->next = 1001;
  rig.Work(10 * kSecond);
  CHECK(rig.stream->status() == kSynchronised);
}

TEST_CASE("C8: a live number that a snapshot is past may be on its way for long, and was not made after it") {
  EventStreamOptions options;
  options.check_interval = 0;
  SnapshotRig rig(1000, options);
  CHECK(rig.stream->status() == kByAnswers);
  CHECK(rig.See({Live(10), Live(11)}, 600 * kSecond) == Lines{});
  CHECK(rig.See({LiveMadeAt(12, 2.5)}, 600 * kSecond) == Lines{});
  CHECK(rig.stream->status() == kSynchronised);
  CHECK(rig.See({LiveMadeAt(13, 2.6)}, 600 * kSecond) == Lines{"contradiction 13 behind", "forgotten"});
  CHECK(PlainStatus(*rig.stream) == kDiffer);
}

TEST_CASE("C8: of a live number without a time, only how late it comes can tell") {
  EventStreamOptions options;
  options.check_interval = 0;
  SnapshotRig rig(1000, options);
  const double none = std::numeric_limits<double>::quiet_NaN();
  CHECK(rig.See({LiveMadeAt(10, none)}, 10 * kSecond - 1) == Lines{});
  rig.Work(10 * kSecond - 1);
  CHECK(rig.See({LiveMadeAt(11, none)}, 10 * kSecond) == Lines{"contradiction 11 behind", "forgotten"});
}

TEST_CASE("C8: a hello of the same life below what was passed when it was asked makes the stream begin anew") {
  SnapshotRig rig(1000);
  rig.hello = HelloOf(12);
  CHECK(rig.Work(5 * kSecond) == Lines{"contradiction 12 back", "forgotten"});
  REQUIRE_FALSE(rig.attempts.empty());
  for (SequenceNumber i = 0; i < 12; ++i) rig.Answer({ReplayWithTopic(i)});
  rig.Answer({EndWithTopic()});
  CHECK(rig.Work(5 * kSecond).back() == "confirmed");
  CHECK(rig.stream->next() == 12);
  CHECK(rig.stream->status() ==
        StreamStatus{StreamState::kUnsynchronised,
                     "the publisher's numbers went back within one life, or the replay address is "
                     "another publisher's"});
  SUBCASE("and is synchronised when the next one agrees") {
    rig.Work(10 * kSecond);
    CHECK(rig.stream->status() == kByAnswers);
  }
  SUBCASE("and again when the next one goes back, too") {
    rig.hello = HelloOf(11);
    CHECK(rig.Work(10 * kSecond) == Lines{"contradiction 11 back", "forgotten"});
  }
}

TEST_CASE("C8: a hello that was asked before the newest messages came is no contradiction") {
  KnownRig rig(3);
  rig.silent_to_hello = true;
  rig.Work(5 * kSecond);
  CHECK(rig.See({Live(3), Live(4)}, 5 * kSecond) == Lines{"live 3", "live 4"});
  Bytes payload;
  EncodeHello(HelloOf(3), &payload);
  rig.hello_wire->inbox.push_back({{}, ToBytes(kHelloName), SequenceBytes(3), payload});
  CHECK(rig.Work(5 * kSecond) == Lines{});
  CHECK(rig.stream->stats().contradictions == 0);
}

TEST_CASE("C14: epochs that follow each other quickly are asked ever less often, and the state says why") {
  KnownRig rig(1);
  std::uint64_t epoch = 100;
  const int before = rig.hellos;
  bool said = false;
  for (MonotonicNanos now = 5 * kSecond; now < 25 * kSecond; now += kTenth / 2) {
    rig.hello = HelloOf(0, ++epoch);
    rig.Work(now);
    said = said ||
           rig.stream->status() == StreamStatus{StreamState::kUnsynchronised,
                                                "the publisher begins anew again and again: it is asked after a pause"};
  }
  CHECK(said);
  CHECK(rig.hellos - before < 14);
  CHECK(rig.hellos - before > 6);
  // It stays: what it sends from then on is taken.
  rig.hello = HelloOf(0, epoch);
  rig.Work(40 * kSecond);
  rig.Work(50 * kSecond);
  CHECK(rig.See({Live(0)}, 50 * kSecond) == Lines{"live 0"});
  CHECK(rig.stream->status() == kSynchronised);
}

TEST_CASE("C3: a replay that brings nothing new is asked for a few times, with pauses, and then its hole is a gap") {
  ReplayedRig rig(5);
  CHECK(rig.See({Live(9)}) == Lines{"recovery 5-8"});
  const std::size_t before = rig.attempts.size();
  Lines said;
  for (MonotonicNanos now = 0; now < 8 * kSecond; now += kTenth) {
    if (rig.attempts.back()->sent.size() == 1 && rig.attempts.back()->inbox.empty()) {
      rig.Answer({ReplayWithTopic(0), ReplayWithTopic(9), EndWithTopic()});
    }
    for (const std::string& line : rig.Work(now)) said.push_back(line);
  }
  CHECK(rig.attempts.size() - before == 2);
  CHECK(said == Lines{"gap 5-8 not in the replay", "live 9"});
}

TEST_CASE("an xLLM replay that is behind the live stream is asked for ever less often") {
  EventStreamOptions options;
  options.dialect = Dialect::kXllm;
  Rig rig(true, options);
  rig.live->peers.connected = 1;
  SequenceNumber next = 10;
  for (MonotonicNanos now = 0; now < 20 * kSecond; now += kTenth) {
    if (now % (4 * kTenth) == 0) rig.live->inbox.push_back(Live(next++));
    rig.Work(now);
    if (rig.attempts.empty() || !rig.attempts.back()->inbox.empty()) continue;
    rig.Answer({{{}, SequenceBytes(next - 4), Chunk(0, {1})[3]}, EndLegacy()});
    rig.Work(now);
  }
  CHECK(rig.attempts.size() < 20);
}

TEST_CASE("the end of a snapshot may come without a digest") {
  Rig rig;
  rig.hello = HelloOf(10);
  rig.hello->oldest = 9;
  rig.hello->snapshots = true;
  rig.live->peers.connected = 1;
  rig.Work();
  rig.AnswerSnapshot({Chunk(10, {1}), {{}, ToBytes(kSnapshotEndName), SequenceBytes(10), {}}, EndWithTopic()});
  CHECK(rig.Work() == Lines{"snapshot from 10", "chunk 10 of 1", "snapshot to 10", "confirmed"});
  CHECK(rig.stream->status() == kByAnswers);
}

}  // namespace
}  // namespace kvwire::test
