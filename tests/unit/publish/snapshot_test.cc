// SPDX-License-Identifier: Apache-2.0
// What the ROUTER answers beyond replay: hello, digest, and snapshots in chunks.
#include <map>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/wire/extensions.h"
#include "snapshot_bench.h"

namespace kvwire::test {
namespace {

using Bench = SnapshotBench;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kAhead = SnapshotWalks::kChunksAhead;

TEST_CASE("C9: a hello tells who publishes and where the stream is, in either layout") {
  for (const ReplayLayout layout : {ReplayLayout::kTopic, ReplayLayout::kLegacy}) {
    AgentSettings settings;
    settings.layout = layout;
    settings.buffer_steps = 2;
    Bench bench([](PublisherAgent::Options* options) { options->heartbeat_interval_ms = 1000; }, settings);
    const auto dealer = bench.rig.Dealer("d");
    std::vector<Told> told = bench.Request(dealer.get(), {ExtensionKind::kHello, 0});
    REQUIRE(told.size() == 2);
    CHECK(told[1].end);
    CHECK(told[0].name == kHelloName);
    CHECK(told[0].number == 0);
    Hello expected;
    expected.epoch = 77;
    expected.data_parallel_rank = 3;
    expected.heartbeat_interval_ms = 1000;
    expected.snapshots = true;
    CHECK(DecodeHello(told[0].payload).value() == expected);

    StateProducer pool(1);
    for (int i = 0; i < 5; ++i) bench.Publish(pool.Step());
    told = bench.Request(dealer.get(), {ExtensionKind::kHello, 0});
    REQUIRE(told.size() == 2);
    CHECK(told[0].number == 5);
    expected.next = 5;
    expected.oldest = 3;
    expected.digest = pool.digest().entries();
    CHECK(DecodeHello(told[0].payload).value() == expected);
    bench.Publish(StoreBatch(1));  // whose producer knows no digest
    expected.next = 6;
    expected.oldest = 4;
    expected.digest.reset();
    CHECK(DecodeHello(bench.Request(dealer.get(), {ExtensionKind::kHello, 0})[0].payload).value() == expected);
    CHECK(bench.stats().hello_requests == 3);
    CHECK(bench.stats().replay_requests == 0);
  }
}

TEST_CASE("C9: a digest is told of every number in the buffer, heartbeats too, and of the last one") {
  AgentSettings settings;
  settings.buffer_steps = 3;
  Bench bench([](PublisherAgent::Options* options) { options->heartbeat_interval_ms = 1000; }, settings);
  StateProducer pool(2);
  std::vector<DigestEntries> after;
  for (int i = 0; i < 5; ++i) {
    bench.Publish(pool.Step());
    after.push_back(pool.digest().entries());
  }
  bench.Pass(seconds(1));  // number 5
  after.push_back(pool.digest().entries());
  const auto dealer = bench.rig.Dealer("d");
  for (SequenceNumber number = 0; number < 8; ++number) {
    const std::vector<Told> told = bench.Request(dealer.get(), {ExtensionKind::kDigest, number});
    CAPTURE(number);
    if (number < 2 || number > 5) {
      CHECK(EndsOnly(told));
      continue;
    }
    REQUIRE(told.size() == 2);
    CHECK(told[0].name == kDigestName);
    CHECK(told[0].number == number);
    CHECK(DecodeDigest(told[0].payload).value() == after[number]);
  }
  CHECK(bench.stats().digest_requests == 8);

  AgentSettings none;
  none.buffer_steps = 0;
  Bench bare({}, none);
  bare.Publish(pool.Step());
  const auto other = bare.rig.Dealer("d");
  CHECK(bare.Request(other.get(), {ExtensionKind::kDigest, 0}).size() == 2);
}

TEST_CASE("A2: after a burnt number nobody knows the digest until the next batch tells it") {
  AgentSettings settings;
  settings.max_batches = 1;
  Bench bench(
      [](PublisherAgent::Options* options) {
        options->overflow = Overflow::kDrop;
        options->heartbeat_interval_ms = 1000;
      },
      settings);
  StateProducer pool(16);
  static_cast<void>(bench.publisher.Publish(pool.Step()));
  static_cast<void>(bench.publisher.Publish(pool.Step()));  // burns 1
  bench.publisher.Drain();
  bench.Pass(seconds(1));  // number 2
  const auto dealer = bench.rig.Dealer("d");
  CHECK(bench.Request(dealer.get(), {ExtensionKind::kDigest, 0}).size() == 2);
  CHECK(EndsOnly(bench.Request(dealer.get(), {ExtensionKind::kDigest, 1})));
  CHECK(EndsOnly(bench.Request(dealer.get(), {ExtensionKind::kDigest, 2})));
  CHECK_FALSE(DecodeHello(bench.Request(dealer.get(), {ExtensionKind::kHello, 0})[0].payload)->digest);
  bench.Publish(pool.Step());
  const std::vector<Told> told = bench.Request(dealer.get(), {ExtensionKind::kDigest, 3});
  CHECK(DecodeDigest(told.at(0).payload).value() == pool.digest().entries());
}

TEST_CASE("C4: a name that nobody knows, or with a wrong argument, gets the end mark at once") {
  Bench bench;
  bench.Publish(StoreBatch(1));
  const auto dealer = bench.rig.Dealer("d");
  for (const std::string text : {"KVW1hello!", "KVW1digest", "KVW1somethingnew", "KVW1snapshot\1"}) {
    CAPTURE(text);
    SendFrames(dealer.get(), {{}, {text.begin(), text.end()}});
    bench.publisher.Drain();
    CHECK(EndsOnly(bench.Read(dealer.get())));
  }
  CHECK(bench.stats().replay_malformed == 4);
}

TEST_CASE("C9: a snapshot and the live batches give the pool exactly, at every batch and every chunk") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Bench bench;
    StateProducer pool(seed);
    for (int i = 0; i < 60; ++i) bench.Publish(pool.Step());
    const auto subscriber = bench.rig.Subscribe("test", 100000);
    const auto dealer = bench.rig.Dealer("d", 100000);
    Ask(dealer.get(), {ExtensionKind::kSnapshot, 0});
    bench.publisher.Drain();
    REQUIRE(bench.publisher.agent.wants().walks == 1);
    pool.BeginWalk(1);
    std::map<SequenceNumber, std::set<std::uint64_t>> truth;  // before the batch of the number
    while (pool.walking()) {
      truth[bench.publisher.queue.next_number()] = pool.hashes();
      REQUIRE(bench.publisher.PublishChunk(pool.NextChunk(3)) == PublishResult::kAccepted);
      bench.publisher.Drain();
      if (!pool.walking()) break;
      if (seed % 3 != 0 || pool.hashes().size() % 2 == 0) bench.Publish(pool.Step());
      if (seed % 7 == 0 && pool.hashes().size() % 11 == 0) bench.Publish(pool.Clear());
    }
    const std::vector<Told> told = bench.Read(dealer.get());
    REQUIRE(told.size() >= 3);
    CHECK(told.back().end);
    const Told& end = told[told.size() - 2];
    REQUIRE(end.name == kSnapshotEndName);
    CHECK(DecodeDigest(end.payload).value() == pool.digest().entries());

