// SPDX-License-Identifier: Apache-2.0
#include "tests/support/memory_link.h"

#include <string>

#include <doctest/doctest.h>

namespace kvwire::test {
namespace {

std::vector<std::uint8_t> Bytes(const std::string& text) { return {text.begin(), text.end()}; }

SendResult Send(FrameLink* link, const std::vector<std::string>& texts) {
  InFrames frames;
  for (const std::string& text : texts) frames.push_back(Bytes(text));
  std::vector<OutFrame> out;
  for (const auto& frame : frames) out.push_back(OutFrame::Copy(frame));
  return link->TrySend(out);
}

InFrames Frames(const std::vector<std::string>& texts) {
  InFrames frames;
  for (const std::string& text : texts) frames.push_back(Bytes(text));
  return frames;
}

TEST_CASE("both ends of a pair pass whole messages in order") {
  auto [a, b] = MemoryLink::Pair();
  CHECK_FALSE(b->TryReceive());
  CHECK(Send(a.get(), {"x", "", "y"}) == SendResult::kSent);
  CHECK(Send(a.get(), {"z"}) == SendResult::kSent);
  CHECK(b->TryReceive() == Frames({"x", "", "y"}));
  CHECK(b->TryReceive() == Frames({"z"}));
  CHECK_FALSE(b->TryReceive());
  CHECK(Send(b.get(), {"back"}) == SendResult::kSent);
  CHECK(a->TryReceive() == Frames({"back"}));
}

TEST_CASE("a full pair blocks and a half pair is unroutable") {
  auto [a, b] = MemoryLink::Pair(1);
  CHECK(Send(a.get(), {"1"}) == SendResult::kSent);
  CHECK(Send(a.get(), {"2"}) == SendResult::kWouldBlock);
  CHECK(b->TryReceive() == Frames({"1"}));
  CHECK(Send(a.get(), {"2"}) == SendResult::kSent);
  b.reset();
  CHECK(Send(a.get(), {"3"}) == SendResult::kUnroutable);
}

TEST_CASE("a publisher serves prefixes and loses what a full subscriber cannot take") {
  MemoryPub pub;
  CHECK(Send(&pub, {"early"}) == SendResult::kSent);
  const auto all = pub.Subscribe("", 2);
  const auto foo = pub.Subscribe("foo");
  for (const char* topic : {"foo", "bar", "foobar"}) CHECK(Send(&pub, {topic}) == SendResult::kSent);
  CHECK(all->TryReceive() == Frames({"foo"}));
  CHECK(all->TryReceive() == Frames({"bar"}));
  CHECK_FALSE(all->TryReceive());
  CHECK(foo->TryReceive() == Frames({"foo"}));
  CHECK(foo->TryReceive() == Frames({"foobar"}));
  CHECK(Send(all.get(), {"x"}) == SendResult::kWouldBlock);
}

TEST_CASE("a router names the sender and reaches it by that name") {
  MemoryRouter router;
  auto a = router.Connect("A", 1);
  CHECK(Send(a.get(), {"", "ask"}) == SendResult::kSent);
  CHECK(router.TryReceive() == Frames({"A", "", "ask"}));
  CHECK_FALSE(router.TryReceive());
  CHECK(Send(&router, {"A", "", "answer"}) == SendResult::kSent);
  CHECK(Send(&router, {"A", "", "more"}) == SendResult::kWouldBlock);
  CHECK(a->TryReceive() == Frames({"", "answer"}));
  CHECK(Send(&router, {"B", "x"}) == SendResult::kUnroutable);
  a.reset();
  CHECK(Send(&router, {"A", "x"}) == SendResult::kUnroutable);
}

TEST_CASE("a later peer of the same name takes over") {
  MemoryRouter router;
  auto old_peer = router.Connect("A");
  auto new_peer = router.Connect("A");
  CHECK(Send(&router, {"A", "x"}) == SendResult::kSent);
  CHECK_FALSE(old_peer->TryReceive());
  CHECK(new_peer->TryReceive() == Frames({"x"}));
}

TEST_CASE("a faulty link blocks, fails or loses what it is told to") {
  auto [a, b] = MemoryLink::Pair();
  FaultyLink faulty(a.get());
  faulty.room = 2;
  faulty.lose = [](std::span<const OutFrame> frames) { return frames[0].bytes[0] == 'l'; };
  CHECK(Send(&faulty, {"lost"}) == SendResult::kSent);
  CHECK(Send(&faulty, {"kept"}) == SendResult::kSent);
  CHECK(Send(&faulty, {"more"}) == SendResult::kWouldBlock);
  faulty.room = 1;
  faulty.failure = SendResult::kFailed;
  CHECK(Send(&faulty, {"more"}) == SendResult::kFailed);
  faulty.failure = SendResult::kSent;
  CHECK(Send(&faulty, {"more"}) == SendResult::kSent);
  CHECK(b->TryReceive() == Frames({"kept"}));
  CHECK(b->TryReceive() == Frames({"more"}));
  CHECK_FALSE(b->TryReceive());
  CHECK(Send(b.get(), {"back"}) == SendResult::kSent);
  CHECK(faulty.TryReceive() == Frames({"back"}));
}

}  // namespace
}  // namespace kvwire::test
