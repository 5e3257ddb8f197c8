// SPDX-License-Identifier: Apache-2.0
// Sets of streams against publishers over real sockets.
#include "kv_events/subscribe/stream_set.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "kv_events/subscribe/held_blocks.h"
#include "kv_events/subscribe/rank_group.h"
#include "kv_events/wire/encoder.h"
#include "tests/support/stream_support.h"
#include "tests/support/tcp_proxy.h"

namespace kvwire::test {
namespace {

// A publisher driven by the test, and the state that its stream says.
class Source {
 public:
  // `endpoint` as Endpoint::Parse takes it; of tcp the port is 0.
  Source(const std::shared_ptr<ZmqContext>& context, const std::string& name, const std::string& endpoint,
         const std::string& replay_endpoint) {
    const auto bind = [&context](LinkKind kind, const std::string& text) {
      const auto parsed = Endpoint::Parse(text, "endpoint");
      REQUIRE(parsed.has_value());
      auto link = ZmqLink::Bind(context, kind, *parsed, LinkOptions());
      REQUIRE_MESSAGE(link.has_value(), link.error().message);
      return *std::move(link);
    };
    live_ = bind(LinkKind::kPub, endpoint);
    router_ = bind(LinkKind::kRouter, replay_endpoint);
    AgentSettings settings;
    settings.encode = [this, real = BatchEncoder({})](const KVEventBatch& batch, std::vector<std::uint8_t>* out) {
      if (lose_) throw std::runtime_error("lost");
      real.Encode(batch, out);
    };
    publisher_ = std::make_unique<DrivenPublisher>(settings, live_.get(), router_.get());
    address_.name = name;
    address_.endpoint = *Endpoint::Parse(live_->endpoint(), "endpoint");
    address_.replay_endpoint = *Endpoint::Parse(router_->endpoint(), "replay_endpoint");
  }

  void Publish(std::optional<std::int64_t> rank = std::nullopt) {
    KVEventBatch batch = StoreBatch(2, 100 * ++published_);
    batch.data_parallel_rank = rank;
    held_.Apply(batch);
    REQUIRE(publisher_->Publish(std::move(batch)) == PublishResult::kAccepted);
  }
  // Draws a number whose batch never leaves.
  void Lose() {
    lose_ = true;
    REQUIRE(publisher_->Publish(StoreBatch(1)) == PublishResult::kAccepted);
    Turn();
    lose_ = false;
    ++published_;
  }
  void Turn() { publisher_->Turn(); }
  bool subscribed() const { return publisher_->agent.stats().subscriptions > 0; }

  const StreamAddress& address() const { return address_; }
  const HeldBlocks& held() const { return held_; }
  SequenceNumber next() const { return published_; }