    // What came before the first chunk is in the chunks.
    std::set<std::uint64_t> held;
    auto message = told.begin();
    for (const Live& live : bench.publisher.ReadLive(subscriber.get(), 0)) {
      if (live.number < told[0].number) continue;
      for (; message->name == kChunkName && message->number <= live.number; ++message)
        ApplyEvents(message->payload, &held);
      ApplyEvents(live.payload, &held);
    }
    for (; message->name == kChunkName; ++message) ApplyEvents(message->payload, &held);
    CHECK(held == truth.at(end.number));
    CHECK(held == pool.hashes());
    CHECK(bench.stats().snapshots_sent == 1);
    CHECK(bench.stats().snapshot_bytes == 0);
  }
}

TEST_CASE(
    "C9: who asks before the first chunk shares the walk, who asks later gets the next one, each chunk encoded once") {
  Bench bench;
  StateProducer pool(3);
  for (int i = 0; i < 40; ++i) bench.Publish(pool.Step());
  const auto a = bench.rig.Dealer("a");
  const auto b = bench.rig.Dealer("b");
  const auto c = bench.rig.Dealer("c");
  Ask(a.get(), {ExtensionKind::kSnapshot, 0});
  Ask(b.get(), {ExtensionKind::kSnapshot, 0});
  bench.publisher.Drain();
  CHECK(bench.publisher.agent.wants().walks == 1);
  pool.BeginWalk(1);
  bench.walks_done = 1;
  bench.encoded = 0;
  static_cast<void>(bench.publisher.PublishChunk(pool.NextChunk(5)));
  bench.chunks = 1;
  bench.publisher.Drain();
  Ask(c.get(), {ExtensionKind::kSnapshot, 0});
  bench.publisher.Drain();
  CHECK(bench.publisher.agent.wants().walks == 2);
  bench.Walk(&pool, 5);
  const std::vector<Told> from_a = bench.Read(a.get());
  const std::vector<Told> from_b = bench.Read(b.get());
  const std::vector<Told> from_c = bench.Read(c.get());
  CHECK(Union(from_a) == pool.hashes());
  CHECK(Union(from_b) == pool.hashes());
  CHECK(Union(from_c) == pool.hashes());
  CHECK(bench.encoded == bench.chunks);
  CHECK(bench.stats().chunks == bench.chunks);
  CHECK(bench.stats().snapshots_sent == 3);
  CHECK(bench.stats().snapshot_requests == 3);
  CHECK(Balanced(bench.stats(), 40));
}

