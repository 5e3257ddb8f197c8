// SPDX-License-Identifier: Apache-2.0
// EventStream and snapshots: pieces among live messages, holes, attempts.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/subscribe/event_stream.h"
#include "kv_events/subscribe/mirror.h"
#include "tests/unit/subscribe/event_stream_rig.h"

namespace kvwire::test {
namespace {

const DigestEntries kOneBlock{{0, "GPU", 1, 42}};
const StreamStatus kSynchronised{StreamState::kSynchronised, "every number was applied"};
const StreamStatus kTaking{StreamState::kRecovering, "a snapshot is under way"};

Hello HelloOf(SequenceNumber next, SequenceNumber oldest) {
  Hello hello;
  hello.epoch = 7;
  hello.next = next;
  hello.oldest = oldest;
  hello.snapshots = true;
  return hello;
}

// A connected stream of a publisher that sent 0 to 99, keeps 90 to 99, and gives snapshots. One was asked for.
struct LateRig : Rig {
  explicit LateRig(EventStreamOptions options = {}) : Rig(true, options) {
    hello = HelloOf(100, 90);
    live->peers.connected = 1;
    Work();
  }
  StreamStatus status() const { return PlainStatus(*stream); }
};

InFrames Clear(SequenceNumber number) {
  KVEventBatch batch;
  batch.ts = 1.5;
  batch.data_parallel_rank = 0;
  batch.Add(AllBlocksCleared());
  return {ToBytes("kv"), SequenceBytes(number), Encode(batch)};
}

TEST_CASE("C9, C19: a subscriber that comes too late for the replay takes a snapshot") {
  LateRig rig;
  CHECK(rig.attempts.empty());
  REQUIRE(rig.snapshots.size() == 1);
  CHECK(rig.snapshots[0]->sent == std::vector<InFrames>{{{}, ToBytes(kSnapshotName)}});
  CHECK(rig.status() == kTaking);
  CHECK(rig.stream->recovering());
  rig.AnswerSnapshot({Chunk(100, {1, 2}), Chunk(100, {3}), SnapshotEnd(100)});
  CHECK(rig.Work() == Lines{"snapshot from 100", "chunk 100 of 2", "chunk 100 of 1", "snapshot to 100", "confirmed"});
  CHECK(rig.status() == kByAnswers);
  CHECK_FALSE(rig.stream->recovering());
  CHECK(rig.See({Live(100)}) == Lines{"live 100"});
  CHECK(rig.stream->stats().superseded == 100);
  CHECK(rig.stream->stats().gaps == 0);
}

TEST_CASE("C7, C9: chunks and live messages are applied in the order of their numbers, however they arrive") {
  LateRig rig;
  // Nothing is applied before the piece behind it is known.
  CHECK(rig.See({Live(100), Live(101), Live(102), Live(103)}) == Lines{});
  rig.AnswerSnapshot({Chunk(101, {1})});
  CHECK(rig.Work() == Lines{"snapshot from 101", "chunk 101 of 1"});
  rig.AnswerSnapshot({Chunk(103, {2})});
  CHECK(rig.Work() == Lines{"live 101", "live 102", "chunk 103 of 1"});
  rig.AnswerSnapshot({SnapshotEnd(105)});
  CHECK(rig.Work() == Lines{"live 103"});
  CHECK(rig.See({Live(104), Live(105)}) == Lines{"live 104", "snapshot to 105", "confirmed", "live 105"});
  CHECK(rig.status() == kSynchronised);
}

TEST_CASE("messages that follow what was applied are applied before the first chunk, the rest is in it") {
  Rig rig;
  rig.hello = HelloOf(3, 0);
  rig.live->peers.connected = 1;
  rig.See({Live(0), Live(1), Live(2)});
  rig.hello->oldest = 50;
  rig.hello->next = 60;
  rig.Work(5 * kSecond);
  rig.Work(6 * kSecond);
  REQUIRE(rig.snapshots.size() == 1);
  CHECK(rig.See({Live(3), Live(5)}, 6 * kSecond) == Lines{});
  rig.AnswerSnapshot({Chunk(60, {1}), SnapshotEnd(60)});
  CHECK(rig.Work(6 * kSecond) == Lines{"live 3", "snapshot from 60", "chunk 60 of 1", "snapshot to 60"});
  CHECK(rig.stream->stats().superseded == 56);
}

TEST_CASE("C10: a gap that the replay closes takes no snapshot; one that it does not is followed by one") {
  Rig rig;
  rig.hello = HelloOf(1, 0);
  rig.live->peers.connected = 1;
  rig.See({Live(0)});
  CHECK(rig.See({Live(4)}) == Lines{"recovery 1-3"});
  SUBCASE("closed") {
    rig.Answer({ReplayWithTopic(1), ReplayWithTopic(2), ReplayWithTopic(3), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 1", "replay 2", "replay 3", "healed 1-3", "live 4"});
    CHECK(rig.snapshots.empty());
  }
  SUBCASE("not closed") {
    rig.Answer({ReplayWithTopic(3), EndWithTopic()});
    CHECK(rig.Work() == Lines{"gap 1-2 not in the replay", "replay 3", "live 4"});
    REQUIRE(rig.snapshots.size() == 1);
    CHECK(PlainStatus(*rig.stream) == kTaking);
    rig.AnswerSnapshot({Chunk(5, {1}), SnapshotEnd(5)});
    CHECK(rig.Work() == Lines{"snapshot from 5", "chunk 5 of 1", "snapshot to 5"});
  }
  CHECK(rig.stream->status() == kSynchronised);
}

TEST_CASE("C9: a late subscriber whose stream has passed the number of the first digest takes a snapshot at once") {
  Rig rig;
  rig.sink.digest = kOneBlock;
  rig.silent_to_hello = true;
  rig.See({Live(100)});
  rig.Answer({EndWithTopic()});
  rig.Work();
  rig.See({Live(101)});
  Hello hello = HelloOf(101, 90);
  hello.digest = kOneBlock;
  Bytes payload;
  EncodeHello(hello, &payload);
  rig.hello_wire->inbox.push_back({{}, ToBytes(kHelloName), SequenceBytes(101), payload});
  rig.Work();
  CHECK(rig.hellos == 1);
  CHECK(rig.stream->next() == 102);
  CHECK(rig.stream->stats().digests_compared == 0);
  CHECK(rig.snapshots.size() == 1);
  CHECK(PlainStatus(*rig.stream) == kTaking);
}

TEST_CASE("C9: a publisher that gives no snapshots leaves a late subscriber unsynchronised") {
  Rig rig;
  rig.hello = HelloOf(100, 90);
  rig.hello->snapshots = false;
  rig.live->peers.connected = 1;
  rig.Work();
  for (SequenceNumber i = 90; i < 100; ++i) rig.Answer({ReplayWithTopic(i)});
  rig.Answer({EndWithTopic()});
  CHECK(rig.Work()[0] == "gap 0-89 late: not in the replay");
  CHECK(PlainStatus(*rig.stream) ==
        StreamStatus{StreamState::kUnsynchronised, "joined late: what was announced before is not known"});
  CHECK(rig.snapshots.empty());
}

TEST_CASE("J12: live messages that are missing behind the first chunk are replayed before the next one") {
  LateRig rig;
  rig.AnswerSnapshot({Chunk(100, {1}), Chunk(103, {2}), SnapshotEnd(103)});
  CHECK(rig.Work() == Lines{"snapshot from 100", "chunk 100 of 1"});
  CHECK(rig.attempts.empty());
  SUBCASE("at once when a later message shows it") {
    CHECK(rig.See({Live(102)}) == Lines{"recovery 100-101"});
    rig.Answer({ReplayWithTopic(100), ReplayWithTopic(101), ReplayWithTopic(102), EndWithTopic()});
    CHECK(rig.Work() == Lines{"replay 100", "replay 101", "healed 100-101", "live 102", "chunk 103 of 1",
                              "snapshot to 103", "confirmed"});
  }
  SUBCASE("after a while when nothing comes") {
    CHECK(rig.Work(kSecond / 4) == Lines{});
    CHECK(rig.Work(kSecond) == Lines{"recovery 100-102"});
    rig.Answer({ReplayWithTopic(100), ReplayWithTopic(101), ReplayWithTopic(102), EndWithTopic()});
    CHECK(rig.Work(kSecond) == Lines{"replay 100", "replay 101", "replay 102", "healed 100-102", "chunk 103 of 1",
                                     "snapshot to 103", "confirmed"});
  }
  SUBCASE("but not behind the piece at hand: what follows it is for later") {
    CHECK(rig.See({Live(107)}) == Lines{"recovery 100-102"});
    rig.Answer({ReplayWithTopic(100), ReplayWithTopic(101), ReplayWithTopic(102), ReplayWithTopic(103)});
    CHECK(rig.Work() == Lines{"replay 100", "replay 101", "replay 102", "healed 100-102", "chunk 103 of 1",
                              "snapshot to 103", "confirmed", "recovery 103-106"});
    return;
  }
  CHECK(rig.status().state == StreamState::kSynchronised);
}

TEST_CASE("J12: a hole behind the first chunk that no replay closes ends the snapshot, which is asked for again") {
  LateRig rig;
  rig.AnswerSnapshot({Chunk(100, {1}), Chunk(103, {2})});
  rig.Work();
  CHECK(rig.See({Live(102)}) == Lines{"recovery 100-101"});
  rig.Answer({EndWithTopic()});
  CHECK(rig.Work() == Lines{"gap 100-101 not in the replay", "snapshot abandoned", "unconfirmed", "live 102"});
  CHECK(rig.status() == StreamStatus{StreamState::kUnsynchronised, "messages are missing"});
  CHECK(rig.stream->recovering());
  CHECK(rig.snapshots.size() == 1);
  rig.Work(kSecond);
  REQUIRE(rig.snapshots.size() == 2);
  rig.AnswerSnapshot({Chunk(103, {1}), SnapshotEnd(103)});
  CHECK(rig.Work(kSecond) == Lines{"snapshot from 103", "chunk 103 of 1", "snapshot to 103"});
  CHECK(rig.status() == kSynchronised);
}

TEST_CASE("a snapshot is asked for a few times, with growing pauses, and then rests") {
  EventStreamOptions options;
  options.check_interval = 0;
  LateRig rig(options);
  std::vector<MonotonicNanos> asked;
  std::size_t seen = 0;
  for (MonotonicNanos now = 0; now < 50 * kSecond; now += kSecond / 20) {
    rig.Work(now);
    if (rig.snapshots.size() == seen) continue;
    seen = rig.snapshots.size();
    asked.push_back(now);
    rig.AnswerSnapshot({SnapshotEnd(100), EndWithTopic()});
    rig.snapshots.back()->inbox.front()[3] = {0xc1};  // the digest of the end cannot be read
  }
  CHECK(asked.size() == 5);
  for (std::size_t i = 2; i + 1 < asked.size(); ++i) {
    CHECK(asked[i + 1] - asked[i] > asked[i] - asked[i - 1]);
  }
  CHECK(rig.stream->stats().snapshots_failed == 5);
  CHECK_FALSE(rig.stream->recovering());
  SUBCASE("a new connection is a new reason") {
    ++rig.live->peers.disconnected;
    rig.Work(50 * kSecond);
    ++rig.live->peers.connected;
    rig.Work(50 * kSecond);
    CHECK(rig.snapshots.size() == 6);
  }
  SUBCASE("and so is a gap, when it has rested") {
    CHECK(rig.See({Live(0), Live(2)}, 50 * kSecond) == Lines{"live 0", "recovery 1-1"});
    rig.Answer({EndWithTopic()});
    rig.Work(50 * kSecond);
    CHECK(rig.snapshots.size() == 5);
    rig.Work(120 * kSecond);
    CHECK(rig.snapshots.size() == 6);
  }
}

TEST_CASE("a snapshot that is refused, breaks off or cannot be read leaves what is held as it was") {
  LateRig rig;
  SUBCASE("refused") {
    rig.AnswerSnapshot({EndWithTopic()});
    CHECK(rig.Work() == Lines{"unconfirmed"});
    rig.Work(30 * kSecond);
    CHECK(rig.snapshots.size() == 1);
    return;
  }
  SUBCASE("silence") {
    CHECK(rig.Work(10 * kSecond) == Lines{"unconfirmed"});
    rig.Work(11 * kSecond);
  }
  SUBCASE("it breaks off") {
    rig.AnswerSnapshot({Chunk(100, {1}), EndWithTopic()});
    CHECK(rig.Work() == Lines{"snapshot from 100", "chunk 100 of 1", "snapshot abandoned", "unconfirmed"});
    rig.Work(kSecond);
  }
  SUBCASE("its numbers fall") {
    rig.AnswerSnapshot({Chunk(100, {1}), Chunk(99, {2})});
    CHECK(rig.Work() == Lines{"snapshot from 100", "chunk 100 of 1", "snapshot abandoned", "unconfirmed"});
    rig.Work(kSecond);
  }
  SUBCASE("a chunk that removes") {
    InFrames chunk = Chunk(100, {1});
    chunk[3] = Clear(0)[2];
    rig.AnswerSnapshot({chunk});
    CHECK(rig.Work() == Lines{"snapshot from 100", "chunk 100 of 1"});  // an AllBlocksCleared in front is none
    KVEventBatch removal;
    const BlockHash block = BlockHash::FromUint64(1);
    BlockRemoved removed;
    removed.block_hashes = {&block, 1};
    removal.Add(removed);
    chunk[3] = Encode(removal);
    rig.AnswerSnapshot({chunk});
    CHECK(rig.Work() == Lines{"snapshot abandoned", "unconfirmed"});
    rig.Work(kSecond);
  }
  SUBCASE("a chunk that cannot be read") {
    InFrames chunk = Chunk(100, {1});
    chunk[3] = {0xc1};
    rig.AnswerSnapshot({chunk});
    CHECK(rig.Work() == Lines{"unconfirmed"});
    rig.Work(kSecond);
  }
  CHECK(rig.snapshots.size() == 2);
  CHECK(rig.stream->stats().snapshots_failed == 1);
}

TEST_CASE("a snapshot of an earlier state than what was applied is none") {
  Rig rig;
  rig.hello = HelloOf(3, 0);
  rig.live->peers.connected = 1;
  rig.See({Live(0), Live(1), Live(2)});
  rig.See({Live(5)});
  rig.Answer({EndWithTopic()});
  rig.Work();
  REQUIRE(rig.snapshots.size() == 1);
  rig.hello = HelloOf(6, 0);
  rig.AnswerSnapshot({Chunk(4, {1})});
  CHECK(rig.Work() == Lines{});
  CHECK(rig.stream->stats().snapshots_failed == 1);
}

TEST_CASE("an AllBlocksCleared among the live messages is a baseline by itself, and ends the snapshot") {
  LateRig rig;
  rig.AnswerSnapshot({Chunk(100, {1}), Chunk(103, {2})});
  rig.Work();
  CHECK(rig.See({Live(100), Clear(101), Live(102)}) ==
        Lines{"live 100", "live 101", "snapshot abandoned", "unconfirmed", "live 102"});
  CHECK(rig.status() == kSynchronised);
  CHECK_FALSE(rig.stream->recovering());
  rig.hello = HelloOf(103, 90);
  CHECK(rig.Work(100 * kSecond) == Lines{});
  CHECK(rig.snapshots.size() == 1);
}

TEST_CASE("C7: more live messages than may wait for a snapshot are applied, and it is asked for again") {
  EventStreamOptions options;
  options.max_waiting_messages = 3;
  LateRig rig(options);
  CHECK(rig.See({Live(100), Live(101), Live(102)}) == Lines{});
  CHECK(rig.See({Live(103)}) == Lines{"unconfirmed", "recovery 0-99",
                                      "gap 0-99 late: too many live messages while waiting for the replay", "live 100",
                                      "live 101", "live 102", "live 103"});
  CHECK(rig.stream->stats().snapshots_failed == 1);
  CHECK(rig.status().state == StreamState::kUnsynchronised);
  rig.Work(kSecond);
  CHECK(rig.snapshots.size() == 2);
}

TEST_CASE("C14: a connection that ends during a snapshot ends it, and it begins again with the next one") {
  LateRig rig;
  rig.AnswerSnapshot({Chunk(100, {1})});
  CHECK(rig.See({Live(100)}) == Lines{"snapshot from 100", "chunk 100 of 1"});
  ++rig.live->peers.disconnected;
  CHECK(rig.Work() == Lines{"interrupted", "snapshot abandoned", "unconfirmed"});
  rig.hello = HelloOf(105, 95);
  SUBCASE("the same life") {
    ++rig.live->peers.connected;
    CHECK(rig.Work() == Lines{"confirmed", "live 100"});
  }
  SUBCASE("another life") {
    rig.hello->epoch = 8;
    ++rig.live->peers.connected;
    CHECK(rig.Work() == Lines{"restart 99 by replay"});
  }
  REQUIRE(rig.snapshots.size() == 2);
  rig.AnswerSnapshot({Chunk(105, {1}), SnapshotEnd(105)});
  CHECK(rig.Work()[0] == "snapshot from 105");
  CHECK(rig.status().state == StreamState::kSynchronised);
}

TEST_CASE("a snapshot whose digest is not that of what was built is not believed, and not asked for at once") {
  LateRig rig;
  rig.sink.digest = kOneBlock;
  rig.AnswerSnapshot({Chunk(100, {1}), SnapshotEnd(100, {{0, "GPU", 2, 1}})});
  rig.Work();
  CHECK(rig.status() == StreamStatus{StreamState::kUnsynchronised, "digest differs"});
  rig.Work(kSecond);
  CHECK(rig.snapshots.size() == 1);
  rig.Work(11 * kSecond);
  REQUIRE(rig.snapshots.size() == 2);
  rig.AnswerSnapshot({Chunk(100, {1}), SnapshotEnd(100, kOneBlock)});
  rig.Work(11 * kSecond);
  CHECK(rig.status() == kByAnswers);
}

TEST_CASE("a digest that differs is followed by a snapshot") {
  Rig rig;
  rig.hello = HelloOf(1, 0);
  rig.live->peers.connected = 1;
  rig.See({Live(0)});
  rig.sink.digest = kOneBlock;
  rig.hello->digest = DigestEntries{{0, "GPU", 2, 1}};
  rig.Work(5 * kSecond);
  CHECK(rig.snapshots.size() == 1);
  CHECK(rig.stream->status() == kTaking);
}

// A publisher of blocks that come and go at random while it walks them, and the two ways its messages take.
class WalkedPublisher {
 public:
  explicit WalkedPublisher(unsigned seed) : random_(seed) {}

  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }

  // A batch of changes; kept for replay.
  InFrames Step() {
    KVEventBatch batch;
    batch.ts = 1.5;
    batch.data_parallel_rank = 0;
    for (std::uint64_t i = Below(4); i > 0; --i) Change(&batch);
    const Bytes payload = Encode(batch);
    history_.push_back(payload);
    return {ToBytes("kv"), SequenceBytes(history_.size() - 1), payload};
  }
  // The next blocks of the walk, as often as they are announced; its end when none is left. Its first chunk is as of
  // its beginning.
  InFrames Walk() {
    const bool first = !std::exchange(walking_, true);
    if (first) {
      for (const auto& [hash, count] : held_) to_walk_.push_back(hash);
    }
    if (to_walk_.empty() && !first) return SnapshotEnd(history_.size(), digest());
    std::vector<std::uint64_t> hashes;
    for (int i = 0; i < 3 && !to_walk_.empty(); ++i, to_walk_.pop_front()) {
      const auto held = held_.find(to_walk_.front());
      if (held != held_.end()) hashes.insert(hashes.end(), held->second, held->first);
    }
    return Chunk(history_.size(), hashes);
  }
  std::vector<InFrames> Replay(SequenceNumber from) const {
    std::vector<InFrames> answer;
    for (SequenceNumber i = from; i < history_.size(); ++i) {
      answer.push_back({{}, ToBytes("kv"), SequenceBytes(i), history_[i]});
    }
    answer.push_back(EndWithTopic());
    return answer;
  }
  DigestEntries digest() const {
    StateDigest digest;
    for (const auto& [hash, count] : held_) digest.Add(0, "GPU", hash);
    return digest.entries();
  }
  SequenceNumber next() const { return history_.size(); }

 private:
  void Change(KVEventBatch* batch) {
    const std::uint64_t hash = 1 + Below(40);
    const BlockHash block = BlockHash::FromUint64(hash);
    if (Below(2) == 0) {
      const std::vector<TokenId> tokens{1, 2};
      BlockStored stored;
      stored.block_hashes = {&block, 1};
      stored.token_ids = tokens;
      stored.block_size = 2;
      batch->Add(stored);
      ++held_[hash];
    } else if (const auto held = held_.find(hash); held != held_.end()) {
      BlockRemoved removed;
      removed.block_hashes = {&block, 1};
      for (; held->second > 0; --held->second) batch->Add(removed);
      held_.erase(held);
    }
  }

  std::mt19937_64 random_;
  std::map<std::uint64_t, std::uint32_t> held_;
  std::deque<std::uint64_t> to_walk_;
  bool walking_ = false;
  std::vector<Bytes> history_;
};

TEST_CASE("C9: a mirror that takes a snapshot in the middle of live changes holds exactly what the publisher holds") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    WalkedPublisher publisher(seed);
    for (int i = 0; i < 30; ++i) publisher.Step();
    Mirror mirror(seed % 2 == 0 ? Removals::kExact : Removals::kPerCopy);
    Rig rig;
    EventStreamOptions options;
    options.gate = rig.gate;
    rig.stream = std::make_unique<EventStream>(
        std::make_unique<ScriptedLink>(rig.live), [&rig] { return rig.NewAttempt(); }, options, &mirror);
    rig.hello = HelloOf(publisher.next(), 20);
    rig.live->peers.connected = 1;
    rig.Work();
    REQUIRE(rig.snapshots.size() == 1);
    std::deque<InFrames> on_its_way;  // live messages, which may come later than the chunks, and get lost
    const auto walking = [&] { return rig.stream->stats().snapshots == 0; };
    const auto work = [&](MonotonicNanos now) {
      rig.hello = HelloOf(publisher.next(), 0);
      rig.Work(now);
      if (rig.attempts.empty() || rig.attempts.back()->sent.empty()) return;
      const InFrames request = std::exchange(rig.attempts.back()->sent, {}).front();
      rig.Answer(publisher.Replay(*DecodeSequence(request[1])));
      rig.Work(now);
    };
    MonotonicNanos now = 0;
    for (; walking() || publisher.Below(8) != 0; now += kSecond / 10) {
      REQUIRE(now < 1000 * kSecond);
      if (publisher.Below(2) == 0) on_its_way.push_back(publisher.Step());
      if (walking() && publisher.Below(2) == 0) rig.AnswerSnapshot({publisher.Walk()});
      while (!on_its_way.empty() && publisher.Below(3) != 0) {
        if (publisher.Below(6) != 0) rig.live->inbox.push_back(on_its_way.front());
        on_its_way.pop_front();
      }
      work(now);
    }
    rig.live->inbox.insert(rig.live->inbox.end(), on_its_way.begin(), on_its_way.end());
    for (int i = 0; i < 4; ++i) work(now += 5 * kSecond);
    REQUIRE(rig.stream->next() == publisher.next());
    CHECK(mirror.digest().entries() == publisher.digest());
    CHECK(rig.stream->status() == kSynchronised);
    CHECK(rig.stream->stats().digests_differed == 0);
  }
}

}  // namespace
}  // namespace kvwire::test