 private:
  std::unique_ptr<ZmqLink> live_;
  std::unique_ptr<ZmqLink> router_;
  std::unique_ptr<DrivenPublisher> publisher_;
  StreamAddress address_;
  HeldBlocks held_;
  std::uint64_t published_ = 0;
  bool lose_ = false;
};

class Fleet {
 public:
  Source& Start(const std::string& name, const std::string& scheme) {
    if (scheme == "tcp") {
      return Keep(std::make_unique<Source>(context_, name, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"));
    }
    return Keep(std::make_unique<Source>(context_, name, "inproc://live-" + name, "inproc://replay-" + name));
  }
  void PublishAll() {
    for (const auto& source : sources_) source->Publish();
    Turn();
  }
  void Turn() {
    for (const auto& source : sources_) source->Turn();
  }
  // Turns the publishers until the condition holds; false when it did not within half a minute.
  template <class Condition>
  bool Until(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      Turn();
      std::this_thread::yield();
    }
    return true;
  }
  // Whether each stream of the set has what its publisher says.
  bool Equal(const StreamSet& set) const {
    const std::vector<StreamFigures> all = set.Snapshot();
    return std::all_of(all.begin(), all.end(), [this](const StreamFigures& figures) {
      const auto source = std::find_if(sources_.begin(), sources_.end(),
                                       [&](const auto& each) { return each->address().name == figures.address.name; });
      return source != sources_.end() && figures.next == (*source)->next() &&
             figures.blocks == (*source)->held().digest().entries();
    });
  }

  const std::vector<std::unique_ptr<Source>>& sources() const { return sources_; }
  const std::shared_ptr<ZmqContext>& context() const { return context_; }

 private:
  Source& Keep(std::unique_ptr<Source> source) {
    sources_.push_back(std::move(source));
    return *sources_.back();
  }

  std::shared_ptr<ZmqContext> context_ = ZmqContext::Create();
  std::vector<std::unique_ptr<Source>> sources_;
};

std::size_t EntriesOf(const char* directory) {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator(directory), std::filesystem::directory_iterator()));
}
std::size_t Threads() { return EntriesOf("/proc/self/task"); }
std::size_t Descriptors() { return EntriesOf("/proc/self/fd"); }

StreamSet::Options OptionsOf(const Fleet& fleet) {
  StreamSet::Options options;
  options.context = fleet.context();
  return options;
}

TEST_CASE("100 streams, tcp and inproc, on two threads reach the state of their publishers") {
  Fleet fleet;
  for (int i = 0; i < 100; ++i) fleet.Start(fmt::format("s{:02}", i), i % 2 == 0 ? "tcp" : "inproc");
  fleet.PublishAll();
  const std::size_t threads = Threads();
  StreamSet set(OptionsOf(fleet));
  CHECK(Threads() == threads + 2);
  for (const auto& source : fleet.sources()) REQUIRE(set.Add(source->address()).has_value());
  CHECK(set.size() == 100);
  CHECK(Threads() == threads + 2);
  // A publisher over inproc is not seen to come, so nobody is asked what came before the first live message.
  for (int i = 0; i < 20; ++i) fleet.PublishAll();
  std::size_t looks = 0;
  CHECK(fleet.Until([&] {
    if (fleet.Equal(set)) return true;
    if (++looks % 1000 == 0) fleet.PublishAll();
    return false;
  }));
  const std::vector<StreamFigures> all = set.Snapshot();
  REQUIRE(all.size() == 100);
  for (const StreamFigures& figures : all) {
    CAPTURE(figures.address.name);
    CHECK(figures.status.state == StreamState::kSynchronised);
    CHECK(figures.verdict == CheckVerdict::kClean);
    CHECK(figures.counts.violations == 0);
    CHECK(figures.blocks_held() == 2 * figures.next);
    CHECK(figures.last_message_at.has_value());
    CHECK(figures.stream.gaps == 0);
  }
  CHECK(all[0].address.name == "s00");
  CHECK(all[99].address.name == "s99");
}

TEST_CASE("streams come and go under traffic, and a removed one leaves no thread and no descriptor") {
  Fleet fleet;
  for (int i = 0; i < 8; ++i) fleet.Start(fmt::format("s{}", i), "tcp");
  fleet.PublishAll();
  StreamSet set(OptionsOf(fleet));
  for (int i = 0; i < 4; ++i) REQUIRE(set.Add(fleet.sources()[i]->address()).has_value());
  REQUIRE(fleet.Until([&] {
    const auto all = set.Snapshot();
    return fleet.Equal(set) && std::none_of(all.begin(), all.end(), [](const auto& each) { return each.recovering; });
  }));
  const std::size_t threads = Threads();
  const std::size_t descriptors = Descriptors();

  for (int round = 0; round < 3; ++round) {
    fleet.PublishAll();
    for (int i = 4; i < 8; ++i) REQUIRE(set.Add(fleet.sources()[i]->address()).has_value());
    fleet.PublishAll();
    CHECK(set.size() == 8);
    REQUIRE(fleet.Until([&] { return fleet.Equal(set); }));
    for (int i = 4; i < 8; ++i) {
      const auto ended = set.Remove(fleet.sources()[i]->address().name);
      REQUIRE(ended.has_value());
      CHECK(ended->figures.next > 0);
      CHECK(ended->sink->checker().held().size() == 2 * ended->figures.next);
      fleet.PublishAll();
    }
    CHECK(set.size() == 4);
  }
  CHECK(Threads() == threads);
  CHECK(fleet.Until([&] { return Descriptors() <= descriptors; }));
  CHECK(fleet.Until([&] { return fleet.Equal(set); }));
  CHECK_FALSE(set.Remove("s7").has_value());
  CHECK(set.RemoveAll().size() == 4);
  CHECK(set.size() == 0);
}

TEST_CASE("C21: a publisher that is absent at first is found, and found again, without anybody's help") {
  Fleet fleet;
  Source& first = fleet.Start("a", "tcp");
  const StreamAddress address = first.address();
  const std::string live = address.endpoint.ToString();
  const std::string replay = address.replay_endpoint->ToString();
  Fleet later;
  StreamSet::Options options;
  options.context = later.context();
  StreamSet set(options);
  { Fleet gone = std::move(fleet); }
  REQUIRE(set.Add(address).has_value());
  CHECK(set.Snapshot()[0].status.state == StreamState::kConnecting);
  for (int life = 0; life < 2; ++life) {
    auto source = std::make_unique<Source>(later.context(), "a", live, replay);
    for (int i = 0; i < 5; ++i) source->Publish();
    CHECK(later.Until([&] {
      source->Turn();
      const StreamFigures figures = set.Snapshot()[0];
      return figures.next == source->next() && !figures.recovering &&
             figures.blocks == source->held().digest().entries();
    }));
    CHECK(set.Snapshot()[0].stream.malformed == 0);
  }
}

TEST_CASE("C21: a publisher is found by the name of its host, and one whose name nobody knows is said to be so") {
  Fleet fleet;
  Source& source = fleet.Start("a", "tcp");
  LogCapture log;
  StreamSet::Options options = OptionsOf(fleet);
  options.stream.log = log.sink();
  StreamSet set(options);
  StreamAddress named = source.address();
  named.endpoint.host = named.replay_endpoint->host = "localhost";
  REQUIRE(set.Add(named).has_value());
  StreamAddress unknown = named;
  unknown.name = "b";
  unknown.endpoint.host = "no.such.host.invalid";
  unknown.replay_endpoint.reset();
  REQUIRE(set.Add(unknown).has_value());
  source.Publish();
  CHECK(fleet.Until([&] { return set.Snapshot()[0].next == 1 && !set.Snapshot()[0].recovering; }));
  CHECK(set.Snapshot()[0].status.state == StreamState::kSynchronised);
  CHECK(fleet.Until([&] { return log.Count(LogLevel::kWarning, "no.such.host.invalid: cannot be resolved: ") > 0; }));
  CHECK(set.Snapshot()[1].status.state == StreamState::kConnecting);
}

TEST_CASE("a stream is added without waiting for the others of its thread") {
  Fleet fleet;
  std::promise<void> busy;
  std::promise<void> release;
  std::once_flag first;
  StreamSet::Options options = OptionsOf(fleet);
  options.num_threads = 1;
  options.stream.log = [&](LogLevel, std::string_view) {
    std::call_once(first, [&] {
      busy.set_value();
      release.get_future().wait_for(std::chrono::seconds(30));
    });
  };
  Source& source = fleet.Start("a", "tcp");
  StreamSet set(options);
  REQUIRE(set.Add(source.address()).has_value());
  source.Publish();
  std::future<void> reached = busy.get_future();
  REQUIRE(fleet.Until([&] { return reached.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }));
  const StreamAddress next = fleet.Start("b", "tcp").address();
  std::future<bool> added = std::async(std::launch::async, [&] { return set.Add(next).has_value(); });
  CHECK(added.wait_for(std::chrono::seconds(5)) == std::future_status::ready);
  release.set_value();
  CHECK(added.get());
  CHECK(set.RemoveAll().size() == 2);
}

TEST_CASE("what cannot be added is named, and the rest stays") {
  Fleet fleet;
  StreamSet::Options options = OptionsOf(fleet);
  options.max_streams = 2;
  StreamSet set(options);
  const StreamAddress a = fleet.Start("a", "tcp").address();
  const StreamAddress b = fleet.Start("b", "tcp").address();
  const StreamAddress c = fleet.Start("c", "tcp").address();
  REQUIRE(set.Add(a).has_value());
  CHECK(set.Add(a).error().message == "name \"a\": there is a stream of this name; allowed: a new name");
  StreamAddress wildcard = b;
  wildcard.endpoint = *Endpoint::Parse("tcp://*:5557", "endpoint");
  REQUIRE_FALSE(set.Add(wildcard).has_value());
  CHECK(set.Add(wildcard).error().message.starts_with("endpoint: \"tcp://*:5557\""));
  REQUIRE(set.Add(b).has_value());
  CHECK(set.Add(c).error().message == "stream \"c\": there are 2 streams; allowed: 2 at most");
  CHECK(set.size() == 2);
}

TEST_CASE("J5: a stream whose connection passes nothing on any more is not called synchronised, and comes back") {
  const auto context = ZmqContext::Create();
  // A publisher that answers nothing but ZeroMQ itself, so that no hello and no heartbeat of its own can tell.
  LinkOptions watching;
  watching.watch_peers = true;
  const auto live = ZmqLink::Bind(context, LinkKind::kPub, *Endpoint::Parse("tcp://127.0.0.1:0", "endpoint"), watching);
  REQUIRE(live.has_value());
  DrivenPublisher publisher(AgentSettings(), live->get(), nullptr);
  TcpProxy network(*Endpoint::Parse((*live)->endpoint(), "endpoint")->port);
  StreamSet::Options options;
  options.context = context;
  options.stream.heartbeat = std::chrono::milliseconds(100);
  StreamSet set(options);
  StreamAddress address;
  address.name = "half-open";
  address.endpoint = *Endpoint::Parse(network.endpoint(), "endpoint");
  REQUIRE(set.Add(address).has_value());
  const auto state = [&set] { return set.Snapshot()[0].status.state; };
  const auto begins_again = [&] {
    KVEventBatch clear;
    clear.Add(AllBlocksCleared{});
    publisher.Publish(std::move(clear));
    publisher.Turn();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return state() == StreamState::kSynchronised;
  };
  REQUIRE(Eventually(begins_again));
  // From the first sign of life on the publisher counts on them.
  const std::size_t before = network.counts().to_target;
  REQUIRE(Eventually([&] { return network.counts().to_target > before; }));
  network.Stop();
  CHECK(Eventually([&] { return state() == StreamState::kSuspect; }));
  CHECK(Eventually([&] { return (*live)->peers().disconnected == 1; }));
  network.Resume();
  CHECK(Eventually(begins_again));
}

TEST_CASE("a batch of another rank than the address says is counted") {
  Fleet fleet;
  Source& source = fleet.Start("a", "tcp");
  StreamSet set(OptionsOf(fleet));
  StreamAddress address = source.address();
  address.rank = 3;
  REQUIRE(set.Add(address).has_value());
  source.Publish(3);
  source.Publish(3);
  source.Publish(4);
  CHECK(fleet.Until([&] { return set.Snapshot()[0].next == 3; }));
  CHECK(set.Snapshot()[0].rank == 4);
  CHECK(set.Snapshot()[0].counts.other_ranks == 1);
}

TEST_CASE("the log of a set has a line per change of state, with the stream's name") {
  Fleet fleet;
  Source& source = fleet.Start("decode-3", "tcp");
  LogCapture log;
  StreamSet::Options options = OptionsOf(fleet);
  options.stream.log = log.sink();
  StreamSet set(options);
  source.Publish();
  REQUIRE(set.Add(source.address()).has_value());
  CHECK(fleet.Until([&] { return log.Count(LogLevel::kInfo, "decode-3 (tcp://127.0.0.1:") > 0; }));
}

TEST_CASE("C15: two ranks of an instance have numbers of their own; what one loses is no gap of the other") {
  for (const bool lose : {false, true}) {
    CAPTURE(lose);
    Fleet fleet;
    Source* const ranks[] = {&fleet.Start("engine", "tcp"), &fleet.Start("engine", "tcp")};
    StreamSet set(OptionsOf(fleet));
    for (int rank = 0; rank < 2; ++rank) {
      StreamAddress address = AsRank(ranks[rank]->address(), rank);
      address.replay_endpoint.reset();  // a gap stays
      REQUIRE(set.Add(address).has_value());
    }
    // In the order of their names: "engine#0", "engine#1".
    const auto figures = [&set](int rank) { return set.Snapshot()[static_cast<std::size_t>(rank)]; };
    // 0/0, 1/0, 0/1, 1/1, ...
    REQUIRE(fleet.Until([&] { return ranks[0]->subscribed() && ranks[1]->subscribed(); }));
    for (int round = 0; round < 4; ++round) {
      for (int rank = 0; rank < 2; ++rank) {
        if (lose && rank == 1 && round == 1) {
          ranks[rank]->Lose();
        } else {
          ranks[rank]->Publish(rank);
        }
        ranks[rank]->Turn();
      }
    }
    REQUIRE(fleet.Until([&] { return figures(0).next == 4 && figures(1).next == 4; }));
    for (int rank = 0; rank < 2; ++rank) {
      CAPTURE(rank);
      const bool lost = lose && rank == 1;
      CHECK(figures(rank).address.name == fmt::format("engine#{}", rank));
      CHECK(figures(rank).stream.gaps == (lost ? 1 : 0));
      CHECK(figures(rank).stream.missing == (lost ? 1 : 0));
      CHECK(figures(rank).status.state == (lost ? StreamState::kUnsynchronised : StreamState::kSynchronised));
      CHECK(figures(rank).counts.other_ranks == 0);
      CHECK(figures(rank).blocks == ranks[rank]->held().digest().entries());
    }
    CHECK(RankGroupsOf(set.Snapshot(), RankPresence::kNow) == std::vector<RankGroup>{{"engine", {0, 1}, {}}});
  }
}

}  // namespace
}  // namespace kvwire::test
