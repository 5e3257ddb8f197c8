// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/mirror.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "kv_events/block_hash.h"
#include "tests/unit/subscribe/event_stream_rig.h"

namespace kvwire::test {
namespace {

using Hashes = std::vector<std::uint64_t>;

// A mirror, and the changes it reports as lines: "3: +1 -2", "4: all +5".
struct Bench {
  explicit Bench(Removals removals = Removals::kExact)
      : mirror(removals, [this](const MirrorChanges& changes) { lines.push_back(Describe(changes)); }) {}

  static std::string Describe(const MirrorChanges& changes) {
    std::string text = fmt::format("{}:{}", changes.next, changes.replaced ? " all" : "");
    const auto list = [&text](char sign, const std::vector<MirrorBlock>& blocks) {
      Hashes hashes;
      for (const MirrorBlock& block : blocks) hashes.push_back(block.low64);
      std::ranges::sort(hashes);
      for (const std::uint64_t hash : hashes) text += fmt::format(" {}{}", sign, hash);
    };
    list('+', changes.added);
    list('-', changes.removed);
    return text;
  }

  Bench& Store(const Hashes& hashes, std::string_view medium = "GPU", std::uint32_t group = 0) {
    for (const std::uint64_t hash : hashes) {
      const BlockHash block = BlockHash::FromUint64(hash);
      BlockStored stored;
      stored.block_hashes = {&block, 1};
      stored.block_size = 2;
      stored.medium = medium;
      stored.group_idx = group;
      batch.batch.Add(stored);
    }
    return *this;
  }
  Bench& Remove(const Hashes& hashes, std::string_view medium = "GPU", std::uint32_t group = 0) {
    for (const std::uint64_t hash : hashes) {
      const BlockHash block = BlockHash::FromUint64(hash);
      BlockRemoved removed;
      removed.block_hashes = {&block, 1};
      removed.medium = medium;
      removed.group_idx = group;
      batch.batch.Add(removed);
    }
    return *this;
  }
  Bench& Clear() {
    batch.batch.Add(AllBlocksCleared());
    return *this;
  }
  // Hands the events so far out as a batch, or as a chunk.
  Lines Send() {
    StreamMessage message;
    message.sequence = number++;
    mirror.OnBatch(message, batch);
    return Taken();
  }
  Lines SendChunk() {
    mirror.OnSnapshotChunk(number, batch);
    return Taken();
  }
  Lines Taken() {
    batch = DecodedBatch();
    return std::exchange(lines, {});
  }

  Lines lines;
  Mirror mirror;
  DecodedBatch batch;
  SequenceNumber number = 0;
};

TEST_CASE("a mirror reports what a batch changed, net") {
  Bench bench;
  CHECK(bench.Store({1, 2, 3}).Send() == Lines{"1: +1 +2 +3"});
  CHECK(bench.Store({1}).Send() == Lines{});
  CHECK(bench.Remove({2}).Store({4}).Send() == Lines{"3: +4 -2"});
  CHECK(bench.Store({5}).Remove({5}).Send() == Lines{});
  CHECK(bench.Remove({3}).Store({3}).Send() == Lines{});
  CHECK(bench.Remove({9}).Send() == Lines{});
  CHECK(bench.Remove({4}).Clear().Store({7, 8}).Remove({8}).Send() == Lines{"7: all +7"});
  CHECK(bench.mirror.size() == 1);
  CHECK(bench.mirror.next() == 7);
}

TEST_CASE("C15: groups and media are apart, and the medium's case does not matter") {
  Bench bench;
  bench.Store({1}, "gpu").Store({1}, "CPU").Store({1}, "GPU", 2).Send();
  CHECK(bench.mirror.size() == 3);
  CHECK(bench.Remove({1}, "GPU").Send() == Lines{"2: -1"});
  CHECK_FALSE(bench.mirror.Holds(0, "GPU", 1));
  CHECK(bench.mirror.Holds(0, "CPU", 1));
  CHECK(bench.mirror.Holds(2, "GPU", 1));
  CHECK_FALSE(bench.mirror.Holds(3, "GPU", 1));
  std::vector<MirrorBlock> blocks;
  bench.mirror.Copy([&blocks](const MirrorBlock& block) { blocks.push_back(block); });
  CHECK(blocks.size() == 2);
}

TEST_CASE("a block goes as the source's rule says: with its removals' batch, or with as many as it was announced") {
  Bench exact(Removals::kExact);
  CHECK(exact.Store({1, 1}).Send() == Lines{"1: +1"});
  CHECK(exact.Remove({1, 1}).Send() == Lines{"2: -1"});
  Bench per_copy(Removals::kPerCopy);
  CHECK(per_copy.Store({1, 1}).Send() == Lines{"1: +1"});
  CHECK(per_copy.Remove({1}).Send() == Lines{});
  CHECK(per_copy.Remove({1}).Send() == Lines{"3: -1"});
}

TEST_CASE("C9, C10: a snapshot is built beside what is held, and replaces it at its end") {
  Bench bench(Removals::kPerCopy);
  bench.Store({1, 2, 3}).Send();
  bench.mirror.OnSnapshotBegin(1);
  CHECK(bench.Store({2, 2, 4}).SendChunk() == Lines{});
  CHECK(bench.mirror.Holds(0, "GPU", 1));
  // A live removal of a block that the walk has not reached means nothing to what is built.
  CHECK(bench.Store({5}).Remove({3, 6}).Send() == Lines{"2: +5 -3"});
  // A chunk replaces counts: 5 was announced once, 2 twice, and both are again.
  CHECK(bench.Store({5}).Store({2, 2}).SendChunk() == Lines{});
  bench.mirror.OnSnapshotEnd(2, std::nullopt);
  CHECK(bench.Taken() == Lines{"2: all +2 +4 +5"});
  CHECK(bench.Remove({2}).Send() == Lines{});
  CHECK(bench.Remove({2, 5}).Send() == Lines{"4: -2 -5"});
}

TEST_CASE(
    "C13, C14: what is held is void after a clear, a restart and when all is forgotten, and so is what is built") {
  Bench bench;
  bench.Store({1}).Send();
  bench.mirror.OnSnapshotBegin(1);
  bench.Store({2}).SendChunk();
  SUBCASE("a clear") { CHECK(bench.Clear().Send() == Lines{"2: all"}); }
  SUBCASE("a restart") { bench.mirror.OnRestart(0, std::nullopt); }
  SUBCASE("forgotten") { bench.mirror.OnContinuity(Continuity::kForgotten); }
  SUBCASE("an interruption voids nothing") {
    bench.mirror.OnContinuity(Continuity::kInterrupted);
    bench.mirror.OnSnapshotAbandoned();
    CHECK(bench.mirror.size() == 1);
    return;
  }
  CHECK(bench.mirror.size() == 0);
  CHECK(bench.mirror.HeldDigest() == DigestEntries{});
}

// A stream into a mirror.
struct MirroredRig : Rig {
  MirroredRig() {
    EventStreamOptions options;
    options.gate = gate;
    stream = std::make_unique<EventStream>(
        std::make_unique<ScriptedLink>(live), [this] { return NewAttempt(); }, options, &bench.mirror);
  }
  Lines Changes(const std::vector<InFrames>& messages, MonotonicNanos now = 0) {
    See(messages, now);
    return bench.Taken();
  }

