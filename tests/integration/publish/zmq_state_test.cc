// SPDX-License-Identifier: Apache-2.0
// The state of a stream over sockets: what a thread and libzmq add to what is tested in memory.
#include <atomic>
#include <set>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/publish/zmq_publisher.h"
#include "kv_events/wire/extensions.h"
#include "tests/support/publisher_bench.h"
#include "tests/support/state_producer.h"

namespace kvwire::test {
namespace {

// Everything up to the end mark.
std::vector<Told> ReadTold(FrameLink* dealer) {
  std::vector<Told> told;
  Eventually([&] {
    while (std::optional<Told> message = ReceiveTold(dealer)) told.push_back(std::move(*message));
    return !told.empty() && told.back().end;
  });
  return told;
}

TEST_CASE("C9: a snapshot over sockets and the live batches give the pool exactly, while the stream goes on") {
  KVEventsConfig config = LoopbackConfig();
  config.kvwire.restart_guard_s = 0;
  PublisherBench bench(config);
  ZmqPublisher& publisher = *bench.publisher;
  StateProducer pool(21);
  pool.max_blocks = 2000;
  const auto subscriber = bench.Subscribe("test", 0);
  Join(&publisher, subscriber.get());
  while (pool.hashes().size() < 2000) static_cast<void>(publisher.Publish(pool.Step()));
  const auto dealer = bench.Dealer();
  Ask(dealer.get(), {ExtensionKind::kSnapshot, 0});
  REQUIRE(Eventually([&] { return publisher.state_wants().walks == 1; }));

  pool.BeginWalk(1);
  std::uint64_t chunks = 0;
  std::vector<Told> told;
  REQUIRE(Eventually([&] {
    while (std::optional<Told> message = ReceiveTold(dealer.get())) told.push_back(std::move(*message));
    if (pool.walking() && chunks < publisher.state_wants().chunks && publisher.HasRoom()) {
      REQUIRE(publisher.PublishChunk(pool.NextChunk(7)) == PublishResult::kAccepted);
      ++chunks;
    }
    if (pool.walking()) static_cast<void>(publisher.Publish(pool.Step()));
    return !told.empty() && told.back().end;
  }));
  CHECK(chunks > SnapshotWalks::kChunksAhead);
  const Told& end = told.at(told.size() - 2);
  REQUIRE(end.name == kSnapshotEndName);

  const SequenceNumber last = publisher.stats().last_number.value();
  std::set<std::uint64_t> held;
  std::set<std::uint64_t> at_end;
  std::size_t next = 0;
  const auto apply_chunks = [&](SequenceNumber number) {
    for (; told[next].name == kChunkName && told[next].number <= number; ++next) ApplyEvents(told[next].payload, &held);
  };
  bool reached = false;
  REQUIRE(Eventually([&] {
    while (std::optional<Live> live = ReceiveLive(subscriber.get())) {
      if (live->number < told[0].number) continue;
      apply_chunks(live->number);
      if (live->number == end.number) at_end = held;
      ApplyEvents(live->payload, &held);
      if (live->number == last) reached = true;
    }
    return reached;
  }));
  apply_chunks(kEndOfReplay);
  CHECK(held == pool.hashes());
  StateDigest digest;
  for (const std::uint64_t hash : end.number > last ? held : at_end) {
    digest.Add(0, StateProducer::MediumOf(hash), hash);
  }
  CHECK(DecodeDigest(end.payload).value() == digest.entries());
  CHECK(publisher.stats().snapshots_sent == 1);
}

TEST_CASE("C14: hellos of two lives at one address tell them apart, and a subscriber of the second asks for a resync") {
  std::atomic<int> told{0};
  PublisherOptions options;
  options.on_state_wanted = [&] { ++told; };
  std::vector<std::uint64_t> epochs;
  for (int life = 0; life < 2; ++life) {
    PublisherBench bench(LoopbackConfig(), options);
    ZmqPublisher& publisher = *bench.publisher;
    static_cast<void>(publisher.Publish(StoreBatch(1)));
    REQUIRE(bench.Settled());
    CHECK(publisher.state_wants().resyncs == 0);
    const auto subscriber = bench.Subscribe("test");
    REQUIRE(Eventually([&] { return publisher.state_wants().resyncs == 1; }));
    CHECK(Eventually([&] { return told == life + 1; }));
    CHECK(publisher.resyncs_after_loss());
    const auto dealer = bench.Dealer();
    Ask(dealer.get(), {ExtensionKind::kHello, 0});
    const std::vector<Told> answer = ReadTold(dealer.get());
    REQUIRE(answer.size() == 2);
    const auto hello = DecodeHello(answer[0].payload);
    REQUIRE(hello);
    CHECK(hello->next == 1);
    epochs.push_back(hello->epoch);
  }
  CHECK(epochs[0] != epochs[1]);
}

TEST_CASE("J5: heartbeats come without anybody's help, whether the host wakes the publisher or not") {
  for (const bool host_wakes : {false, true}) {
    KVEventsConfig config = LoopbackConfig();
    config.kvwire.heartbeat_interval_ms = 10;
    PublisherOptions options;
    options.host_wakes = host_wakes;
    PublisherBench bench(config, options);
    const auto subscriber = bench.Subscribe("test");
    const std::vector<Live> live = ReadLive(subscriber.get(), 3);
    REQUIRE(live.size() >= 3);
    for (std::size_t i = 1; i < live.size(); ++i) CHECK(live[i].number == live[i - 1].number + 1);
    CHECK(RankOf(live[0].payload) == 0);
    CHECK(StoredHashes(live[0].payload).empty());
    CHECK(Balanced(bench.publisher->stats(), 0));
  }
}

}  // namespace
}  // namespace kvwire::test
