// SPDX-License-Identifier: Apache-2.0
#include "kv_events/wire/frames.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "wire_test_support.h"

namespace kvwire {

namespace {

const Bytes kEmpty;
const Bytes kTopic = {'k', 'v'};
const Bytes kSeven = {0, 0, 0, 0, 0, 0, 0, 7};
const Bytes kEnd(8, 0xff);
const Bytes kPayload = {0x93, 0xc0, 0x90, 0x00};

std::vector<FrameView> Frames(std::initializer_list<const Bytes*> frames) {
  std::vector<FrameView> views;
  for (const Bytes* frame : frames) views.emplace_back(*frame);
  return views;
}

}  // namespace

TEST_CASE("a sequence frame is 8 bytes, big-endian") {
  CHECK(ToHex(EncodeSequence(0x0102030405060708u)) == "0102030405060708");
  CHECK(ToHex(EncodeSequence(0)) == "0000000000000000");
  CHECK(ToHex(EncodeSequence(kEndOfReplay)) == "ffffffffffffffff");
  for (const SequenceNumber number : {SequenceNumber{0}, SequenceNumber{255}, SequenceNumber{1} << 63, kEndOfReplay}) {
    CHECK(DecodeSequence(EncodeSequence(number)) == number);
  }
  for (std::size_t size : {0, 1, 7, 9, 16}) CHECK_FALSE(DecodeSequence(Bytes(size, 0)).has_value());
}

TEST_CASE("C2: the start of a replay is a big-endian integer of 0 to 16 bytes") {
  CHECK(DecodeReplayStart(Bytes{}) == 0);
  CHECK(DecodeReplayStart(Bytes{5}) == 5);
  CHECK(DecodeReplayStart(FromHex("00000000000102")) == 0x0102);
  CHECK(DecodeReplayStart(kSeven) == 7);
  CHECK(DecodeReplayStart(FromHex("000000000000000007")) == 7);
  CHECK(DecodeReplayStart(FromHex("00000000000000000000000000000007")) == 7);
  CHECK(DecodeReplayStart(FromHex("00ffffffffffffffff")) == kEndOfReplay);
  CHECK(DecodeReplayStart(FromHex("010000000000000000")) == kEndOfReplay);
  CHECK(DecodeReplayStart(Bytes(16, 0xff)) == kEndOfReplay);
  CHECK_FALSE(DecodeReplayStart(Bytes(17, 0)).has_value());
}

TEST_CASE("a live message has three frames and a sequence of 8 bytes") {
  const auto message = ParseLiveMessage(Frames({&kTopic, &kSeven, &kPayload}));
  REQUIRE(message);
  CHECK(ToHex(message->topic) == ToHex(kTopic));
  CHECK(message->sequence == 7);
  CHECK(ToHex(message->payload) == ToHex(kPayload));
  CHECK(ParseLiveMessage(Frames({&kEmpty, &kSeven, &kEmpty})).has_value());
  CHECK_FALSE(ParseLiveMessage(Frames({&kSeven, &kPayload})).has_value());
  CHECK_FALSE(ParseLiveMessage(Frames({&kEmpty, &kTopic, &kSeven, &kPayload})).has_value());
  CHECK_FALSE(ParseLiveMessage(Frames({&kTopic, &kTopic, &kPayload})).has_value());
  CHECK_FALSE(ParseLiveMessage({}).has_value());
}

TEST_CASE("C1: a replay answer is read in either layout, data and end mark") {
  auto message = ParseReplayMessage(Frames({&kEmpty, &kTopic, &kSeven, &kPayload}));
  REQUIRE(message);
  REQUIRE(message->topic);
  CHECK(ToHex(*message->topic) == ToHex(kTopic));
  CHECK(message->sequence == 7);
  CHECK(ToHex(message->payload) == ToHex(kPayload));
  CHECK_FALSE(message->end);

  message = ParseReplayMessage(Frames({&kEmpty, &kSeven, &kPayload}));
  REQUIRE(message);
  CHECK_FALSE(message->topic.has_value());
  CHECK(message->sequence == 7);
  CHECK_FALSE(message->end);

  message = ParseReplayMessage(Frames({&kEmpty, &kEmpty, &kEnd, &kEmpty}));
  REQUIRE(message);
  CHECK(message->end);
  CHECK(message->topic.has_value());

  message = ParseReplayMessage(Frames({&kEmpty, &kEnd, &kEmpty}));
  REQUIRE(message);
  CHECK(message->end);
  CHECK_FALSE(message->topic.has_value());

  // An empty payload is no batch, whatever the number.
  CHECK(ParseReplayMessage(Frames({&kEmpty, &kSeven, &kEmpty}))->end);
}

TEST_CASE("C1: a replay answer of another shape is a protocol error") {
  CHECK_FALSE(ParseReplayMessage({}).has_value());
  CHECK_FALSE(ParseReplayMessage(Frames({&kEmpty})).has_value());
  CHECK_FALSE(ParseReplayMessage(Frames({&kSeven, &kPayload})).has_value());
  CHECK_FALSE(ParseReplayMessage(Frames({&kTopic, &kSeven, &kPayload})).has_value());
  CHECK_FALSE(ParseReplayMessage(Frames({&kEmpty, &kTopic, &kPayload, &kPayload})).has_value());
  CHECK_FALSE(ParseReplayMessage(Frames({&kEmpty, &kEmpty, &kTopic, &kSeven, &kPayload})).has_value());
}

}  // namespace kvwire