TEST_CASE("C5: a walk runs a bounded number of chunks ahead of its slowest client") {
  Bench bench;
  StateProducer pool(4);
  pool.max_blocks = 400;
  while (pool.hashes().size() < 300) bench.Publish(pool.Step());
  const auto fast = bench.rig.Dealer("fast", 100000);
  const auto slow = bench.rig.Dealer("slow", 2);
  Ask(fast.get(), {ExtensionKind::kSnapshot, 0});
  Ask(slow.get(), {ExtensionKind::kSnapshot, 0});
  bench.publisher.Drain();
  CHECK(bench.publisher.agent.wants().chunks == kAhead);
  CHECK(bench.Walk(&pool, 1) == kAhead + 2);  // two are with the slow client
  CHECK(bench.Walk(&pool, 1) == 0);
  CHECK(bench.Read(fast.get()).size() == kAhead + 2);
  CHECK(bench.stats().snapshot_bytes > 0);
  CHECK(bench.Read(slow.get()).size() == 2);
  bench.publisher.Drain();
  CHECK(bench.Walk(&pool, 1) == 2);
  // Live batches pass meanwhile.
  bench.Publish(pool.Step());
  CHECK(bench.stats().queued == 0);
}

TEST_CASE("C5: a walk runs a bounded number of bytes ahead") {
  Bench bench;
  const auto dealer = bench.rig.Dealer("d", 1);
  Ask(dealer.get(), {ExtensionKind::kSnapshot, 0});
  bench.publisher.Drain();
  KVEventBatch wide;
  const BlockHash hash = BlockHash::FromUint64(1);
  const std::vector<TokenId> tokens(2 << 20, 100000);  // five bytes each on the wire
  BlockStored stored;
  stored.block_hashes = {&hash, 1};
  stored.token_ids = tokens;
  stored.block_size = static_cast<std::uint32_t>(tokens.size());
  wide.Add(stored);
  std::uint64_t handed = 0;
  while (handed < bench.publisher.agent.wants().chunks && handed < 10) {
    const std::uint64_t allowed = bench.publisher.agent.wants().chunks;
    REQUIRE(bench.publisher.PublishChunk({wide, 1, handed == 0, false}) == PublishResult::kAccepted);
    bench.publisher.Drain();
    ++handed;
    // One is with the client; four more of 10 MiB are above 32 MiB.
    if (handed >= 5) CHECK(bench.publisher.agent.wants().chunks == allowed);
  }
  CHECK(bench.stats().snapshot_bytes > SnapshotWalks::kBytesAhead);
}

TEST_CASE("C5: a snapshot client without progress is given up, its memory freed, and the walk goes on") {
  Bench bench;
  StateProducer pool(5);
  pool.max_blocks = 400;
  while (pool.hashes().size() < 300) bench.Publish(pool.Step());
  const auto slow = bench.rig.Dealer("slow", 2);
  Ask(slow.get(), {ExtensionKind::kSnapshot, 0});
  bench.publisher.Drain();
  bench.Walk(&pool, 1);
  CHECK(bench.stats().snapshot_bytes > 0);
  bench.Pass(seconds(30) + milliseconds(1));
  CHECK(bench.stats().replay_dropped == 1);
  CHECK(bench.stats().replay_clients == 0);
  CHECK(bench.stats().snapshot_bytes == 0);
  const auto next = bench.rig.Dealer("next", 100000);
  Ask(next.get(), {ExtensionKind::kSnapshot, 0});
  bench.publisher.Drain();
  bench.Walk(&pool, 1);
  const std::vector<Told> told = bench.Read(next.get());
  CHECK(Union(told) == pool.hashes());
  CHECK(bench.stats().snapshots_sent == 1);
  CHECK(bench.publisher.agent.wants().walks == 2);
}

