// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/doctor_replay.h"

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "tests/unit/subscribe/stream_fixture.h"

namespace kvwire::test {
namespace {

using engine::DoctorReplay;
using engine::DoctorReport;
using engine::DoctorSample;

constexpr MonotonicNanos kSecond = 1'000'000'000;

// A replay socket that answers as the test has it: a replay, a hello.
struct ReplayBench {
  explicit ReplayBench(Dialect dialect = Dialect::kVllm) : asked([this] { return Open(); }, dialect, &sample) {}

  std::unique_ptr<FrameLink> Open() {
    wires.push_back(std::make_shared<Wire>());
    wires.back()->send_result = send_result;
    wires.back()->on_send = [this, wire = wires.back().get()] {
      const bool is_hello = ParseExtensionRequest(wire->sent.back()[1]).has_value();
      for (const InFrames& message : is_hello ? hello : replay) wire->inbox.push_back(message);
    };
    return std::make_unique<ScriptedLink>(wires.back());
  }

  // Asks, and looks ten times a second until both answers are over. Returns the seconds that it took.
  int Ask() {
    asked.Start(0);
    for (MonotonicNanos now = 0; now < 1000 * kSecond; now += kSecond / 10) {
      if (on_look) on_look();
      while (asked.Poll(now)) {
      }
      if (asked.over()) return static_cast<int>(now / kSecond);
    }
    FAIL("it never ends");
    return -1;
  }

  std::string Text() const {
    DoctorReport report;
    asked.Report(&report);
    return report.Text();
  }

