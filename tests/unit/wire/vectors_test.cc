// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <openssl/evp.h>

#include "wire_test_support.h"

namespace kvwire {

namespace {

using Json = nlohmann::json;

const Json& Vectors() {
  static const Json vectors = Json::parse(ReadGolden("wire.json"));
  return vectors;
}

bool HasByteHashes(const Json& vector) { return vector.dump().find("\"hex\":") != std::string::npos; }

// The switches under which a vector's bytes come about.
KVEventsConfig::Extensions SwitchesFor(const Json& vector, EventFormat format) {
  Json events = vector.at("events");
  KVEventsConfig::Extensions switches;
  switches.event_format = format;
  if (HasByteHashes(events)) switches.hash_form = HashForm::kBytes;
  return switches;
}

DecodedBatch DecodeOrFail(std::span<const std::uint8_t> payload, const DecodeOptions& options = {}) {
  tl::expected<DecodedBatch, DecodeError> decoded = DecodeBatch(payload, options);
  if (!decoded) FAIL(decoded.error().message);
  return *std::move(decoded);
}

// The bytes of the n-th fenced block of docs/protocol.md: of each line the two-digit words up to the comment.
std::string DocumentedHex(std::size_t n) {
  std::istringstream lines(ReadGolden("../../docs/protocol.md"));
  std::string hex;
  std::size_t fences = 0;
  bool begun = false;
  for (std::string line; std::getline(lines, line);) {
    begun = begun || line == "## Worked examples";
    if (!begun) continue;
    if (line.rfind("```", 0) == 0) {
      ++fences;
      continue;
    }
    if (fences != 2 * n + 1) continue;
    std::size_t at = line.find_first_not_of(' ');
    while (at != std::string::npos && at + 2 <= line.size() && std::isxdigit(line[at]) && std::isxdigit(line[at + 1])) {
      hex += line.substr(at, 2);
      if (at + 3 > line.size() || line[at + 2] != ' ') break;
      at += 3;
    }
  }
  return hex;
}

std::string Sha256(const Bytes& bytes) {
  std::array<std::uint8_t, 32> digest{};
  EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  return ToHex(digest);
}

}  // namespace

TEST_CASE("E1: every batch of wire.json is encoded byte for byte, with map and with array events") {
  std::size_t encoded = 0;
  for (const Json& vector : Vectors().at("encode_and_decode")) {
    CAPTURE(vector.at("name").get<std::string>());
    const KVEventBatch batch = BatchFromJson(vector);
    for (const auto& item : vector.at("hex").items()) {
      const std::string shape = item.key();
      const std::string hex = item.value().get<std::string>();
      CAPTURE(shape);
      const EventFormat format = shape == "array_batch_map_events" ? EventFormat::kMap : EventFormat::kArray;
      CHECK(ToHex(Encode(batch, SwitchesFor(vector, format))) == hex);
      ++encoded;
    }
  }
  CHECK(encoded == 36);
}

TEST_CASE("E1: every batch of wire.json is decoded to the same events from either shape") {
  for (const Json& vector : Vectors().at("encode_and_decode")) {
    CAPTURE(vector.at("name").get<std::string>());
    const KVEventBatch expected = BatchFromJson(vector);
    for (const auto& item : vector.at("hex").items()) {
      const std::string shape = item.key();
      const std::string hex = item.value().get<std::string>();
      CAPTURE(shape);
      const DecodedBatch decoded = DecodeOrFail(FromHex(hex));
      CHECK(decoded.batch == expected);
      CHECK(decoded.rejected_total == 0);
      CHECK(decoded.ignored_fields == 0);
      CHECK(decoded.shape == BatchShape::kArray);
      CHECK((shape == "array_batch_map_events" ? decoded.map_events : decoded.array_events) == expected.size());
    }
  }
}

TEST_CASE("E1: a batch that is a map is decoded to the same events as the array batch") {
  std::size_t compared = 0;
  for (const Json& vector : Vectors().at("decode_only")) {
    if (!vector.contains("same_as")) continue;
    CAPTURE(vector.at("name").get<std::string>());
    const Json& all = Vectors().at("encode_and_decode");
    const auto twin = std::find_if(all.begin(), all.end(),
                                   [&](const Json& other) { return other.at("name") == vector.at("same_as"); });
    REQUIRE(twin != all.end());
    const DecodedBatch decoded = DecodeOrFail(FromHex(vector.at("hex").get<std::string>()));
    CHECK(decoded.batch == BatchFromJson(*twin));
    CHECK(decoded.shape == BatchShape::kMap);
    CHECK(decoded.rejected_total == 0);
    ++compared;
  }
  CHECK(compared == 19);
}

TEST_CASE("E2: a positional BlockStored of 5 to 13 fields is decoded, what is surplus is counted") {
  for (const Json& vector : Vectors().at("decode_only")) {
    if (!vector.contains("fields")) continue;
    CAPTURE(vector.at("name").get<std::string>());
    const Json& fields = vector["fields"];
    const DecodedBatch decoded = DecodeOrFail(FromHex(vector.at("hex").get<std::string>()));
    REQUIRE(decoded.batch.size() == 1);
    const auto stored = std::get<BlockStored>(decoded.batch.at(0));
    CHECK(stored.block_hashes[0].Low64() == fields[0][0].get<std::uint64_t>());
    CHECK_FALSE(stored.parent_block_hash.has_value());
    CHECK(std::vector<TokenId>(stored.token_ids.begin(), stored.token_ids.end()) ==
          fields[2].get<std::vector<TokenId>>());
    CHECK(stored.block_size == 4);
    CHECK_FALSE(stored.lora_id.has_value());
    CHECK(stored.medium.has_value() == (fields.size() > 5));
    CHECK_FALSE(stored.lora_name.has_value());
    CHECK(stored.extra_keys.absent == (fields.size() <= 7));
    CHECK(stored.group_idx == (fields.size() > 8 ? std::optional<std::uint32_t>(0) : std::nullopt));
    CHECK(stored.kv_cache_spec_kind.value_or("") == (fields.size() > 9 ? "full_attention" : ""));
    CHECK_FALSE(stored.kv_cache_spec_sliding_window.has_value());
    CHECK(stored.locality.value_or("") == (fields.size() > 11 ? "LOCAL" : ""));
    CHECK(decoded.ignored_fields == (fields.size() > 12 ? fields.size() - 12 : 0));
  }
}

TEST_CASE("decode-only vectors: no rank, mixed shapes, unknown tag, unknown keys") {
  for (const Json& vector : Vectors().at("decode_only")) {
    const std::string name = vector.at("name").get<std::string>();
    const Bytes payload = FromHex(vector.at("hex").get<std::string>());
    KVEventBatch expected;
    expected.ts = 1.0;
    expected.data_parallel_rank = 0;
    const BlockHash hashes[] = {H(15550052362734618010u), H(9), H(1), H(2), H(3)};
    const auto removed = [&](std::size_t which) {
      BlockRemoved event;
      event.block_hashes = std::span(hashes).subspan(which, 1);
      event.medium = "GPU";
      return event;
    };
    if (name == "batch_without_rank") {
      CHECK_FALSE(DecodeOrFail(payload).batch.data_parallel_rank.has_value());
    } else if (name == "mixed_events_in_one_batch") {
      expected.Add(removed(0));
      expected.Add(AllBlocksCleared{});
      expected.Add(AllBlocksCleared{});
      expected.Add(removed(1));
      const DecodedBatch decoded = DecodeOrFail(payload);
      CHECK(decoded.batch == expected);
      CHECK(decoded.map_events == 2);
      CHECK(decoded.array_events == 2);
    } else if (name == "unknown_tag_between_known") {
      expected.Add(removed(2));
      expected.Add(removed(3));
      const DecodedBatch decoded = DecodeOrFail(payload);
      CHECK(decoded.batch == expected);
      CHECK(Rejections(decoded) == "1 unknown event events[1].type");
    } else if (name == "unknown_map_keys") {
      expected.Add(removed(4));
      const DecodedBatch decoded = DecodeOrFail(payload);
      CHECK(decoded.batch == expected);
      CHECK(decoded.ignored_fields == 1);
    }
  }
}

TEST_CASE("payloads of vLLM with map events survive decoding and encoding byte for byte") {
  for (const char* name : {"captured", "W1", "W2", "W3", "W10", "W11"}) {
    CAPTURE(name);
    const Bytes& payload = GoldenPayloads().at(name);
    const DecodedBatch decoded = DecodeOrFail(payload);
    CHECK(decoded.rejected_total == 0);
    CHECK(ToHex(Encode(decoded.batch)) == ToHex(payload));
  }
}

TEST_CASE("a payload of vLLM 0.23 with array events survives decoding and encoding byte for byte") {
  KVEventsConfig::Extensions switches;
  switches.event_format = EventFormat::kArray;
  const Bytes& payload = GoldenPayloads().at("W5");
  CHECK(ToHex(Encode(DecodeOrFail(payload).batch, switches)) == ToHex(payload));
}

TEST_CASE("the captured payload holds an eviction and a store") {
  const DecodedBatch decoded = DecodeOrFail(GoldenPayloads().at("captured"));
  REQUIRE(decoded.batch.size() == 2);
  const auto removed = std::get<BlockRemoved>(decoded.batch.at(0));
  CHECK(removed.block_hashes[0].Low64() == 0xd5c88cf9f9c81787u);
  const auto stored = std::get<BlockStored>(decoded.batch.at(1));
  CHECK(stored.block_hashes[0].Low64() == 0x3e2ef11c6368831du);
  CHECK(stored.parent_block_hash->Low64() == 0x3a1630a37081f38bu);
  CHECK(stored.token_ids.size() == 16);
  CHECK(stored.token_ids[0] == 0xdc);
  CHECK(stored.block_size == 16);
  CHECK(stored.group_idx == 0);
  CHECK(decoded.batch.data_parallel_rank == 0);
}

TEST_CASE("payloads of the first vLLM releases are decoded") {
  const DecodedBatch w7 = DecodeOrFail(GoldenPayloads().at("W7"));
  REQUIRE(w7.batch.size() == 3);
  const auto stored = std::get<BlockStored>(w7.batch.at(0));
  CHECK(stored.block_hashes[0].Low64() == 2164874634404590027u);
  CHECK(stored.block_hashes[1].Low64() == 17270480062156288726u);
  CHECK(stored.token_ids.size() == 8);
  CHECK_FALSE(stored.medium.has_value());
  CHECK(stored.extra_keys.absent);
  CHECK_FALSE(std::get<BlockRemoved>(w7.batch.at(1)).medium.has_value());
  CHECK(std::holds_alternative<AllBlocksCleared>(w7.batch.at(2)));
  CHECK(w7.batch.data_parallel_rank == 0);

  const DecodedBatch w8 = DecodeOrFail(GoldenPayloads().at("W8"));
  REQUIRE(w8.batch.size() == 1);
  CHECK(w8.batch.ts == 1700000000.5);
  CHECK_FALSE(w8.batch.data_parallel_rank.has_value());
}

TEST_CASE("a masked group's event without hashes is decoded") {
  const DecodedBatch decoded = DecodeOrFail(GoldenPayloads().at("W11"));
  REQUIRE(decoded.batch.size() == 1);
  const auto stored = std::get<BlockStored>(decoded.batch.at(0));
  CHECK(stored.block_hashes.empty());
  CHECK(stored.token_ids.size() == 8);
  CHECK(stored.group_idx == 1);
  CHECK(stored.kv_cache_spec_kind == "sliding_window");
  CHECK(stored.kv_cache_spec_sliding_window == 128);
}

TEST_CASE("the same four events come out of every shape a gateway may meet") {
  KVEventBatch expected;
  expected.ts = 0.5;
  expected.data_parallel_rank = 0;
  const BlockHash one[] = {H(1)};
  const BlockHash two[] = {H(2)};
  const TokenId tokens[] = {1, 2};
  BlockStored stored;
  stored.block_hashes = one;
  stored.token_ids = tokens;
  stored.block_size = 2;
  stored.medium = "GPU";
  stored.extra_keys.absent = false;
  stored.group_idx = 0;
  expected.Add(stored);
  BlockRemoved removed;
  removed.block_hashes = one;
  removed.medium = "GPU";
  removed.group_idx = 0;
  expected.Add(removed);
  removed.block_hashes = two;
  removed.group_idx.reset();
  expected.Add(removed);
  expected.Add(AllBlocksCleared{});

  for (const char* name : {"keyed", "positional", "map_batch"}) {
    CAPTURE(name);
    const DecodedBatch decoded = DecodeOrFail(GoldenPayloads().at(name));
    CHECK(decoded.batch == expected);
    CHECK(decoded.rejected_total == 0);
  }
  CHECK(ToHex(Encode(expected)) == ToHex(GoldenPayloads().at("keyed")));
  expected.data_parallel_rank.reset();
  CHECK(DecodeOrFail(GoldenPayloads().at("map_batch_no_rank")).batch == expected);

  KVEventBatch cleared;
  cleared.ts = 0.5;
  cleared.Add(AllBlocksCleared{});
  CHECK(DecodeOrFail(GoldenPayloads().at("cleared_keyed")).batch == cleared);
  CHECK(DecodeOrFail(GoldenPayloads().at("cleared_positional")).batch == cleared);
  CHECK(ToHex(Encode(cleared)) == ToHex(GoldenPayloads().at("cleared_keyed")));
}

TEST_CASE("the examples of docs/protocol.md are the golden payloads") {
  CHECK(DocumentedHex(0) == ToHex(GoldenPayloads().at("W3")));
  CHECK(DocumentedHex(1) == ToHex(GoldenPayloads().at("W1")));
  CHECK(Sha256(FromHex(DocumentedHex(2))) == "c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb");
}

TEST_CASE("a batch in bytes form is the reference encoder's, 279 bytes") {
  const auto hash = [](std::string_view text) {
    return *BlockHash::FromBytes({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  };
  const BlockHash hashes[] = {hash("hash_block_0000"), hash("hash_block_0001")};
  const TokenId tokens[] = {1, 2, 3, 4, 5, 6, 7, 8};
  KVEventBatch batch;
  batch.ts = 1234.5;
  BlockStored stored;
  stored.block_hashes = hashes;
  stored.token_ids = tokens;
  stored.block_size = 4;
  stored.medium = "GPU";
  stored.extra_keys.absent = false;
  stored.group_idx = 0;
  batch.Add(stored);
  BlockRemoved removed;
  removed.block_hashes = std::span(hashes).first(1);
  removed.medium = "GPU";
  removed.group_idx = 0;
  batch.Add(removed);
  batch.Add(AllBlocksCleared{});
  KVEventsConfig::Extensions switches;
  switches.hash_form = HashForm::kBytes;
  const Bytes payload = Encode(batch, switches);
  CHECK(payload.size() == 279);
  CHECK(Sha256(payload) == "9b7245564d7428d027fc5662ca071ef26f33b8766085108db7714b2c8c3006d9");
}

TEST_CASE("a batch in integer form with a parent is the reference encoder's, 170 bytes") {
  const BlockHash hashes[] = {H(0x0102030405060708u), H(0xf0f1f2f3f4f5f6f7u)};
  const TokenId tokens[] = {100, 200, 300, 128, 127};
  KVEventBatch batch;
  BlockStored stored;
  stored.block_hashes = hashes;
  stored.parent_block_hash = H(0xab);
  stored.token_ids = tokens;
  stored.block_size = 2;
  stored.medium = "GPU";
  stored.extra_keys.absent = false;
  stored.group_idx = 3;
  batch.Add(stored);
  const Bytes payload = Encode(batch);
  CHECK(payload.size() == 170);
  CHECK(Sha256(payload) == "dab4a7ad327c063c337ad48a9653e7c43bf5e062241eaf072c70a25a7c957e4f");
}

}  // namespace kvwire