TEST_CASE("C5: a snapshot client that takes a chunk now and then is given up when another waits for the next walk") {
  Bench bench;
  StateProducer pool(5);
  pool.max_blocks = 400;
  while (pool.hashes().size() < 300) bench.Publish(pool.Step());
  const auto slow = bench.rig.Dealer("slow", 2);
  Ask(slow.get(), {ExtensionKind::kSnapshot, 0});
  bench.publisher.Drain();
  bench.Walk(&pool, 1);
  for (int round = 0; round < 5; ++round) {
    bench.Pass(seconds(20));
    REQUIRE(ReceiveTold(slow.get()));
    bench.publisher.Drain();
    bench.Walk(&pool, 1);
  }
  CHECK(bench.stats().replay_clients == 1);  // nobody waits
  const auto next = bench.rig.Dealer("next", 100000);
  Ask(next.get(), {ExtensionKind::kSnapshot, 0});
  bench.publisher.Drain();
  bench.Walk(&pool, 1);
  bench.Walk(&pool, 1);
  CHECK(bench.stats().replay_slow == 1);
  const std::vector<Told> told = bench.Read(next.get());
  CHECK(Union(told) == pool.hashes());
  CHECK(bench.stats().snapshots_sent == 1);
  for (const Told& message : bench.Read(slow.get())) CHECK(message.name == kChunkName);
}

TEST_CASE("J3: a snapshot client that is gone does not hold up the walk or the others") {
  Bench bench;
  StateProducer pool(6);
  pool.max_blocks = 400;
  while (pool.hashes().size() < 300) bench.Publish(pool.Step());
  auto gone = bench.rig.Dealer("gone", 2);
  const auto stays = bench.rig.Dealer("stays", 100000);
  Ask(gone.get(), {ExtensionKind::kSnapshot, 0});
  Ask(stays.get(), {ExtensionKind::kSnapshot, 0});
  bench.publisher.Drain();
  bench.Walk(&pool, 1);
  gone.reset();
  bench.publisher.Drain();
  bench.Walk(&pool, 1);
  CHECK(Union(bench.Read(stays.get())) == pool.hashes());
  CHECK(bench.stats().replay_dropped == 1);
}

TEST_CASE("C9: a host that never answers costs the asker five seconds, and the hello says so") {
  Bench bench;
  bench.Publish(StoreBatch(1));
  const auto dealer = bench.rig.Dealer("d");
  for (int round = 1; round <= 2; ++round) {
    CHECK(bench.Request(dealer.get(), {ExtensionKind::kSnapshot, 0}).empty());
    bench.Pass(seconds(5));
    CHECK(bench.Read(dealer.get()).empty());
    bench.Pass(milliseconds(1));
    CHECK(EndsOnly(bench.Read(dealer.get())));
    CHECK(bench.publisher.agent.wants().walks == 1);  // still the same one
    CHECK_FALSE(DecodeHello(bench.Request(dealer.get(), {ExtensionKind::kHello, 0})[0].payload)->snapshots);
    CHECK(bench.stats().snapshots_failed == static_cast<std::uint64_t>(round));
  }
  StateProducer pool(8);
  Ask(dealer.get(), {ExtensionKind::kSnapshot, 0});
  bench.publisher.Drain();
  bench.Walk(&pool, 5);
  CHECK(bench.Read(dealer.get()).size() == 3);  // an empty chunk, the end, the end mark
  CHECK(DecodeHello(bench.Request(dealer.get(), {ExtensionKind::kHello, 0})[0].payload)->snapshots);
}