  std::vector<InFrames> replay;
  std::vector<InFrames> hello;
  SendResult send_result = SendResult::kSent;
  std::function<void()> on_look;
  std::vector<std::shared_ptr<Wire>> wires;
  DoctorSample sample;
  DoctorReplay asked;
};

InFrames HelloMessage(const Hello& hello) {
  Bytes payload;
  EncodeHello(hello, &payload);
  return {{}, ToBytes(kHelloName), SequenceBytes(hello.next), payload};
}

InFrames StateMessage(SequenceNumber watermark, std::uint64_t blocks) {
  KVEventBatch batch;
  batch.ts = 1.5;
  batch.Add(AllBlocksCleared());
  for (std::uint64_t i = 1; i <= blocks; ++i) {
    OneBlock(i).Visit([&batch](const auto& event) { batch.Add(event); });
  }
  return {{}, SequenceBytes(watermark), Encode(batch)};
}

bool Has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST_CASE("doctor says what a kvwire publisher tells of itself") {
  ReplayBench bench;
  bench.replay = {ReplayWithTopic(7), ReplayWithTopic(8), EndWithTopic()};
  Hello hello;
  hello.epoch = 0xabc;
  hello.data_parallel_rank = 3;
  hello.next = 9;
  SUBCASE("with a state") {
    hello.oldest = 7;
    hello.heartbeat_interval_ms = 1000;
    hello.snapshots = true;
    hello.digest = DigestEntries{{0, "CPU", 2, 5}, {0, "GPU", 40, 0xff}};
    bench.hello = {HelloMessage(hello), EndWithTopic()};
    CHECK(bench.Ask() == 0);
    const std::string text = bench.Text();
    CAPTURE(text);
    CHECK(Has(text, "\u2713 replay answer     2 messages, 7 to 8, with topics; what came before is gone\n"));
    CHECK(Has(text,
              "\u2713 hello             kvwire's own: epoch 0000000000000abc, rank 3, newest 8, oldest kept 7, "
              "heartbeats every 1000 ms, snapshots, removals exact\n"));
    CHECK(Has(text, "\u2713 held              42 blocks: " + DescribeDigest(*hello.digest) + "\n"));
  }
  SUBCASE("without one, before the first batch") {
    hello.next = 0;
    hello.removals = Removals::kPerCopy;
    bench.hello = {HelloMessage(hello), EndWithTopic()};
    CHECK(bench.Ask() == 0);
    const std::string text = bench.Text();
    CAPTURE(text);
    CHECK(Has(text,
              "\u2713 hello             kvwire's own: epoch 0000000000000abc, rank 3, nothing published, nothing kept, "
              "no heartbeats, no snapshots, removals per_copy\n"));
    CHECK(Has(text, "- held              the publisher has no digest\n"));
  }
}

TEST_CASE("doctor has nothing against a publisher without kvwire's extension") {
  ReplayBench bench;
  bench.replay = {ReplayLegacy(0), EndLegacy()};
  bench.hello = {EndLegacy()};
  CHECK(bench.Ask() == 0);
  CAPTURE(bench.Text());
  CHECK(Has(bench.Text(), "- hello             no kvwire extension (vLLM's own ROUTER)\n"));
  CHECK(Has(bench.Text(), "all is well\n"));
}

TEST_CASE("doctor ends with a peer that answers nothing, or never ends its answer") {
  ReplayBench bench;
  SUBCASE("nothing") {
    CHECK(bench.Ask() == 3);
    CHECK(Has(bench.Text(), "\u2717 replay answer     none in time\n"));
    CHECK(Has(bench.Text(), "- hello             no answer in time\n"));
  }
  SUBCASE("it takes no question") {
    bench.send_result = SendResult::kWouldBlock;
    CHECK(bench.Ask() == 3);
    CHECK(Has(bench.Text(), "\u2717 replay answer     none in time\n"));
  }
  SUBCASE("a message now and then, for ever") {
    SequenceNumber next = 0;
    bench.on_look = [&] {
      for (const auto& wire : bench.wires) wire->inbox.push_back(ReplayWithTopic(next++));
    };
    CHECK(bench.Ask() == 60);
    CHECK(Has(bench.Text(), "\u2717 replay answer     no end after 60 s, at number "));
  }
}

TEST_CASE("doctor reads the state that xllm's replay is") {
  ReplayBench bench(Dialect::kXllm);
  SUBCASE("with blocks") {
    bench.replay = {StateMessage(17, 3), EndLegacy()};
    CHECK(bench.Ask() == 0);
    CHECK(Has(bench.Text(), "\u2713 replay answer     the whole state at number 17: 3 blocks stored\n"));
    CHECK(Has(bench.Text(), "- hello             not asked: the dialect xllm has none\n"));
    CHECK(bench.wires.size() == 1);
  }
  SUBCASE("none to give") {
    bench.replay = {EndLegacy()};
    CHECK(bench.Ask() == 0);
    CHECK(Has(bench.Text(), "\u2717 replay answer     the end mark alone: there was no state to give\n"));
  }
  SUBCASE("a history") {
    bench.replay = {ReplayLegacy(0), ReplayLegacy(1), EndLegacy()};
    CHECK(bench.Ask() == 0);
    CHECK(Has(bench.Text(), "\u2717 replay answer     2 messages; allowed: one, the whole state\n"));
  }
  SUBCASE("a topic") {
    bench.replay = {ReplayWithTopic(0), EndWithTopic()};
    CHECK(bench.Ask() == 0);
    CHECK(Has(bench.Text(), "\u2717 replay answer     4 frames, with a topic; allowed: 3, without one\n"));
  }
  SUBCASE("a removal in it") {
    KVEventBatch batch = OneBlock(1);
    const BlockHash gone = BlockHash::FromUint64(1);
    BlockRemoved removed;
    removed.block_hashes = {&gone, 1};
    batch.Add(removed);
    bench.replay = {{{}, SequenceBytes(4), Encode(batch)}, EndLegacy()};
    CHECK(bench.Ask() == 0);
    CHECK(Has(bench.Text(),
              "\u2717 replay answer     more than a state; allowed: AllBlocksCleared first, then BlockStored alone\n"));
  }
  SUBCASE("it takes its time to walk") {
    int looks = 0;
    bench.on_look = [&] {
      if (++looks == 50) bench.wires.front()->inbox = {StateMessage(1, 1), EndLegacy()};
    };
    CHECK(bench.Ask() == 4);
    CHECK(Has(bench.Text(), "\u2713 replay answer     the whole state at number 1: 1 blocks stored\n"));
  }
}

}  // namespace
}  // namespace kvwire::test
