// SPDX-License-Identifier: Apache-2.0
#include "engine/faults/fault_link.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/wire/decoder.h"
#include "tests/support/manual_clock.h"
#include "tests/support/stream_support.h"

namespace kvwire::test {
namespace {

using engine::FaultCounters;
using engine::FaultKind;
using engine::FaultLink;
using engine::FaultPlace;
using engine::FaultPlan;
using engine::FaultScript;
using std::chrono::milliseconds;

std::shared_ptr<const FaultScript> Script(const std::string& json) {
  auto script = FaultScript::FromJson(json);
  REQUIRE_MESSAGE(script.has_value(), script.error().message);
  return std::make_shared<const FaultScript>(*std::move(script));
}

// A publisher whose stream breaks on purpose, over a rig.
template <class Rig>
struct Broken {
  explicit Broken(const std::string& json) {
    plan.Set(Script(json));
    // The subscription must have arrived: what is sent before is heard or not.
    const SequenceNumber none = ~SequenceNumber{0} - 1;
    REQUIRE(Eventually([&] {
      Send(rig.publish(), none);
      return ReceiveLive(subscriber.get()).has_value();
    }));
    while (ReceiveLive(subscriber.get())) {
    }
    link = std::make_unique<FaultLink>(rig.publish(), &plan, &counters, &clock);
    publisher = std::make_unique<DrivenPublisher>(AgentSettings(), link.get(), rig.replay());
  }

  static SendResult Send(FrameLink* to, SequenceNumber number) {
    const std::string topic = "test";
    const SequenceFrame sequence = EncodeSequence(number);
    const std::vector<std::uint8_t> payload{0x90};
    const OutFrame frames[] = {OutFrame::Copy({reinterpret_cast<const std::uint8_t*>(topic.data()), topic.size()}),
                               OutFrame::Copy(sequence), OutFrame::Copy(payload)};
    return to->TrySend(frames);
  }

  std::vector<Live> Read(std::size_t count) { return publisher->ReadLive(subscriber.get(), count); }
  // What comes within some looks beyond the expected: nothing.
  bool Silent() {
    for (int i = 0; i < 20; ++i) {
      publisher->Turn();
      if (ReceiveLive(subscriber.get())) return false;
    }
    return true;
  }
  std::vector<SequenceNumber> ReplayedNumbers() {
    const auto dealer = rig.Dealer("d");
    return Numbers(publisher->Replay(dealer.get(), 0));
  }