TEST_CASE("C9: a walk that stops, or a chunk that cannot be encoded, ends the answer without the snapshot's end") {
  Bench bench;
  StateProducer pool(9);
  for (int i = 0; i < 40; ++i) bench.Publish(pool.Step());
  const auto dealer = bench.rig.Dealer("d");
  Ask(dealer.get(), {ExtensionKind::kSnapshot, 0});
  bench.publisher.Drain();
  pool.BeginWalk(1);
  static_cast<void>(bench.publisher.PublishChunk(pool.NextChunk(1)));
  bench.publisher.Drain();
  CHECK(bench.Read(dealer.get()).size() == 1);
  bench.Pass(seconds(30));
  CHECK(bench.Read(dealer.get()).empty());
  bench.Pass(milliseconds(1));
  CHECK(EndsOnly(bench.Read(dealer.get())));
  // What the walk still gives is for nobody; the next one is asked for anew.
  static_cast<void>(bench.publisher.PublishChunk(pool.NextChunk(1)));
  Ask(dealer.get(), {ExtensionKind::kSnapshot, 0});
  bench.publisher.Drain();
  CHECK(bench.publisher.agent.wants().walks == 2);
  pool.BeginWalk(2);
  bench.failing = true;
  static_cast<void>(bench.publisher.PublishChunk(pool.NextChunk(1)));
  bench.publisher.Drain();
  CHECK(EndsOnly(bench.Read(dealer.get())));
  CHECK(bench.stats().chunks_dropped == 1);
  CHECK(bench.stats().chunks == 2);
}

TEST_CASE("C9: a walk that was passed over serves its askers with the next one") {
  Bench bench;
  StateProducer pool(10);
  for (int i = 0; i < 20; ++i) bench.Publish(pool.Step());
  const auto a = bench.rig.Dealer("a");
  const auto b = bench.rig.Dealer("b");
  Ask(a.get(), {ExtensionKind::kSnapshot, 0});
  bench.publisher.Drain();
  pool.BeginWalk(1);
  static_cast<void>(bench.publisher.PublishChunk(pool.NextChunk(1)));
  bench.publisher.Drain();
  Ask(b.get(), {ExtensionKind::kSnapshot, 0});
  bench.publisher.Drain();
  REQUIRE(bench.publisher.agent.wants().walks == 2);
  pool.BeginWalk(2);
  while (pool.walking()) static_cast<void>(bench.publisher.PublishChunk(pool.NextChunk(5)));
  bench.publisher.Drain();
  const std::vector<Told> from_a = bench.Read(a.get());
  REQUIRE(from_a.size() == 2);
  CHECK(from_a[0].name == kChunkName);
  CHECK(from_a[1].end);
  CHECK(Union(bench.Read(b.get())) == pool.hashes());
}

TEST_CASE("C9: asking again replaces the answer, and a fifth walk waits for room") {
  Bench bench;
  StateProducer pool(11);
  for (int i = 0; i < 100; ++i) bench.Publish(pool.Step());
  std::vector<std::unique_ptr<FrameLink>> slow;
  for (int i = 0; i < 4; ++i) {
    slow.push_back(bench.rig.Dealer("slow" + std::to_string(i), 1));
    Ask(slow.back().get(), {ExtensionKind::kSnapshot, 0});
    bench.publisher.Drain();
    bench.Walk(&pool, 10);
  }
  CHECK(bench.publisher.agent.wants().walks == 4);
  const auto late = bench.rig.Dealer("late");
  Ask(late.get(), {ExtensionKind::kSnapshot, 0});
  bench.publisher.Drain();
  CHECK(bench.publisher.agent.wants().walks == 4);
  Ask(slow[0].get(), SequenceNumber{1000});  // gives its snapshot up
  bench.publisher.Drain();
  bench.publisher.Drain();
  CHECK(bench.publisher.agent.wants().walks == 5);
  bench.Walk(&pool, 10);
  CHECK(Union(bench.Read(late.get())) == pool.hashes());
}

TEST_CASE("C9: with snapshots off the end mark comes at once") {
  Bench bench([](PublisherAgent::Options* options) { options->snapshot = SnapshotForm::kOff; });
  const auto dealer = bench.rig.Dealer("d");
  CHECK(EndsOnly(bench.Request(dealer.get(), {ExtensionKind::kSnapshot, 0})));
  CHECK(bench.publisher.agent.wants() == StateWants());
  CHECK_FALSE(DecodeHello(bench.Request(dealer.get(), {ExtensionKind::kHello, 0})[0].payload)->snapshots);
}

}  // namespace
}  // namespace kvwire::test
