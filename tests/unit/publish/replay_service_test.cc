// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/replay_service.h"

#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/stream_support.h"

namespace kvwire::test {
namespace {

constexpr MonotonicNanos kSecond = 1'000'000'000;

// A service over memory, with a faulty link in between.
struct Bench {
  explicit Bench(ReplayLayout layout = ReplayLayout::kTopic, std::size_t steps = 1000)
      : buffer(steps, std::size_t{1} << 30), service("test", layout, &faulty, &buffer) {}

  void Fill(SequenceNumber first, SequenceNumber last, std::size_t size = 10) {
    for (SequenceNumber n = first; n <= last; ++n) {
      buffer.Append(n, std::make_shared<const std::vector<std::uint8_t>>(size, static_cast<std::uint8_t>(n)));
    }
  }
  void Finish() {
    while (service.DoWork(now) > 0) {
    }
  }
  std::vector<Replayed> Read(FrameLink* dealer) {
    std::vector<Replayed> messages;
    while (std::optional<Replayed> message = ReceiveReplayed(dealer)) messages.push_back(std::move(*message));
    return messages;
  }

  MonotonicNanos now = 0;
  MemoryRouter router;
  FaultyLink faulty{&router};
  ReplayBuffer buffer;
  ReplayService service;
};

bool EndsOnly(const std::vector<Replayed>& messages) { return messages.size() == 1 && messages[0].end; }

TEST_CASE("C1: the topic layout repeats the topic and ends with an empty one") {
  Bench bench;
  bench.Fill(0, 2);
  const auto dealer = bench.router.Connect("d");
  Ask(dealer.get(), 1);
  bench.Finish();
  const std::vector<Replayed> messages = bench.Read(dealer.get());
  REQUIRE(messages.size() == 3);
  CHECK(Numbers(messages) == Range(1, 2));
  CHECK(messages[0].frames == 4);
  CHECK(messages[0].topic == "test");
  CHECK(messages[0].payload == std::vector<std::uint8_t>(10, 1));
  CHECK(messages[2].frames == 4);
  CHECK(messages[2].topic == "");
  CHECK(messages[2].number == kEndOfReplay);
  CHECK(messages[2].payload.empty());
}

TEST_CASE("C1: the legacy layout has no topic frame") {
  Bench bench(ReplayLayout::kLegacy);
  bench.Fill(0, 2);
  const auto dealer = bench.router.Connect("d");
  Ask(dealer.get(), 1);
  bench.Finish();
  const std::vector<Replayed> messages = bench.Read(dealer.get());
  REQUIRE(messages.size() == 3);
  CHECK(Numbers(messages) == Range(1, 2));
  for (const Replayed& message : messages) {
    CHECK(message.frames == 3);
    CHECK_FALSE(message.topic);
  }
  CHECK(messages[2].number == kEndOfReplay);
}

TEST_CASE("a start selects what the buffer holds from there on") {
  Bench bench(ReplayLayout::kTopic, 10);
  bench.Fill(0, 24);
  const auto dealer = bench.router.Connect("d");
  const std::pair<SequenceNumber, SequenceNumber> cases[] = {{0, 15}, {15, 15}, {20, 20}, {24, 24}};
  for (const auto& c : cases) {
    const SequenceNumber start = c.first;
    const SequenceNumber first = c.second;
    CAPTURE(start);
    Ask(dealer.get(), start);
    bench.Finish();
    CHECK(Numbers(bench.Read(dealer.get())) == Range(first, 24));
  }
  for (const SequenceNumber start : {SequenceNumber{25}, SequenceNumber{1000000}, kEndOfReplay}) {
    CAPTURE(start);
    Ask(dealer.get(), start);
    bench.Finish();
    CHECK(EndsOnly(bench.Read(dealer.get())));
  }
  CHECK(bench.service.requests() == 7);
  CHECK(bench.service.messages() == 10 + 10 + 5 + 1);
}

TEST_CASE("an empty buffer answers with the end mark") {
  Bench bench;
  const auto dealer = bench.router.Connect("d");
  Ask(dealer.get(), 0);
  bench.Finish();
  CHECK(EndsOnly(bench.Read(dealer.get())));
}

TEST_CASE("burnt numbers are absent") {
  Bench bench;
  bench.Fill(0, 1);
  bench.Fill(6, 7);
  const auto dealer = bench.router.Connect("d");
  Ask(dealer.get(), 1);
  bench.Finish();
  CHECK(Numbers(bench.Read(dealer.get())) == std::vector<SequenceNumber>{1, 6, 7});
}

TEST_CASE("C2: every shape of request is served or gets an end mark at once") {
  struct Case {
    const char* name;
    std::vector<std::vector<std::uint8_t>> frames;
    bool malformed;
    std::vector<SequenceNumber> numbers;
  };
  using Bytes = std::vector<std::uint8_t>;
  const Case cases[] = {
      {"8 bytes", {{}, {0, 0, 0, 0, 0, 0, 0, 2}}, false, {2, 3}},
      {"no bytes", {{}, {}}, false, {0, 1, 2, 3}},
      {"1 byte", {{}, {3}}, false, {3}},
      {"7 bytes", {{}, {0, 0, 0, 0, 0, 0, 3}}, false, {3}},
      {"9 bytes", {{}, {0, 0, 0, 0, 0, 0, 0, 0, 3}}, false, {3}},
      {"9 bytes, huge", {{}, {1, 0, 0, 0, 0, 0, 0, 0, 0}}, false, {}},
      {"a probe", {{}, {'K', 'V', 'W', '1', 'h', 'e', 'l', 'l', 'o'}}, false, {}},
      {"16 bytes", {{}, Bytes(16, 0)}, false, {0, 1, 2, 3}},
      {"17 bytes", {{}, Bytes(17, 0)}, true, {}},
      {"no delimiter", {{0, 0, 0, 0, 0, 0, 0, 2}}, false, {2, 3}},
      {"no delimiter, no bytes", {{}}, false, {0, 1, 2, 3}},
      {"delimiter not empty", {{'x'}, {0}}, true, {}},
      {"4 frames", {{}, {0}, {0}}, true, {}},
      {"no frames", {}, true, {}},
      {"1000 frames", InFrames(1000), true, {}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    Bench bench;
    bench.Fill(0, 3);
    const auto dealer = bench.router.Connect("d");
    SendFrames(dealer.get(), c.frames);
    bench.Finish();
    const std::vector<Replayed> messages = bench.Read(dealer.get());
    REQUIRE_FALSE(messages.empty());
    CHECK(messages.back().end);
    CHECK(Numbers(messages) == c.numbers);
    CHECK(bench.service.malformed() == (c.malformed ? 1 : 0));
    CHECK(bench.service.requests() == (c.malformed ? 0 : 1));
    CHECK(bench.service.clients() == 0);
  }
}

TEST_CASE("one call sends at most 16 messages or 64 KiB and a little") {
  Bench bench;
  bench.Fill(0, 99, 10);
  const auto dealer = bench.router.Connect("d");
  Ask(dealer.get(), 0);
  bench.service.DoWork(bench.now);
  CHECK(bench.Read(dealer.get()).size() == 16);

  Bench wide;
  wide.Fill(0, 99, 30000);
  const auto other = wide.router.Connect("d");
  Ask(other.get(), 0);
  wide.service.DoWork(wide.now);
  CHECK(wide.Read(other.get()).size() == 3);  // the third one passes 64 KiB
}

TEST_CASE("clients take turns") {
  Bench bench;
  bench.Fill(0, 63);
  const auto a = bench.router.Connect("a");
  const auto b = bench.router.Connect("b");
  Ask(a.get(), 0);
  Ask(b.get(), 0);
  std::size_t from_a = 0;
  std::size_t from_b = 0;
  for (int turn = 0; turn < 4; ++turn) {
    bench.service.DoWork(bench.now);
    from_a += bench.Read(a.get()).size();
    from_b += bench.Read(b.get()).size();
  }
  CHECK(from_a == 32);
  CHECK(from_b == 32);
  bench.Finish();
  CHECK(from_a + bench.Read(a.get()).size() == 65);
  CHECK(from_b + bench.Read(b.get()).size() == 65);
}

TEST_CASE("a client that cannot take more does not hold up the others, and goes on where it stopped") {
  Bench bench;
  bench.Fill(0, 49);
  const auto slow = bench.router.Connect("slow", 3);
  const auto fast = bench.router.Connect("fast", 1000);
  Ask(slow.get(), 0);
  Ask(fast.get(), 0);
  bench.Finish();
  CHECK(Numbers(bench.Read(fast.get())) == Range(0, 49));
  std::vector<Replayed> slowly;
  for (int round = 0; round < 100 && (slowly.empty() || !slowly.back().end); ++round) {
    for (Replayed& message : bench.Read(slow.get())) slowly.push_back(std::move(message));
    bench.Finish();
  }
  REQUIRE(slowly.back().end);
  CHECK(Numbers(slowly) == Range(0, 49));
  CHECK(bench.service.dropped() == 0);
}

TEST_CASE("batches published after the request are not part of the answer") {
  Bench bench;
  bench.Fill(0, 19);
  const auto dealer = bench.router.Connect("d");
  Ask(dealer.get(), 0);
  bench.service.DoWork(bench.now);
  bench.Fill(20, 40);
  bench.Finish();
  CHECK(Numbers(bench.Read(dealer.get())) == Range(0, 19));
}

TEST_CASE("what falls out of the buffer meanwhile is left out and the answer goes on") {
  Bench bench(ReplayLayout::kTopic, 40);
  bench.Fill(0, 39);
  const auto dealer = bench.router.Connect("d");
  Ask(dealer.get(), 0);
  bench.service.DoWork(bench.now);  // 0 to 15
  bench.Fill(40, 69);               // 0 to 29 fall out
  bench.Finish();
  std::vector<SequenceNumber> expected = Range(0, 15);
  for (const SequenceNumber number : Range(30, 39)) expected.push_back(number);
  CHECK(Numbers(bench.Read(dealer.get())) == expected);
}

TEST_CASE("a second request replaces the first") {
  Bench bench;
  bench.Fill(0, 49);
  const auto dealer = bench.router.Connect("d");
  Ask(dealer.get(), 0);
  bench.service.DoWork(bench.now);
  CHECK(bench.Read(dealer.get()).size() == 16);
  Ask(dealer.get(), 45);
  bench.Finish();
  const std::vector<Replayed> messages = bench.Read(dealer.get());
  CHECK(Numbers(messages) == Range(45, 49));
  CHECK(messages.back().end);
  CHECK(bench.service.requests() == 2);
  CHECK(bench.service.clients() == 0);
}

TEST_CASE("C2: a malformed request does not take the running answer or its end mark away") {
  Bench bench;
  bench.Fill(0, 9);
  const auto dealer = bench.router.Connect("d", 2);
  Ask(dealer.get(), 0);
  bench.Finish();
  SendFrames(dealer.get(), {{'x'}, {0}});
  bench.Finish();
  CHECK(bench.service.malformed() == 1);
  std::vector<Replayed> messages;
  for (int round = 0; round < 10; ++round) {
    for (Replayed& message : bench.Read(dealer.get())) messages.push_back(std::move(message));
    bench.Finish();
  }
  CHECK(Numbers(messages) == Range(0, 9));
  REQUIRE_FALSE(messages.empty());
  CHECK(messages.back().end);
}

TEST_CASE("C5: a client that asks again and again without reading is given up all the same") {
  Bench bench;
  bench.Fill(0, 99);
  const auto dealer = bench.router.Connect("d", 2);
  for (int second = 0; second < 31; ++second) {
    Ask(dealer.get(), 0);
    bench.Finish();
    bench.now += kSecond;
  }
  bench.Finish();
  CHECK(bench.service.dropped() == 1);
  CHECK(bench.service.clients() == 0);
}

TEST_CASE("C5: a client without progress is given up after 30 seconds, one with progress never") {
  Bench bench;
  bench.Fill(0, 99);
  const auto stalled = bench.router.Connect("stalled", 2);
  const auto slow = bench.router.Connect("slow", 2);
  Ask(stalled.get(), 0);
  Ask(slow.get(), 0);
  bench.Finish();
  CHECK(bench.service.clients() == 2);
  for (int step = 0; step < 3; ++step) {
    bench.now += 10 * kSecond;
    bench.Read(slow.get());
    bench.Finish();
  }
  CHECK(bench.service.clients() == 2);  // exactly 30 seconds
  bench.now += 1;
  bench.Finish();
  CHECK(bench.service.clients() == 1);
  CHECK(bench.service.dropped() == 1);
  bench.now += 25 * kSecond;
  bench.Finish();
  CHECK(bench.service.clients() == 1);
}

TEST_CASE("an end mark that finds no room is sent later, or the client is given up") {
  Bench bench;
  bench.Fill(0, 1);
  const auto dealer = bench.router.Connect("d", 2);
  Ask(dealer.get(), 0);
  bench.Finish();
  CHECK(bench.service.clients() == 1);
  CHECK(Numbers(bench.Read(dealer.get())) == Range(0, 1));
  bench.Finish();
  CHECK(EndsOnly(bench.Read(dealer.get())));
  CHECK(bench.service.clients() == 0);
}

TEST_CASE("J3: a client that is gone is forgotten and does not hold up the others") {
  Bench bench;
  bench.Fill(0, 99);
  auto gone = bench.router.Connect("gone");
  const auto stays = bench.router.Connect("stays");
  Ask(gone.get(), 0);
  Ask(stays.get(), 0);
  bench.service.DoWork(bench.now);
  gone.reset();
  bench.Finish();
  CHECK(bench.service.clients() == 0);
  CHECK(bench.service.dropped() == 1);
  CHECK(Numbers(bench.Read(stays.get())) == Range(0, 99));
}

TEST_CASE("a broken link gives up every client") {
  Bench bench;
  bench.Fill(0, 9);
  const auto dealer = bench.router.Connect("d");
  Ask(dealer.get(), 0);
  bench.faulty.failure = SendResult::kFailed;
  bench.Finish();
  CHECK(bench.service.clients() == 0);
  CHECK(bench.service.dropped() == 1);
}

// A bench whose 64 slots are taken by clients that make no progress while the link has no room.
struct CrowdedBench : Bench {
  CrowdedBench() {
    Fill(0, 99);
    faulty.room = 0;
    for (std::size_t i = 0; i < ReplayService::kMaxClients; ++i) {
      served.push_back(router.Connect("client" + std::to_string(i)));
      Ask(served.back().get(), 0);
    }
    Finish();
    REQUIRE(service.clients() == ReplayService::kMaxClients);
  }
  std::vector<std::unique_ptr<FrameLink>> served;
};

TEST_CASE("C4: clients beyond 64 wait, are not told that there is nothing, and are served when others are done") {
  CrowdedBench bench;
  auto first = bench.router.Connect("first");
  auto gone = bench.router.Connect("gone");
  const auto last = bench.router.Connect("last");
  Ask(first.get(), 0);
  Ask(gone.get(), 0);
  Ask(last.get(), 0);
  bench.faulty.room = 3;
  bench.service.DoWork(bench.now);
  CHECK(bench.Read(first.get()).empty());
  CHECK(bench.service.waiting() == 3);
  CHECK(bench.service.clients() == ReplayService::kMaxClients);
  CHECK(bench.service.dropped() == 0);
  Ask(last.get(), 90);  // replaces what it asked for before
  gone.reset();
  bench.faulty.room = 1000000;
  bench.Finish();
  for (const auto& dealer : bench.served) CHECK(Numbers(bench.Read(dealer.get())) == Range(0, 99));
  CHECK(Numbers(bench.Read(first.get())) == Range(0, 99));
  CHECK(Numbers(bench.Read(last.get())) == Range(90, 99));
  CHECK(bench.service.clients() == 0);
  CHECK(bench.service.waiting() == 0);
  CHECK(bench.service.dropped() == 1);
  CHECK(bench.service.turned_away() == 0);
}

TEST_CASE("C4: beyond what may wait there is no answer at all, and it is counted") {
  CrowdedBench bench;
  for (std::size_t i = 0; i < ReplayService::kMaxWaiting; ++i) {
    const auto waits = bench.router.Connect("waits" + std::to_string(i));
    Ask(waits.get(), 0);
    bench.Finish();
  }
  const auto late = bench.router.Connect("late");
  Ask(late.get(), 0);
  bench.Finish();
  CHECK(bench.service.waiting() == ReplayService::kMaxWaiting);
  CHECK(bench.service.turned_away() == 1);
  CHECK(bench.service.dropped() == 1);
  bench.faulty.room = 1000000;
  bench.Finish();
  CHECK(bench.Read(late.get()).empty());
  CHECK(bench.service.waiting() == 0);
  Ask(late.get(), 99);
  bench.Finish();
  CHECK(Numbers(bench.Read(late.get())) == Range(99, 99));
}

// 64 clients of a long answer, each with room for `room` messages at a time.
struct SlowBench : Bench {
  SlowBench(std::size_t room, std::size_t size, SequenceNumber last = 9999) : Bench(ReplayLayout::kTopic, 100'000) {
    Fill(0, last, size);
    for (std::size_t i = 0; i < ReplayService::kMaxClients; ++i) {
      clients.push_back(router.Connect("client" + std::to_string(i), room));
      Ask(clients.back().get(), 0);
    }
    Finish();
    REQUIRE(service.clients() == ReplayService::kMaxClients);
  }
  void Pass(MonotonicNanos time) {
    now += time;
    Finish();
  }
  // Some messages of one client, one after another; nothing it reads is an end.
  std::size_t Take(std::size_t client, std::size_t count) {
    std::size_t taken = 0;
    for (; taken < count; ++taken) {
      const std::optional<Replayed> message = ReceiveReplayed(clients[client].get());
      if (!message) break;
      CHECK_FALSE(message->end);
      Finish();
    }
    return taken;
  }
  std::vector<std::unique_ptr<FrameLink>> clients;
};

TEST_CASE("C5: clients that hold every place and hardly read are given up for those who wait, without an end mark") {
  SlowBench bench(2, 10);
  const auto first = bench.router.Connect("first", 100'000);
  const auto second = bench.router.Connect("second", 100'000);
  Ask(first.get(), 9990);
  Ask(second.get(), 9990);
  bench.Finish();
  bench.Pass(ReplayService::kPaceWindow / 2);
  for (std::size_t i = 0; i < bench.clients.size(); ++i) bench.Take(i, 1);
  bench.Pass(ReplayService::kPaceWindow / 2 - 1);
  CHECK(bench.service.waiting() == 2);
  CHECK(bench.service.slow() == 0);
  bench.Pass(1);
  CHECK(Numbers(bench.Read(first.get())) == Range(9990, 9999));
  CHECK(Numbers(bench.Read(second.get())) == Range(9990, 9999));
  CHECK(bench.service.slow() == 2);  // no more than waited
  CHECK(bench.service.dropped() == 2);
  CHECK(bench.service.clients() == ReplayService::kMaxClients - 2);
  // Two that were given up have what was on its way, and no end.
  std::size_t ended = 0;
  for (std::size_t i = 0; i < bench.clients.size(); ++i) {
    bench.Take(i, 3);
    if (bench.Take(i, 1) == 0) ++ended;
  }
  CHECK(ended == 2);
}

TEST_CASE("C5: slow clients go on as long as nobody waits, and then the last ten seconds count") {
  SlowBench bench(2, 10);
  for (int round = 0; round < 30; ++round) {
    bench.Pass(20 * kSecond);
    for (std::size_t i = 0; i < bench.clients.size(); ++i) bench.Take(i, 1);
  }
  CHECK(bench.service.clients() == ReplayService::kMaxClients);
  CHECK(bench.service.dropped() == 0);
  const auto late = bench.router.Connect("late", 100'000);
  Ask(late.get(), 9990);
  bench.Finish();
  CHECK(Numbers(bench.Read(late.get())) == Range(9990, 9999));
  CHECK(bench.service.slow() == 1);
}

TEST_CASE("C5: a client that takes a message every millisecond, or a mebibyte in ten seconds, keeps its place") {
  struct Case {
    std::size_t size;
    std::size_t per_second;
    SequenceNumber last;
  };
  for (const auto& [size, per_second, last] : {Case{10, 1000, 10'999}, Case{10'500, 10, 199}}) {
    CAPTURE(size);
    SlowBench bench(10, size, last);
    std::vector<std::unique_ptr<FrameLink>> waits;
    for (int i = 0; i < 100; ++i) {
      waits.push_back(bench.router.Connect("waits" + std::to_string(i)));
      Ask(waits.back().get(), 0);
    }
    bench.Finish();
    for (int second = 0; second < 9; ++second) {
      CHECK(bench.Take(0, per_second) == per_second);
      bench.Pass(kSecond);
    }
    CHECK(bench.service.slow() == 0);
    CHECK(bench.Take(0, per_second) == per_second);
    bench.Pass(kSecond);
    CHECK(bench.service.slow() == ReplayService::kMaxClients - 1);
    CHECK(bench.Take(0, 10) == 10);
  }
}

TEST_CASE("C5: who asks again while others wait goes to the end of the line") {
  SlowBench bench(2, 10);
  const auto waits = bench.router.Connect("waits", 100'000);
  Ask(waits.get(), 9990);
  bench.Finish();
  Ask(bench.clients[5].get(), 9990);
  bench.Finish();
  CHECK(Numbers(bench.Read(waits.get())) == Range(9990, 9999));
  CHECK(bench.service.dropped() == 0);
  CHECK(bench.service.waiting() == 0);
  CHECK(bench.service.clients() == ReplayService::kMaxClients);
  bench.Take(5, 2);  // of the first answer
  CHECK(ReceiveReplayed(bench.clients[5].get())->number == 9990);
}

TEST_CASE("C4: a malformed request gets its end mark, however many are served") {
  CrowdedBench bench;
  const auto late = bench.router.Connect("late");
  SendFrames(late.get(), {{'x'}, {0}});
  bench.faulty.room = 1;
  bench.service.DoWork(bench.now);
  CHECK(EndsOnly(bench.Read(late.get())));
  CHECK(bench.service.waiting() == 0);
}

}  // namespace
}  // namespace kvwire::test
