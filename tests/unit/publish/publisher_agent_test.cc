// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/publisher_agent.h"

#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/stream_support.h"

namespace kvwire::test {
namespace {

// The same behaviour over memory and over ZeroMQ.
#define RIGS MemoryRig, ZmqRig

TEST_CASE_TEMPLATE("a batch arrives as topic, number and payload", Rig, RIGS) {
  Rig rig;
  DrivenPublisher publisher({}, rig.publish(), rig.replay());
  const auto subscriber = rig.Subscribe("test");
  CHECK(publisher.Publish(StoreBatch(5)) == PublishResult::kAccepted);
  const std::vector<Live> live = publisher.ReadLive(subscriber.get(), 1);
  REQUIRE(live.size() == 1);
  CHECK(live[0].topic == "test");
  CHECK(live[0].number == 0);
  CHECK(StoredHashes(live[0].payload) == std::vector<std::uint64_t>{1, 2, 3, 4, 5});
  const PublisherStats stats = publisher.agent.stats();
  CHECK(stats.sent == 1);
  CHECK(stats.bytes_sent == live[0].payload.size());
  CHECK(stats.replay_buffered == 1);
  CHECK(stats.replay_buffered_bytes == live[0].payload.size());
  CHECK(Balanced(stats, 1));
}

TEST_CASE_TEMPLATE("numbers follow each other", Rig, RIGS) {
  Rig rig;
  DrivenPublisher publisher({}, rig.publish(), rig.replay());
  const auto subscriber = rig.Subscribe("test");
  publisher.PublishMany(10);
  CHECK(Numbers(publisher.ReadLive(subscriber.get(), 10)) == Range(0, 9));
  CHECK(Balanced(publisher.agent.stats(), 10));
}

TEST_CASE_TEMPLATE("a replay gives the rest of what was published, byte for byte", Rig, RIGS) {
  Rig rig;
  DrivenPublisher publisher({}, rig.publish(), rig.replay());
  const auto subscriber = rig.Subscribe("test");
  publisher.PublishMany(19);
  const std::vector<Live> live = publisher.ReadLive(subscriber.get(), 19);
  REQUIRE(live.size() == 19);
  const auto dealer = rig.Dealer("d");
  const std::vector<Replayed> replayed = publisher.Replay(dealer.get(), 10);
  REQUIRE(Numbers(replayed) == Range(10, 18));
  for (std::size_t i = 0; i < 9; ++i) {
    CHECK(replayed[i].payload == live[i + 10].payload);
    CHECK(replayed[i].topic == "test");
  }
  CHECK(replayed.back().end);
  CHECK(publisher.agent.stats().replay_messages == 9);
}

TEST_CASE_TEMPLATE("the replay buffer holds its number of batches", Rig, RIGS) {
  Rig rig;
  DrivenPublisher publisher({}, rig.publish(), rig.replay());
  publisher.PublishMany(110);
  const auto dealer = rig.Dealer("d");
  CHECK(Numbers(publisher.Replay(dealer.get(), 0)) == Range(10, 109));
  CHECK(publisher.agent.stats().replay_buffered == 100);
}

TEST_CASE_TEMPLATE("topics are filtered by prefix", Rig, RIGS) {
  Rig rig;
  AgentSettings settings;
  settings.topic = "foo";
  DrivenPublisher publisher(settings, rig.publish(), rig.replay());
  const auto foo = rig.Subscribe("foo");
  const auto bar = rig.Subscribe("bar");
  publisher.PublishMany(3);
  CHECK(publisher.ReadLive(foo.get(), 3).size() == 3);
  CHECK_FALSE(bar->TryReceive());
}

// A publishing link that was told of these subscriptions.
class ToldLink final : public FrameLink {
 public:
  explicit ToldLink(std::vector<std::string> told) : told_(told.rbegin(), told.rend()) {}
  SendResult TrySend(std::span<const OutFrame>) noexcept override { return SendResult::kSent; }
  std::optional<InFrames> TryReceive() override {
    if (told_.empty()) return std::nullopt;
    const std::string text = told_.back();
    told_.pop_back();
    return InFrames{{text.begin(), text.end()}};
  }
  std::string endpoint() const override { return "told"; }

