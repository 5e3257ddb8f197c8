// SPDX-License-Identifier: Apache-2.0
// Snapshots as one message with the whole state.
#include <optional>
#include <set>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/wire/decoder.h"
#include "snapshot_bench.h"

namespace kvwire::test {
namespace {

using Bench = SnapshotBench;
using std::chrono::milliseconds;
using std::chrono::seconds;

const AdjustOptions kXllm = [](PublisherAgent::Options* options) { options->snapshot = SnapshotForm::kXllm; };

// Checks an answer in the xllm form; the hashes of its state.
std::set<std::uint64_t> WholeState(const std::vector<Replayed>& messages, SequenceNumber watermark) {
  REQUIRE(messages.size() == 2);
  CHECK(messages[0].frames == 3);
  CHECK(messages[0].number == watermark);
  CHECK(messages[1].frames == 3);
  CHECK(messages[1].end);
  const auto decoded = DecodeBatch(messages[0].payload);
  REQUIRE(decoded);
  CHECK(decoded->batch.data_parallel_rank == 3);
  std::set<std::uint64_t> held;
  for (std::size_t i = 0; i < decoded->batch.size(); ++i) {
    const KVEventBatch::Event event = decoded->batch.at(i);
    CHECK(std::holds_alternative<AllBlocksCleared>(event) == (i == 0));
    const auto* stored = std::get_if<BlockStored>(&event);
    if (stored == nullptr) continue;
    CHECK(stored->token_ids.size() == 4 * stored->block_hashes.size());
    std::optional<BlockHash> parent = stored->parent_block_hash;
    for (std::size_t block = 0; block < stored->block_hashes.size(); ++block) {
      const std::uint64_t hash = stored->block_hashes[block].Low64();
      CHECK(stored->token_ids[4 * block] == hash % 100000);
      CHECK(stored->medium == StateProducer::MediumOf(hash));
      if (parent) CHECK(held.contains(parent->Low64()));
      CHECK(held.insert(hash).second);
      parent = stored->block_hashes[block];
    }
  }
  return held;
}

std::vector<Replayed> ReadReplayed(FrameLink* dealer) {
  std::vector<Replayed> messages;
  while (std::optional<Replayed> message = ReceiveReplayed(dealer)) messages.push_back(std::move(*message));
  return messages;
}

TEST_CASE("C9: in the xllm form every replay request gets the whole state in one message, exact at its watermark") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Bench bench(kXllm);
    StateProducer pool(seed);
    for (int i = 0; i < 60; ++i) bench.Publish(pool.Step());
    const auto dealer = bench.rig.Dealer("d");
    Ask(dealer.get(), seed % 2 == 0 ? 0 : SequenceNumber{1000000});
    bench.publisher.Drain();
    REQUIRE(bench.publisher.agent.wants().walks == 1);
    pool.BeginWalk(1);
    while (pool.walking()) {
      REQUIRE(bench.publisher.PublishChunk(pool.NextChunk(3)) == PublishResult::kAccepted);
      bench.publisher.Drain();
      if (!pool.walking()) break;
      if (seed % 3 != 0 || pool.hashes().size() % 2 == 0) bench.Publish(pool.Step());
      if (seed % 7 == 0 && pool.hashes().size() % 11 == 0) bench.Publish(pool.Clear());
    }
    const std::set<std::uint64_t> truth = pool.hashes();
    const SequenceNumber watermark = bench.publisher.queue.next_number() - 1;
    bench.Publish(pool.Step());  // no part of it
    CHECK(WholeState(ReadReplayed(dealer.get()), watermark) == truth);
    CHECK(bench.stats().snapshots_sent == 1);
  }
}

