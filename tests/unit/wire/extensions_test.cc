// SPDX-License-Identifier: Apache-2.0
#include "kv_events/wire/extensions.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "wire_test_support.h"

namespace kvwire {

namespace {

Bytes BytesOf(std::string_view text) { return {text.begin(), text.end()}; }

Bytes HelloBytes(const Hello& hello) {
  Bytes bytes;
  EncodeHello(hello, &bytes);
  return bytes;
}

Bytes DigestBytes(const DigestEntries& entries) {
  Bytes bytes;
  EncodeDigest(entries, &bytes);
  return bytes;
}

// As docs/protocol.md has it.
Hello DocumentedHello() {
  Hello hello;
  hello.epoch = 0x0123456789abcdef;
  hello.data_parallel_rank = 1;
  hello.first = 0;
  hello.next = 300;
  hello.oldest = 7;
  hello.heartbeat_interval_ms = 1000;
  hello.snapshots = true;
  hello.digest = DigestEntries{{0, "GPU", 2, 0xb1c2d3e4f5061728}};
  return hello;
}

constexpr std::string_view kHelloHex =
    "89"
    "a565706f6368cf0123456789abcdef"
    "b2646174615f706172616c6c656c5f72616e6b01"
    "a5666972737400"
    "a46e657874cd012c"
    "a66f6c6465737407"
    "b56865617274626561745f696e74657276616c5f6d73cd03e8"
    "a9736e617073686f7473c3"
    "a872656d6f76616c73a56578616374"
    "a6646967657374"
    "919400a347505502cfb1c2d3e4f5061728";

std::string FailureOf(const Bytes& payload) {
  const auto decoded = DecodeHello(payload);
  return decoded ? "decoded" : std::string(ToString(decoded.error().code)) + " " + decoded.error().path;
}

std::string DigestFailureOf(const Bytes& payload) {
  const auto decoded = DecodeDigest(payload);
  return decoded ? "decoded" : std::string(ToString(decoded.error().code)) + " " + decoded.error().path;
}

// The documented hello with `from` replaced by `to`, both in hexadecimal.
Bytes Spoilt(std::string_view from, std::string_view to) {
  std::string hex(kHelloHex);
  const std::size_t at = hex.find(from);
  REQUIRE(at != std::string::npos);
  hex.replace(at, from.size(), to);
  return FromHex(hex);
}

}  // namespace

TEST_CASE("a request for an extension is its name, and for a digest the number behind it") {
  CHECK(EncodeExtensionRequest({ExtensionKind::kHello, 0}) == BytesOf("KVW1hello"));
  CHECK(EncodeExtensionRequest({ExtensionKind::kSnapshot, 0}) == BytesOf("KVW1snapshot"));
  CHECK(ToHex(EncodeExtensionRequest({ExtensionKind::kDigest, 300})) ==
        "4b56573164696765737400000000"
        "0000012c");
  for (const ExtensionKind kind : {ExtensionKind::kHello, ExtensionKind::kSnapshot, ExtensionKind::kDigest}) {
    const auto parsed = ParseExtensionRequest(EncodeExtensionRequest({kind, 300}));
    REQUIRE(parsed);
    CHECK(parsed->kind == kind);
    CHECK(parsed->number == (kind == ExtensionKind::kDigest ? 300 : 0));
  }
}

TEST_CASE("a name with a wrong argument, and a start of replay, are no request for an extension") {
  for (const std::string_view text : {"", "KVW1", "KVW1hell", "KVW1hello!", "KVW1snapshots", "KVW1digest",
                                      "KVW1digest1234567", "KVW1digest123456789", "kvw1hello", "KVW2hello"}) {
    CAPTURE(text);
    CHECK_FALSE(ParseExtensionRequest(BytesOf(text)).has_value());
  }
  for (std::size_t size = 0; size <= 16; ++size) CHECK_FALSE(ParseExtensionRequest(Bytes(size, 0)).has_value());
}

TEST_CASE("C2: for who does not know the names they are starts above every number, and KVW1 alone stays a number") {
  CHECK(DecodeReplayStart(BytesOf("KVW1hello")) == kEndOfReplay);
  CHECK(DecodeReplayStart(BytesOf("KVW1snapshot")) == kEndOfReplay);
  CHECK(DecodeReplayStart(BytesOf("KVW1")) == 0x4b565731);
  CHECK(DecodeReplayStart(BytesOf("KVW1hell")) == 0x4b56573168656c6c);
}

TEST_CASE("a hello has the documented bytes and is read back") {
  CHECK(ToHex(HelloBytes(DocumentedHello())) == kHelloHex);
  const auto decoded = DecodeHello(FromHex(kHelloHex));
  REQUIRE(decoded);
  CHECK(*decoded == DocumentedHello());

  Hello least;
  least.data_parallel_rank = -1;
  least.epoch = ~std::uint64_t{0};
  least.next = kEndOfReplay - 1;
  least.removals = Removals::kPerCopy;
  CHECK(DecodeHello(HelloBytes(least)).value() == least);
  Hello nothing_held = least;
  nothing_held.digest = DigestEntries{};
  CHECK(DecodeHello(HelloBytes(nothing_held)).value() == nothing_held);
}

TEST_CASE("a hello may have keys that nobody knows yet, and lack what may be nil") {
  // One key more, with an array and a map inside.
  CHECK(DecodeHello(Spoilt("89a565706f6368", "8aa3666f6f9181a161c0a565706f6368")).value() == DocumentedHello());
  Hello expected = DocumentedHello();
  expected.oldest.reset();
  CHECK(DecodeHello(Spoilt("a66f6c6465737407", "a66f6c64657374c0")).value() == expected);
  CHECK(DecodeHello(Spoilt("a66f6c6465737407", "a66f6c64657375c0")).value() == expected);
}

TEST_CASE("a hello that lies is refused with the field") {
  CHECK(FailureOf({}) == "truncated hello");
  CHECK(FailureOf({0x90}) == "bad type hello");
  CHECK(FailureOf({0x80}) == "missing field epoch");
  CHECK(FailureOf(Spoilt("a46e657874", "a46e657875")) == "missing field next");
  CHECK(FailureOf(Spoilt("a5666972737400", "a565706f636800")) == "inconsistent epoch");
  CHECK(FailureOf(Spoilt("cf0123456789abcdef", "ff")) == "out of range epoch");
  CHECK(FailureOf(Spoilt("cf0123456789abcdef", "c0")) == "bad type epoch");
  CHECK(FailureOf(Spoilt("72616e6b01", "72616e6bc0")) == "bad type data_parallel_rank");
  CHECK(FailureOf(Spoilt("cd03e8", "cf0000000100000000")) == "out of range heartbeat_interval_ms");
  CHECK(FailureOf(Spoilt("7473c3", "747301")) == "bad type snapshots");
  CHECK(FailureOf(Spoilt("a56578616374", "a56578616375")) == "out of range removals");
  CHECK(FailureOf(Spoilt("919400", "919300")) == "bad shape digest[0]");
  CHECK(FailureOf(Spoilt("a3475055",
                         "c4034750"
                         "55")) == "bad type digest[0][1]");
  CHECK(FailureOf(FromHex(std::string(kHelloHex) + "00")) == "trailing bytes hello");
  const Bytes whole = FromHex(kHelloHex);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CHECK_FALSE(DecodeHello(FrameView(whole).first(size)).has_value());
  }
}