 private:
  std::vector<std::string> told_;
};

TEST_CASE("only subscriptions that let the topic through are counted, and their ends") {
  const auto count = [](const char* topic, std::vector<std::string> told) {
    ToldLink link(std::move(told));
    AgentSettings settings;
    settings.topic = topic;
    DrivenPublisher publisher(settings, &link, nullptr);
    publisher.Drain();
    return publisher.agent.stats().subscriptions;
  };
  const std::string gone(1, '\0');
  CHECK(count("foo", {"\1foo", "\1f", "\1"}) == 3);
  CHECK(count("foo", {"\1bar", "\1food", "\1oo", "\1\xff", "\2foo", ""}) == 0);
  CHECK(count("foo", {"\1foo", "\1", gone + "foo"}) == 1);
  CHECK(count("foo", {"\1bar", gone + "bar", "\1fo"}) == 1);
  CHECK(count("foo", {gone + "foo", gone + "f"}) == 0);
  CHECK(count("", {"\1", "\1a"}) == 1);
  CHECK(count("\xc3\xa9", {"\1\xc3", "\1\xc3\xa9"}) == 2);
}

TEST_CASE_TEMPLATE("an empty topic is an empty frame", Rig, RIGS) {
  Rig rig;
  AgentSettings settings;
  settings.topic = "";
  DrivenPublisher publisher(settings, rig.publish(), rig.replay());
  const auto subscriber = rig.Subscribe("");
  publisher.PublishMany(1);
  const std::vector<Live> live = publisher.ReadLive(subscriber.get(), 1);
  REQUIRE(live.size() == 1);
  CHECK(live[0].topic.empty());
}

TEST_CASE_TEMPLATE("without a replay socket nothing is kept", Rig, RIGS) {
  Rig rig;
  DrivenPublisher publisher({}, rig.publish(), nullptr);
  publisher.PublishMany(5);
  CHECK(publisher.agent.stats().sent == 5);
  CHECK(publisher.agent.stats().replay_buffered == 0);
}

TEST_CASE_TEMPLATE("A8: a batch that cannot be encoded leaves a gap that replay does not fill", Rig, RIGS) {
  Rig rig;
  LogCapture log;
  AgentSettings settings;
  settings.log = log.sink();
  SequenceNumber encoded = 0;
  settings.encode = [&](const KVEventBatch&, std::vector<std::uint8_t>* out) {
    out->push_back(1);
    if (encoded++ == 5) throw std::runtime_error("planted");
  };
  DrivenPublisher publisher(settings, rig.publish(), rig.replay());
  const auto subscriber = rig.Subscribe("test");
  publisher.PublishMany(8);
  const std::vector<SequenceNumber> expected{0, 1, 2, 3, 4, 6, 7};
  CHECK(Numbers(publisher.ReadLive(subscriber.get(), 7)) == expected);
  const auto dealer = rig.Dealer("d");
  const std::vector<Replayed> replayed = publisher.Replay(dealer.get(), 5);
  CHECK(Numbers(replayed) == Range(6, 7));
  CHECK(replayed.back().end);
  CHECK(publisher.agent.stats().dropped_error == 1);
  CHECK(publisher.agent.last_error().find("batch 5") != std::string::npos);
  CHECK(publisher.agent.last_error().find("planted") != std::string::npos);
  CHECK(log.Count(LogLevel::kError, "planted") == 1);
  CHECK(Balanced(publisher.agent.stats(), 8));
}

TEST_CASE_TEMPLATE("live batches go out between the slices of a replay", Rig, RIGS) {
  Rig rig;
  DrivenPublisher publisher({}, rig.publish(), rig.replay());
  publisher.PublishMany(100);
  const auto subscriber = rig.Subscribe("test");
  const auto dealer = rig.Dealer("d");
  REQUIRE(Ask(dealer.get(), 0) == SendResult::kSent);
  REQUIRE(Eventually([&] {
    publisher.Turn();
    return publisher.agent.stats().replay_messages > 0;
  }));
  CHECK(publisher.agent.stats().replay_messages <= 32);
  CHECK(publisher.Publish(StoreBatch(1)) == PublishResult::kAccepted);
  publisher.Turn();
  CHECK(publisher.agent.stats().sent == 101);
  CHECK(publisher.agent.stats().replay_messages < 100);
  CHECK(Numbers(publisher.ReadLive(subscriber.get(), 1)) == Range(100, 100));
  CHECK(Numbers(publisher.ReadReplay(dealer.get())) == Range(0, 99));
}

TEST_CASE("an exception of any type costs one batch") {
  MemoryRig rig;
  AgentSettings settings;
  bool fail = true;
  settings.encode = [&](const KVEventBatch&, std::vector<std::uint8_t>* out) {
    out->push_back(1);
    if (fail) throw 7;
  };
  DrivenPublisher publisher(settings, rig.publish(), rig.replay());
  publisher.PublishMany(2);
  fail = false;
  publisher.PublishMany(1);
  CHECK(publisher.agent.stats().dropped_error == 2);
  CHECK(publisher.agent.stats().sent == 1);
}

TEST_CASE("an episode of failures is one line at its start and one at its end") {
  MemoryRig rig;
  LogCapture log;
  AgentSettings settings;
  settings.log = log.sink();
  bool fail = true;
  settings.encode = [&](const KVEventBatch&, std::vector<std::uint8_t>* out) {
    if (fail) throw std::runtime_error("planted");
    out->push_back(1);
  };
  DrivenPublisher publisher(settings, rig.publish(), rig.replay());
  publisher.PublishMany(10);
  CHECK(log.Count(LogLevel::kError, "planted") == 1);
  fail = false;
  publisher.PublishMany(10);
  CHECK(log.Count(LogLevel::kInfo, "publishing again; batches lost: 10") == 1);
  fail = true;
  publisher.PublishMany(1);
  CHECK(log.Count(LogLevel::kError, "planted") == 2);
}

TEST_CASE("J8: a payload above the limit is not sent") {
  MemoryRig rig;
  AgentSettings settings;
  settings.max_payload_bytes = 10;
  std::size_t size = 11;
  settings.encode = [&](const KVEventBatch&, std::vector<std::uint8_t>* out) { out->resize(size); };
  DrivenPublisher publisher(settings, rig.publish(), rig.replay());
  publisher.PublishMany(1);
  size = 10;
  publisher.PublishMany(1);
  CHECK(publisher.agent.stats().dropped_error == 1);
  CHECK(publisher.agent.stats().sent == 1);
  CHECK(publisher.agent.last_error().find("11 bytes") != std::string::npos);
}

TEST_CASE("a link without room keeps the batch for the next call, encoded once") {
  MemoryRig rig;
  FaultyLink faulty(rig.publish());
  faulty.room = 2;
  AgentSettings settings;
  int encoded = 0;
  settings.encode = [&](const KVEventBatch&, std::vector<std::uint8_t>* out) {
    ++encoded;
    out->push_back(1);
  };
  DrivenPublisher publisher(settings, &faulty, rig.replay());
  const auto subscriber = rig.Subscribe("test");
  publisher.PublishMany(5);
  CHECK(publisher.agent.stats().sent == 2);
  CHECK(publisher.agent.stats().queued == 3);
  CHECK(publisher.agent.DoWork(0) == 0);
  faulty.room = 100;
  publisher.Drain();
  CHECK(encoded == 5);
  CHECK(Numbers(publisher.ReadLive(subscriber.get(), 5)) == Range(0, 4));
  CHECK(Balanced(publisher.agent.stats(), 5));
}

TEST_CASE("a batch that the socket refuses is counted, and can be replayed") {
  MemoryRig rig;
  FaultyLink faulty(rig.publish());
  DrivenPublisher publisher({}, &faulty, rig.replay());
  publisher.PublishMany(1);
  faulty.failure = SendResult::kFailed;
  publisher.PublishMany(1);
  faulty.failure = SendResult::kSent;
  publisher.PublishMany(1);
  CHECK(publisher.agent.stats().dropped_error == 1);
  CHECK(publisher.agent.stats().sent == 2);
  CHECK(publisher.agent.last_error().find("batch 1") != std::string::npos);
  const auto dealer = rig.Dealer("d");
  CHECK(Numbers(publisher.Replay(dealer.get(), 0)) == Range(0, 2));
  CHECK(Balanced(publisher.agent.stats(), 3));
}

TEST_CASE("one call takes a bounded number of batches") {
  MemoryRig rig;
  DrivenPublisher publisher({}, rig.publish(), rig.replay());
  for (int i = 0; i < 100; ++i) static_cast<void>(publisher.Publish(StoreBatch(1)));
  CHECK(publisher.agent.DoWork(0) == PublisherAgent::kBatchesPerCall);
  CHECK(publisher.agent.stats().sent == PublisherAgent::kBatchesPerCall);
  publisher.Drain();
  CHECK(publisher.agent.stats().sent == 100);
}

TEST_CASE("a full queue's line says what follows for consumers, by the configuration") {
  for (const Overflow overflow : {Overflow::kResync, Overflow::kDrop}) {
    MemoryRig rig;
    LogCapture log;
    AgentSettings settings;
    settings.max_batches = 1;
    settings.log = log.sink();
    settings.adjust = [overflow](PublisherAgent::Options* options) { options->overflow = overflow; };
    DrivenPublisher publisher(settings, rig.publish(), rig.replay());
    for (int i = 0; i < 3; ++i) static_cast<void>(publisher.Publish(StoreBatch(1)));
    publisher.Drain();
    publisher.Turn();
    const bool resyncs = overflow == Overflow::kResync;
    CHECK(log.Count(LogLevel::kWarning, "the stream begins again with AllBlocksCleared") == (resyncs ? 1 : 0));
    CHECK(log.Count(LogLevel::kWarning, "consumers see a gap that nothing fills") == (resyncs ? 0 : 1));
    CHECK(log.Count(LogLevel::kWarning, "(max_queue_size, kvwire.queue_bytes)") == 1);
  }
}

TEST_CASE("an episode of a full queue is one line at its start and one at its end") {
  MemoryRig rig;
  LogCapture log;
  AgentSettings settings;
  settings.max_batches = 2;
  settings.log = log.sink();
  DrivenPublisher publisher(settings, rig.publish(), rig.replay());
  for (int i = 0; i < 6; ++i) static_cast<void>(publisher.Publish(StoreBatch(1)));
  publisher.Drain();
  publisher.Turn();
  CHECK(log.Count(LogLevel::kWarning, "queue is full") == 1);
  CHECK(log.Count(LogLevel::kInfo, "batches dropped: 4") == 1);
  CHECK(publisher.agent.stats().dropped_full == 4);
  CHECK(Balanced(publisher.agent.stats(), 6));
}

TEST_CASE(
    "C4: a hello and a digest are answered however many clients of replay are served and wait, and a crowd is said "
    "once a minute") {
  LogCapture log;
  AgentSettings settings;
  settings.log = log.sink();
  MemoryRig rig;
  FaultyLink router(rig.replay());
  DrivenPublisher publisher(settings, rig.publish(), &router);
  publisher.PublishMany(3);
  publisher.Drain();
  router.room = 0;
  const std::size_t all = ReplayService::kMaxClients + ReplayService::kMaxWaiting;
  std::vector<std::unique_ptr<FrameLink>> crowd;
  for (std::size_t i = 0; i < all + 2; ++i) {
    crowd.push_back(rig.Dealer("client" + std::to_string(i)));
    Ask(crowd.back().get(), 0);
    publisher.Drain();
  }
  CHECK(log.Count(LogLevel::kWarning, "left without an answer: 1") == 1);
  const auto asks = rig.Dealer("asks");
  Ask(asks.get(), ExtensionRequest{ExtensionKind::kHello, 0});
  router.room = 2;
  publisher.Turn();
  std::optional<Told> told = ReceiveTold(asks.get());
  REQUIRE(told);
  CHECK(told->name == kHelloName);
  told = ReceiveTold(asks.get());
  REQUIRE(told);
  CHECK(told->end);

  publisher.now += PublisherAgent::kCrowdPeriod;
  publisher.Turn();
  CHECK(log.Count(LogLevel::kWarning, "left without an answer: 1") == 2);
}

}  // namespace
}  // namespace kvwire::test
