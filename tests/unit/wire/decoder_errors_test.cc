// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include <doctest/doctest.h>

#include "wire_test_support.h"

namespace kvwire {

namespace {

const std::string kRemoved = "ac426c6f636b52656d6f766564";
const std::string kStored = "ab426c6f636b53746f726564";
const std::string kCleared = "b0416c6c426c6f636b73436c6561726564";

DecodeError RefusalOf(const std::string& hex, const DecodeOptions& options = {}) {
  auto decoded = DecodeBatch(FromHex(hex), options);
  REQUIRE_FALSE(decoded);
  return decoded.error();
}

// "code path @offset"
std::string Short(const DecodeError& error) {
  return std::string(ToString(error.code)) + " " + error.path + " @" + std::to_string(error.offset);
}

// The rejection of the only event of a batch whose event is `event`.
std::string RejectionOf(const std::string& event, const DecodeOptions& options = {}) {
  const auto decoded = DecodeBatch(FromHex("92c091" + event), options);
  REQUIRE(decoded);
  REQUIRE(decoded->rejected.size() == 1);
  CHECK(decoded->batch.empty());
  return Short(decoded->rejected[0].error);
}

}  // namespace

TEST_CASE("a message that cannot be read is refused with code, path and byte") {
  CHECK(Short(RefusalOf("")) == "truncated batch @0");
  CHECK(Short(RefusalOf("c1")) == "bad type batch @0");
  CHECK(Short(RefusalOf("05")) == "bad type batch @0");
  CHECK(Short(RefusalOf("90")) == "bad shape batch @0");
  CHECK(Short(RefusalOf("91c0")) == "bad shape batch @0");
  CHECK(Short(RefusalOf("92a17890")) == "bad type ts @1");
  CHECK(Short(RefusalOf("92c0c0")) == "bad type events @2");
  CHECK(Short(RefusalOf("92c080")) == "bad type events @2");
  CHECK(Short(RefusalOf("93c090a130")) == "bad type data_parallel_rank @3");
  CHECK(Short(RefusalOf("93c090cfffffffffffffffff")) == "out of range data_parallel_rank @3");
  CHECK(Short(RefusalOf("93c090")) == "limit exceeded batch @0");
  CHECK(Short(RefusalOf("93c0900000")) == "trailing bytes batch @4");
  CHECK(Short(RefusalOf("81a27473c0")) == "missing field events @0");
  CHECK(Short(RefusalOf("81a66576656e747390")) == "missing field ts @0");
  CHECK(Short(RefusalOf("83a27473c0a27473c0a66576656e747390")) == "inconsistent ts @5");
  CHECK(Short(RefusalOf("92c0dd00000003c0c0")) == "limit exceeded events @2");
  CHECK(Short(RefusalOf("92c09291" + kCleared)) == "truncated events[1] @21");
}

TEST_CASE("an event that cannot be read is rejected with code, path and byte, the next one is read") {
  CHECK(RejectionOf("c0") == "bad type events[0] @3");
  CHECK(RejectionOf("90") == "bad shape events[0] @3");
  CHECK(RejectionOf("9105") == "bad type events[0].type @4");
  CHECK(RejectionOf("80") == "missing field events[0].type @3");
  CHECK(RejectionOf("91a3466f6f") == "unknown event events[0].type @4");
  CHECK(RejectionOf("91" + kRemoved) == "missing field events[0].block_hashes @3");
  CHECK(RejectionOf("92" + kRemoved + "c0") == "bad type events[0].block_hashes @17");
  CHECK(RejectionOf("92" + kRemoved + "93" + "01" + "cb3ff0000000000000" + "03") ==
        "bad type events[0].block_hashes[1] @19");
  CHECK(RejectionOf("92" + kRemoved + "91c400") == "out of range events[0].block_hashes[0] @18");
  CHECK(RejectionOf("92" + kRemoved + "91a178") == "out of range events[0].block_hashes[0] @18");
  CHECK(RejectionOf("92" + kRemoved + "91a27879") == "bad type events[0].block_hashes[0] @18");
  CHECK(RejectionOf("93" + kRemoved + "910105") == "bad type events[0].medium @19");
  CHECK(RejectionOf("93" + kRemoved + "9101a1ff") == "bad type events[0].medium @19");
  CHECK(RejectionOf("94" + kRemoved + "9101c0ff") == "out of range events[0].group_idx @20");
  CHECK(RejectionOf("94" + kRemoved + "9101c0cf0000000100000000") == "out of range events[0].group_idx @20");
  CHECK(RejectionOf("95" + kStored + "9101c09104ff") == "out of range events[0].block_size @21");
  CHECK(RejectionOf("95" + kStored + "9101c092" + "01" + "ce80000000" + "02") ==
        "out of range events[0].token_ids[1] @21");
  CHECK(RejectionOf("95" + kStored + "9101c09201ff02") == "out of range events[0].token_ids[1] @21");
  CHECK(RejectionOf("99" + kStored + "9101c0910404c0c0c092c0c0") == "inconsistent events[0].extra_keys @3");
  CHECK(RejectionOf("99" + kStored + "9101c0910404c0c0c091a178") == "bad type events[0].extra_keys[0] @26");
}

TEST_CASE("a rejection's message is one line with code, byte, path and what was found") {
  const auto decoded = DecodeBatch(FromHex("92c09195" + kStored + "9101c092" + "01" + "ce80000000" + "02"));
  REQUIRE(decoded);
  REQUIRE(decoded->rejected.size() == 1);
  CHECK(decoded->rejected[0].error.message ==
        "out of range at byte 21, events[0].token_ids[1]: token 2147483648 is above 2^31-1");
  CHECK(RefusalOf("92c0dd00000003c0c0").message ==
        "limit exceeded at byte 2, events: array of length 3 cannot fit into the 2 bytes that remain");
  CHECK(RefusalOf("93c0900000").message == "trailing bytes at byte 4, batch: 1 bytes follow the batch");
}

TEST_CASE("a message of a tag is one line, whatever the tag") {
  const auto decoded = DecodeBatch(FromHex("92c09191a30a0dff"));
  REQUIRE(decoded);
  REQUIRE(decoded->rejected.size() == 1);
  CHECK(decoded->rejected[0].error.message == "unknown event at byte 4, events[0].type: a tag of 3 bytes");
}

TEST_CASE("the largest token id is read, the next one rejects its event") {
  const auto decoded = DecodeBatch(FromHex("92c09195" + kStored + "9101c091" + "ce7fffffff" + "02"));
  REQUIRE(decoded);
  REQUIRE(decoded->batch.size() == 1);
  CHECK(std::get<BlockStored>(decoded->batch.at(0)).token_ids[0] == kMaxTokenId);
  CHECK(RejectionOf("95" + kStored + "9101c091" + "cf0000000080000000" + "02") ==
        "out of range events[0].token_ids[0] @20");
}

TEST_CASE("M4: a byte after the batch is refused, in every shape") {
  for (const auto& golden : GoldenPayloads()) {
    const std::string name = golden.first;
    const Bytes& payload = golden.second;
    CAPTURE(name);
    Bytes longer = payload;
    longer.push_back(0xc0);
    const auto decoded = DecodeBatch(longer);
    REQUIRE_FALSE(decoded);
    CHECK(decoded.error().code == DecodeErrorCode::kTrailingBytes);
    CHECK(decoded.error().offset == payload.size());
  }
}

TEST_CASE("M4: every truncation of every golden payload is refused") {
  for (const auto& golden : GoldenPayloads()) {
    const std::string name = golden.first;
    const Bytes& payload = golden.second;
    CAPTURE(name);
    for (std::size_t size = 0; size < payload.size(); ++size) {
      const auto decoded = DecodeBatch(std::span(payload).first(size));
      REQUIRE_FALSE(decoded);
      const bool named = decoded.error().code == DecodeErrorCode::kTruncated ||
                         decoded.error().code == DecodeErrorCode::kLimitExceeded;
      CHECK(named);
    }
  }
}

TEST_CASE("each limit is enforced") {
  const std::string two_removed = "92" + kRemoved + "920102" + "92" + kRemoved + "920304";
  DecodeOptions options;
  const auto limited = [&](std::size_t DecodeLimits::*limit, std::size_t value) {
    options = DecodeOptions{};
    options.limits.*limit = value;
    return options;
  };
  const std::string batch = "92c092" + two_removed;
  CHECK(Short(RefusalOf(batch, limited(&DecodeLimits::max_payload_bytes, 20))) == "limit exceeded batch @0");
  CHECK(Short(RefusalOf(batch, limited(&DecodeLimits::max_events, 1))) == "limit exceeded events @2");
  CHECK(DecodeBatch(FromHex(batch), limited(&DecodeLimits::max_events, 2)).has_value());

  auto decoded = DecodeBatch(FromHex(batch), limited(&DecodeLimits::max_hashes_per_event, 1));
  REQUIRE(decoded);
  CHECK(Rejections(*decoded) == "0 limit exceeded events[0].block_hashes; 1 limit exceeded events[1].block_hashes");
  decoded = DecodeBatch(FromHex(batch), limited(&DecodeLimits::max_hashes, 3));
  REQUIRE(decoded);
  CHECK(Rejections(*decoded) == "1 limit exceeded events[1].block_hashes");
  decoded = DecodeBatch(FromHex(batch), limited(&DecodeLimits::max_hashes, 4));
  REQUIRE(decoded);
  CHECK(Rejections(*decoded) == "");

  const std::string stored = "99" + kStored + "9101c0920405" + "02" + "c0a34750" + "55" + "c0" + "9192a161a162";
  CHECK(RejectionOf(stored, limited(&DecodeLimits::max_tokens_per_event, 1)) ==
        "limit exceeded events[0].token_ids @19");
  CHECK(RejectionOf(stored, limited(&DecodeLimits::max_text_bytes, 2)) == "limit exceeded events[0].medium @24");
  CHECK(RejectionOf(stored, limited(&DecodeLimits::max_extra_keys, 1)) == "limit exceeded events[0].extra_keys[0] @30");

  options = DecodeOptions{};
  options.limits.max_depth = 5;
  CHECK(DecodeBatch(FromHex("92c091" + stored), options).has_value());
  options.limits.max_depth = 4;
  CHECK(Short(RefusalOf("92c091" + stored, options)) == "too deep events[0].extra_keys[0] @30");
  options.limits.max_depth = 0;
  CHECK(Short(RefusalOf("92c090", options)) == "too deep batch @0");
}

TEST_CASE("only so many rejected events are described, all are counted") {
  DecodeOptions options;
  options.limits.max_rejected_details = 3;
  const auto decoded = DecodeBatch(FromHex("92c09ac0c0c0c0c0c0c0c0c0c0"), options);
  REQUIRE(decoded);
  CHECK(decoded->rejected.size() == 3);
  CHECK(decoded->rejected_total == 10);
}

TEST_CASE("nesting is followed down to the limit, wherever it hides") {
  std::string deep;
  for (int i = 0; i < 27; ++i) deep += "91";
  // Depth 4 is the first level below the event; 32 is the default limit: 29 levels fit there.
  const std::string head = "92c09182a474797065" + kCleared + "a178";
  CHECK(DecodeBatch(FromHex(head + deep + "9191c0")).has_value());
  CHECK(RefusalOf(head + deep + "919191c0").code == DecodeErrorCode::kTooDeep);
  std::string bottomless(200000, '9');
  for (std::size_t i = 1; i < bottomless.size(); i += 2) bottomless[i] = '1';
  CHECK(RefusalOf(head + bottomless + "c0").code == DecodeErrorCode::kTooDeep);
  DecodeOptions options;
  options.limits.max_depth = 0xffffffff;
  CHECK(RefusalOf(head + bottomless + "c0", options).code == DecodeErrorCode::kTooDeep);
}

TEST_CASE("texts are UTF-8") {
  const auto medium = [](const std::string& hex) {
    const std::string length = "d9" + ToHex(Bytes{static_cast<std::uint8_t>(hex.size() / 2)});
    return DecodeBatch(FromHex("92c09193" + kRemoved + "9101" + length + hex))->rejected_total == 0;
  };
  for (const char* good : {"", "41", "c3a9", "e282ac", "ed9fbf", "f09f9982", "f48fbfbf", "e0a080", "f0908080"}) {
    CAPTURE(good);
    CHECK(medium(good));
  }
  for (const char* bad : {"80", "c3", "c0af", "c1bf", "e08080", "eda080", "f08080af", "f4908080", "f5808080", "ff",
                          "e282", "41c328", "f09f99"}) {
    CAPTURE(bad);
    CHECK_FALSE(medium(bad));
  }
}

}  // namespace kvwire