TEST_CASE("C9: the xllm form takes many slices for a large state, and live batches pass between") {
  Bench bench(kXllm);
  StateProducer pool(12);
  while (pool.hashes().size() < 1) bench.Publish(pool.Step());
  KVEventBatch many;
  const auto dealer = bench.rig.Dealer("d");
  Ask(dealer.get(), SequenceNumber{0});
  bench.publisher.Drain();
  // 20,000 blocks in ten chunks.
  for (std::uint64_t chunk = 0; chunk < 10; ++chunk) {
    const KVEventBatch blocks = StoreBatch(2000, 1000000 + 2000 * chunk);
    REQUIRE(bench.publisher.PublishChunk({blocks, 1, chunk == 0, chunk == 9}) == PublishResult::kAccepted);
  }
  std::size_t turns = 0;
  std::vector<Replayed> messages;
  while (messages.size() < 2 && turns < 1000) {
    static_cast<void>(bench.publisher.Publish(StoreBatch(1)));
    bench.publisher.Turn();
    CHECK(bench.stats().queued == 0);
    ++turns;
    for (Replayed& message : ReadReplayed(dealer.get())) messages.push_back(std::move(message));
  }
  REQUIRE(messages.size() == 2);
  CHECK(turns >= 20000 / SnapshotWalks::kBlocksPerCall);
  CHECK(StoredHashes(messages[0].payload).size() == 20000);
}

TEST_CASE("C9: a stream without batches is told as empty at 0, and a host without a state ends in the end mark alone") {
  Bench bench(kXllm);
  StateProducer pool(13);
  const auto dealer = bench.rig.Dealer("d");
  Ask(dealer.get(), SequenceNumber{0});
  bench.publisher.Drain();
  bench.Walk(&pool, 5);
  CHECK(WholeState(ReadReplayed(dealer.get()), 0).empty());
  Ask(dealer.get(), SequenceNumber{0});
  bench.publisher.Drain();
  bench.Pass(seconds(5) + milliseconds(1));
  const std::vector<Replayed> messages = ReadReplayed(dealer.get());
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].end);
  CHECK(messages[0].frames == 3);
}

TEST_CASE("A2: a batch lost during the walk spoils the xllm form, unless a clear follows") {
  for (const bool clears : {false, true}) {
    AgentSettings settings;
    settings.max_batches = 2;
    Bench bench(kXllm, settings);
    StateProducer pool(14);
    for (int i = 0; i < 20; ++i) bench.Publish(pool.Step());
    const auto dealer = bench.rig.Dealer("d");
    Ask(dealer.get(), SequenceNumber{0});
    bench.publisher.Drain();
    pool.BeginWalk(1);
    static_cast<void>(bench.publisher.PublishChunk(pool.NextChunk(2)));
    bench.publisher.Drain();
    for (int i = 0; i < 3; ++i) static_cast<void>(bench.publisher.Publish(pool.Step()));
    bench.publisher.Drain();
    CHECK(bench.stats().dropped_full == 1);
    if (clears) {
      bench.Publish(pool.Clear());
      bench.Publish(pool.Step());
      pool.BeginWalk(1);
    }
    while (pool.walking()) {
      static_cast<void>(bench.publisher.PublishChunk(pool.NextChunk(1000)));
      bench.publisher.Drain();
    }
    const std::vector<Replayed> messages = ReadReplayed(dealer.get());
    if (clears) {
      CHECK(WholeState(messages, bench.publisher.queue.next_number() - 1) == pool.hashes());
    } else {
      REQUIRE(messages.size() == 1);
      CHECK(messages[0].end);
      CHECK(bench.stats().snapshots_failed == 1);
    }
  }
}

TEST_CASE("C9: both forms share a walk, and the named snapshot works beside the xllm form") {
  Bench bench(kXllm);
  StateProducer pool(15);
  for (int i = 0; i < 20; ++i) bench.Publish(pool.Step());
  const auto whole = bench.rig.Dealer("whole");
  const auto chunked = bench.rig.Dealer("chunked");
  Ask(whole.get(), SequenceNumber{0});
  Ask(chunked.get(), {ExtensionKind::kSnapshot, 0});
  bench.publisher.Drain();
  bench.Walk(&pool, 5);
  CHECK(bench.publisher.agent.wants().walks == 1);
  CHECK(WholeState(ReadReplayed(whole.get()), 19) == pool.hashes());
  CHECK(Union(bench.Read(chunked.get())) == pool.hashes());
}

}  // namespace
}  // namespace kvwire::test