  Bench bench;
};

InFrames Removal(SequenceNumber number, std::uint64_t hash) {
  KVEventBatch batch;
  batch.ts = 1.5;
  batch.data_parallel_rank = 0;
  const BlockHash block = BlockHash::FromUint64(hash);
  BlockRemoved removed;
  removed.block_hashes = {&block, 1};
  batch.Add(removed);
  return {ToBytes("kv"), SequenceBytes(number), Encode(batch)};
}

TEST_CASE("C7: a store from a replay that is late does not bring back what a live message removed") {
  MirroredRig rig;
  CHECK(rig.Changes({Live(0)}) == Lines{"1: +1"});
  // Message 2 stores block 3, message 4 removes it.
  CHECK(rig.Changes({Removal(4, 3)}) == Lines{});
  CHECK(rig.Changes({}, 2 * kSecond) == Lines{});  // the first attempt is not answered
  rig.Answer({ReplayWithTopic(1), ReplayWithTopic(2), ReplayWithTopic(3), EndWithTopic()});
  CHECK(rig.Changes({}, 2 * kSecond) == Lines{"2: +2", "3: +3", "4: +4", "5: -3"});
}

TEST_CASE("C10: while a gap is closed nothing that is held disappears") {
  MirroredRig rig;
  rig.Changes({Live(0), Live(1)});
  CHECK(rig.Changes({Live(5)}) == Lines{});
  CHECK(rig.stream->status().state == StreamState::kRecovering);
  CHECK(rig.bench.mirror.size() == 2);
  rig.Answer({ReplayWithTopic(2), ReplayWithTopic(3), ReplayWithTopic(4), EndWithTopic()});
  CHECK(rig.Changes({}) == Lines{"3: +3", "4: +4", "5: +5", "6: +6"});
}

TEST_CASE("C16: a connection that ends and comes back in the same life clears nothing") {
  MirroredRig rig;
  rig.hello = Hello();
  rig.hello->epoch = 7;
  rig.hello->next = 2;
  rig.hello->oldest = 0;
  rig.live->peers.connected = 1;
  rig.Changes({Live(0), Live(1)});
  ++rig.live->peers.disconnected;
  CHECK(rig.Changes({}) == Lines{});
  CHECK(rig.stream->status().state == StreamState::kSuspect);
  CHECK(rig.bench.mirror.size() == 2);
  ++rig.live->peers.connected;
  CHECK(rig.Changes({}) == Lines{});
  CHECK(rig.stream->status().state == StreamState::kSynchronised);
}

TEST_CASE("C18: a block whose parent came before the subscriber is held, and the stream says that it is not all") {
  MirroredRig rig;
  rig.See({Live(3)});
  rig.Answer({EndWithTopic()});
  CHECK(rig.Changes({}) == Lines{"4: +4"});
  CHECK(rig.stream->status().state == StreamState::kUnsynchronised);
}

}  // namespace
}  // namespace kvwire::test