TEST_CASE("a digest has the documented bytes and is read back") {
  const DigestEntries entries = {{0, "CPU", 1, 5}, {0, "GPU", 300, 0xb1c2d3e4f5061728}, {3, "DISK", 0, 1}};
  CHECK(ToHex(DigestBytes(entries)) ==
        "93"
        "9400a34350550105"
        "9400a3475055cd012ccfb1c2d3e4f5061728"
        "9403a44449534b0001");
  CHECK(DecodeDigest(DigestBytes(entries)).value() == entries);
  CHECK(ToHex(DigestBytes({})) == "90");
  CHECK(DecodeDigest(Bytes{0x90}).value().empty());
}

TEST_CASE("a digest above its bounds, or out of order, is refused before memory is taken") {
  DigestEntries many;
  for (std::uint32_t group = 0; group < 1024; ++group) many.push_back({group, std::string(256, 'M'), group, group});
  CHECK(DecodeDigest(DigestBytes(many)).value() == many);
  many.push_back({1024, "M", 1, 1});
  CHECK(DigestFailureOf(DigestBytes(many)) == "limit exceeded digest");
  CHECK(DigestFailureOf(DigestBytes({{0, std::string(257, 'M'), 1, 1}})) == "limit exceeded digest[0][1]");
  CHECK(DigestFailureOf(DigestBytes({{0, "GPU", 1, 1}, {0, "CPU", 1, 1}})) == "inconsistent digest[1]");
  CHECK(DigestFailureOf(DigestBytes({{0, "GPU", 1, 1}, {0, "GPU", 1, 1}})) == "inconsistent digest[1]");
  CHECK(DigestFailureOf(FromHex("ddffffffff")) == "limit exceeded digest");
  CHECK(DigestFailureOf(FromHex("9194c0a3475055"
                                "0101")) == "bad type digest[0][0]");
  CHECK(DigestFailureOf(FromHex("9194ff")) == "limit exceeded digest[0]");
  CHECK(DigestFailureOf(FromHex("919400a1ff0101")) == "bad type digest[0][1]");
  CHECK(DigestFailureOf(Bytes((std::size_t{1} << 20) + 1, 0)) == "limit exceeded digest");
}

TEST_CASE("a message of an answer has four frames: empty, a known name, a number, a payload") {
  const Bytes empty;
  const Bytes number = {0, 0, 0, 0, 0, 0, 1, 44};
  const Bytes payload = {0x90};
  for (const std::string_view name : {kHelloName, kDigestName, kChunkName, kSnapshotEndName}) {
    const Bytes name_frame = BytesOf(name);
    const FrameView frames[] = {empty, name_frame, number, payload};
    const auto message = ParseExtensionMessage(frames);
    REQUIRE(message);
    CHECK(message->name == name);
    CHECK(message->number == 300);
    CHECK(ToHex(message->payload) == "90");
  }
  const Bytes hello = BytesOf(kHelloName);
  const Bytes other = BytesOf("KVW1snapshot");
  const FrameView unknown[] = {empty, other, number, payload};
  const FrameView three[] = {empty, hello, number};
  const FrameView short_number[] = {empty, hello, payload, payload};
  const FrameView not_empty[] = {payload, hello, number, payload};
  const FrameView five[] = {empty, hello, number, payload, payload};
  CHECK_FALSE(ParseExtensionMessage(unknown).has_value());
  CHECK_FALSE(ParseExtensionMessage(three).has_value());
  CHECK_FALSE(ParseExtensionMessage(short_number).has_value());
  CHECK_FALSE(ParseExtensionMessage(not_empty).has_value());
  CHECK_FALSE(ParseExtensionMessage(five).has_value());
  CHECK_FALSE(ParseExtensionMessage({}).has_value());
}

}  // namespace kvwire
