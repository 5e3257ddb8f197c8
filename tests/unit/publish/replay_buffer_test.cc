// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/replay_buffer.h"

#include <doctest/doctest.h>

namespace kvwire {
namespace {

SharedBytes Payload(std::size_t size) { return std::make_shared<const std::vector<std::uint8_t>>(size); }

std::optional<SequenceNumber> Found(const ReplayBuffer& buffer, SequenceNumber start) {
  const ReplayBuffer::Entry* entry = buffer.Find(start);
  return entry != nullptr ? std::optional(entry->number) : std::nullopt;
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

}  // namespace
}  // namespace kvwire