  Rig rig;
  std::unique_ptr<FrameLink> subscriber = rig.Subscribe("test");
  ManualClock clock;
  FaultPlan plan{FaultPlace::kLink};
  FaultCounters counters;
  std::unique_ptr<FaultLink> link;
  std::unique_ptr<DrivenPublisher> publisher;
};

TEST_CASE_TEMPLATE("a dropped message is not sent, and the replay has it", Rig, MemoryRig, ZmqRig) {
  Broken<Rig> broken(R"({"faults":[{"kind":"drop","at":2}]})");
  broken.publisher->PublishMany(5);
  broken.publisher->Drain();
  CHECK(Numbers(broken.Read(4)) == std::vector<SequenceNumber>{0, 1, 3, 4});
  CHECK(broken.Silent());
  CHECK(broken.ReplayedNumbers() == Range(0, 4));
  CHECK(broken.counters.Of(FaultKind::kDrop) == 1);
  CHECK(broken.publisher->agent.stats().sent == 5);
}

TEST_CASE_TEMPLATE("a duplicated message is sent twice, byte for byte", Rig, MemoryRig, ZmqRig) {
  Broken<Rig> broken(R"({"faults":[{"kind":"duplicate","every":2}]})");
  broken.publisher->PublishMany(4);
  broken.publisher->Drain();
  const std::vector<Live> live = broken.Read(6);
  CHECK(Numbers(live) == std::vector<SequenceNumber>{0, 0, 1, 2, 2, 3});
  CHECK(live[0].payload == live[1].payload);
  CHECK(broken.Silent());
  CHECK(broken.ReplayedNumbers() == Range(0, 3));
  CHECK(broken.counters.Of(FaultKind::kDuplicate) == 2);
}

TEST_CASE_TEMPLATE("an undecodable message keeps topic and number, and the replay has the true one", Rig, MemoryRig,
                   ZmqRig) {
  Broken<Rig> broken(R"({"faults":[{"kind":"undecodable","at":1}]})");
  broken.publisher->PublishMany(3);
  broken.publisher->Drain();
  const std::vector<Live> live = broken.Read(3);
  REQUIRE(Numbers(live) == Range(0, 2));
  CHECK(DecodeBatch(live[0].payload).has_value());
  CHECK_FALSE(DecodeBatch(live[1].payload).has_value());
  CHECK(live[1].topic == "test");
  const auto dealer = broken.rig.Dealer("d");
  const std::vector<Replayed> replayed = broken.publisher->Replay(dealer.get(), 0);
  REQUIRE(replayed.size() >= 3);
  CHECK(DecodeBatch(replayed[1].payload).has_value());
  CHECK(broken.counters.Of(FaultKind::kUndecodable) == 1);
}

TEST_CASE_TEMPLATE("behind a delayed message everything waits, in order, until its time", Rig, MemoryRig, ZmqRig) {
  Broken<Rig> broken(R"({"faults":[{"kind":"delay","at":1,"ms":50},{"kind":"duplicate","at":2}]})");
  broken.publisher->PublishMany(4);
  broken.publisher->Drain();
  CHECK(Numbers(broken.Read(1)) == Range(0, 0));
  CHECK(broken.link->held() == 4);
  broken.clock.Advance(milliseconds(49));
  CHECK(broken.Silent());
  broken.clock.Advance(milliseconds(1));
  broken.publisher->Turn();
  CHECK(broken.link->held() == 0);
  CHECK(Numbers(broken.Read(4)) == std::vector<SequenceNumber>{1, 2, 2, 3});
  broken.publisher->PublishMany(1);
  broken.publisher->Drain();
  CHECK(Numbers(broken.Read(1)) == Range(4, 4));
  CHECK(broken.ReplayedNumbers() == Range(0, 4));
  CHECK(broken.counters.Of(FaultKind::kDelay) == 1);
}

TEST_CASE("a later delay does not overtake an earlier one, and a shorter one does not pull forward") {
  Broken<MemoryRig> broken(R"({"faults":[{"kind":"delay","at":0,"ms":50},{"kind":"delay","at":1,"ms":10},)"
                           R"({"kind":"delay","at":2,"ms":80}]})");
  broken.publisher->PublishMany(4);
  broken.publisher->Drain();
  CHECK(broken.link->due() == 50'000'000);
  broken.clock.Advance(milliseconds(50));
  CHECK(Numbers(broken.Read(2)) == Range(0, 1));
  CHECK(broken.link->due() == 80'000'000);
  broken.clock.Advance(milliseconds(30));
  CHECK(Numbers(broken.Read(2)) == Range(2, 3));
  CHECK_FALSE(broken.link->due().has_value());
}

TEST_CASE("what waits leaves at once, in order, when the link is destroyed") {
  Broken<MemoryRig> broken(R"({"faults":[{"kind":"delay","every":1,"ms":60000}]})");
  broken.publisher->PublishMany(3);
  broken.publisher->Drain();
  CHECK(broken.Silent());
  broken.publisher.reset();
  broken.link.reset();
  CHECK(Numbers(ReadLive(broken.subscriber.get(), 3)) == Range(0, 2));
}

TEST_CASE("a dropped message meets no other fault, and others meet all of theirs") {
  Broken<MemoryRig> broken(R"({"faults":[{"kind":"duplicate","every":1},{"kind":"undecodable","every":1},)"
                           R"({"kind":"drop","at":1}]})");
  broken.publisher->PublishMany(2);
  broken.publisher->Drain();
  const std::vector<Live> live = broken.Read(2);
  REQUIRE(Numbers(live) == std::vector<SequenceNumber>{0, 0});
  CHECK(live[0].payload == std::vector<std::uint8_t>{0xc1});
  CHECK(broken.Silent());
  CHECK(broken.counters.Of(FaultKind::kDrop) == 1);
  CHECK(broken.counters.Of(FaultKind::kDuplicate) == 1);
  CHECK(broken.counters.Of(FaultKind::kUndecodable) == 1);
}

TEST_CASE("a message that the socket has no room for is tried again, and its faults count once") {
  MemoryPub pub;
  const auto subscriber = pub.Subscribe("test");
  FaultyLink full(&pub);
  full.room = 0;
  ManualClock clock;
  FaultPlan plan(FaultPlace::kLink);
  plan.Set(Script(R"({"faults":[{"kind":"duplicate","every":1,"count":1}]})"));
  FaultCounters counters;
  FaultLink link(&full, &plan, &counters, &clock);
  using Any = Broken<MemoryRig>;
  CHECK(Any::Send(&link, 0) == SendResult::kWouldBlock);
  CHECK(counters.Of(FaultKind::kDuplicate) == 0);
  full.room = 1;  // the first of the two
  CHECK(Any::Send(&link, 0) == SendResult::kSent);
  CHECK(counters.Of(FaultKind::kDuplicate) == 1);
  CHECK(link.held() == 1);
  full.room = 100;
  CHECK(Any::Send(&link, 1) == SendResult::kSent);
  CHECK(Numbers(ReadLive(subscriber.get(), 3)) == std::vector<SequenceNumber>{0, 0, 1});
  full.failure = SendResult::kFailed;
  CHECK(Any::Send(&link, 2) == SendResult::kFailed);
}

TEST_CASE("what waits is bounded: beyond, the sender is told to wait") {
  MemoryPub pub;
  ManualClock clock;
  FaultPlan plan(FaultPlace::kLink);
  plan.Set(Script(R"({"faults":[{"kind":"delay","at":0,"ms":60000},{"kind":"drop","at":10000}]})"));
  FaultCounters counters;
  FaultLink link(&pub, &plan, &counters, &clock);
  using Any = Broken<MemoryRig>;
  for (SequenceNumber number = 0; number < FaultLink::kMaxHeldMessages; ++number) {
    REQUIRE(Any::Send(&link, number) == SendResult::kSent);
  }
  CHECK(Any::Send(&link, 10'000) == SendResult::kWouldBlock);
  clock.Advance(milliseconds(60'000));
  CHECK(Any::Send(&link, 10'000) == SendResult::kSent);
  CHECK(link.held() == 0);
  CHECK(counters.Of(FaultKind::kDrop) == 1);
}

TEST_CASE("without a script, and for what is no live message, the link changes nothing") {
  auto [here, there] = MemoryLink::Pair();
  ManualClock clock;
  FaultPlan plan(FaultPlace::kLink);
  FaultCounters counters;
  FaultLink link(here.get(), &plan, &counters, &clock);
  CHECK(SendFrames(&link, {{1}, {2}}) == SendResult::kSent);
  plan.Set(Script(R"({"faults":[{"kind":"drop","every":1}]})"));
  CHECK(SendFrames(&link, {{1}, {2}}) == SendResult::kSent);
  CHECK(SendFrames(&link, {{1}, {2}, {3}}) == SendResult::kSent);
  for (int i = 0; i < 3; ++i) CHECK(there->TryReceive().has_value());
  CHECK(SendFrames(there.get(), {{7}}) == SendResult::kSent);
  CHECK(link.TryReceive() == InFrames{{7}});
  CHECK(link.endpoint() == "memory");
}

// All bytes that a subscriber gets from 300 batches under a script with every kind.
std::vector<std::pair<SequenceNumber, std::vector<std::uint8_t>>> Run(std::uint64_t seed) {
  Broken<MemoryRig> broken("{\"seed\":" + std::to_string(seed) +
                           R"(,"faults":[{"kind":"drop","probability":0.1},{"kind":"duplicate","probability":0.1},)"
                           R"({"kind":"undecodable","probability":0.1,"count":9},)"
                           R"({"kind":"delay","probability":0.1,"ms":7}]})");
  std::vector<std::pair<SequenceNumber, std::vector<std::uint8_t>>> seen;
  const auto read = [&] {
    while (auto live = ReceiveLive(broken.subscriber.get())) seen.emplace_back(live->number, std::move(live->payload));
  };
  for (std::size_t i = 0; i < 300; ++i) {
    broken.publisher->Publish(StoreBatch(1, i));
    // Another rhythm each time.
    if (i % (1 + seen.size() % 5) == 0) broken.publisher->Drain();
    broken.clock.Advance(milliseconds(i % 4));
    read();
  }
  broken.publisher->Drain();
  broken.clock.Advance(milliseconds(7));
  broken.publisher->Turn();
  read();
  return seen;
}

TEST_CASE("two runs with one seed send the same bytes, and another seed sends others") {
  const auto first = Run(7);
  CHECK(first.size() > 250);
  CHECK(first == Run(7));
  CHECK(first != Run(8));
}

}  // namespace
}  // namespace kvwire::test
