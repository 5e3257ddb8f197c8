// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/replay_buffer.h"

#include <string>

#include <doctest/doctest.h>

namespace kvwire {
namespace {

SharedBytes Payload(std::size_t size) { return std::make_shared<const std::vector<std::uint8_t>>(size); }

std::optional<SequenceNumber> Found(const ReplayBuffer& buffer, SequenceNumber start) {
  const std::optional<ReplayBuffer::Entry> entry = buffer.Find(start);
  return entry ? std::optional(entry->number) : std::nullopt;
}

TEST_CASE("an empty buffer finds nothing") {
  const ReplayBuffer buffer(10, 100);
  CHECK_FALSE(Found(buffer, 0));
  CHECK_FALSE(buffer.newest());
  CHECK(buffer.size() == 0);
}

TEST_CASE("the search gives the first number at or above the asked one") {
  ReplayBuffer buffer(100, 1000);
  for (const SequenceNumber number : {3u, 4u, 7u, 20u}) buffer.Append(number, Payload(1));
  CHECK(Found(buffer, 0) == 3);
  CHECK(Found(buffer, 3) == 3);
  CHECK(Found(buffer, 5) == 7);
  CHECK(Found(buffer, 8) == 20);
  CHECK(Found(buffer, 20) == 20);
  CHECK_FALSE(Found(buffer, 21));
  CHECK_FALSE(Found(buffer, kEndOfReplay));
  CHECK(buffer.newest() == 20);
}

TEST_CASE("the oldest fall out at the count") {
  ReplayBuffer buffer(10, 1000);
  for (SequenceNumber number = 0; number < 25; ++number) buffer.Append(number, Payload(1));
  CHECK(buffer.size() == 10);
  CHECK(buffer.bytes() == 10);
  CHECK(Found(buffer, 0) == 15);
}

TEST_CASE("the oldest fall out at the bytes") {
  ReplayBuffer buffer(1000, 100);
  for (SequenceNumber number = 0; number < 10; ++number) buffer.Append(number, Payload(30));
  CHECK(buffer.size() == 3);
  CHECK(buffer.bytes() == 90);
  CHECK(Found(buffer, 0) == 7);
}

TEST_CASE("a payload above the byte bound empties the buffer") {
  ReplayBuffer buffer(1000, 100);
  buffer.Append(0, Payload(50));
  buffer.Append(1, Payload(101));
  CHECK(buffer.size() == 0);
  CHECK(buffer.bytes() == 0);
  buffer.Append(2, Payload(50));
  CHECK(Found(buffer, 0) == 2);
}

TEST_CASE("a buffer of no batches keeps nothing") {
  ReplayBuffer buffer(0, 100);
  buffer.Append(0, Payload(1));
  CHECK_FALSE(Found(buffer, 0));
}

TEST_CASE("a payload that fell out is released") {
  ReplayBuffer buffer(1, 100);
  SharedBytes first = Payload(1);
  const std::weak_ptr<const std::vector<std::uint8_t>> watch = first;
  buffer.Append(0, std::move(first));
  CHECK_FALSE(watch.expired());
  buffer.Append(1, Payload(1));
  CHECK(watch.expired());
}

// The time as the whole payload.
SharedBytes TimePayload(double ts) {
  const std::string text = std::to_string(ts);
  return std::make_shared<const std::vector<std::uint8_t>>(text.begin(), text.end());
}

TEST_CASE("J5: heartbeats are outside the bounds and are given back with their times") {
  ReplayBuffer buffer(2, 100, TimePayload);
  buffer.Append(5, Payload(10));
  const Heartbeat first{1000, 0.5, 0};
  for (std::uint64_t i = 0; i < 1000; ++i) buffer.AppendHeartbeat(6 + i, first.After(i), nullptr);
  CHECK(buffer.size() == 1);
  CHECK(buffer.bytes() == 10);
  CHECK(buffer.oldest() == 5);
  CHECK(buffer.newest() == 1005);
  CHECK(Found(buffer, 0) == 5);
  for (const std::uint64_t i : {0u, 1u, 500u, 999u}) {
    const auto entry = buffer.Find(6 + i);
    REQUIRE(entry);
    CHECK(entry->number == 6 + i);
    CHECK(*entry->payload == *TimePayload(1000 + 0.5 * static_cast<double>(i)));
  }
  CHECK_FALSE(Found(buffer, 1006));
  buffer.Append(1010, Payload(10));
  CHECK(Found(buffer, 1006) == 1010);
  CHECK(Found(buffer, 1005) == 1005);
  buffer.Append(1011, Payload(10));  // 5 falls out
  CHECK(buffer.oldest() == 6);
  buffer.Append(1012, Payload(10));  // 1010 falls out, and what was before it
  CHECK(buffer.oldest() == 1011);
}

TEST_CASE("J5: a heartbeat of another time, number or digest begins a new run, and runs are bounded without holes") {
  ReplayBuffer buffer(2, 100, TimePayload);
  const SharedBytes digest = Payload(3);
  buffer.AppendHeartbeat(0, {1000, 1, 0}, nullptr);
  buffer.AppendHeartbeat(1, {1000, 1, 1}, digest);
  buffer.AppendHeartbeat(2, {2000, 1, 0}, digest);
  CHECK_FALSE(buffer.Find(0)->digest);
  CHECK(buffer.Find(1)->digest == digest);
  CHECK(*buffer.Find(2)->payload == *TimePayload(2000));
  buffer.Append(3, Payload(1));
  const std::uint64_t runs = 2 + ReplayBuffer::kMoreRuns;
  for (std::uint64_t i = 0; i < runs; ++i) {
    buffer.AppendHeartbeat(4 + i, {5000 + 10 * static_cast<double>(i), 1, 0}, nullptr);
  }
  CHECK(buffer.oldest() == 3);
  buffer.AppendHeartbeat(4 + runs, {1, 1, 0}, nullptr);
  CHECK(buffer.oldest() == 5);
  CHECK(buffer.size() == 0);
}

TEST_CASE("a cleared buffer begins at what comes next") {
  ReplayBuffer buffer(10, 100, TimePayload);
  buffer.Append(0, Payload(1));
  buffer.AppendHeartbeat(1, {1000, 1, 0}, nullptr);
  buffer.Clear();
  CHECK_FALSE(buffer.oldest());
  CHECK(buffer.bytes() == 0);
  buffer.Append(7, Payload(1), Payload(2));
  CHECK(buffer.bytes() == 3);
  CHECK(Found(buffer, 0) == 7);
}

}  // namespace
}  // namespace kvwire
