// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <msgpack.hpp>

#include "wire_test_support.h"

namespace kvwire {

namespace {

using Packer = msgpack::packer<msgpack::sbuffer>;

// Payloads written with another library, so that the decoder is not only tested against our own encoder.
class Payload {
 public:
  Packer& pack() { return packer_; }
  Payload& Batch(std::uint32_t events, double ts = 1) {
    packer_.pack_array(3);
    packer_.pack_double(ts);
    packer_.pack_array(events);
    return *this;
  }
  Payload& Key(std::string_view key) {
    packer_.pack_str(static_cast<std::uint32_t>(key.size()));
    packer_.pack_str_body(key.data(), static_cast<std::uint32_t>(key.size()));
    return *this;
  }
  // The four keys that every BlockStored has, of one block with hash 7 and two tokens.
  Payload& Stored(std::uint32_t further_keys = 0) {
    packer_.pack_map(4 + further_keys);
    Key("type").Key("BlockStored").Key("block_hashes");
    packer_.pack(std::vector<int>{7});
    Key("token_ids");
    packer_.pack(std::vector<int>{1, 2});
    Key("block_size");
    packer_.pack(2);
    return *this;
  }
  Bytes End() {
    packer_.pack(0);  // the rank
    return bytes();
  }
  Bytes bytes() const { return {buffer_.data(), buffer_.data() + buffer_.size()}; }

 private:
  msgpack::sbuffer buffer_;
  Packer packer_{buffer_};
};

DecodedBatch Read(const Bytes& payload, const DecodeOptions& options = {}) {
  tl::expected<DecodedBatch, DecodeError> decoded = DecodeBatch(payload, options);
  if (!decoded) FAIL(decoded.error().message);
  return *std::move(decoded);
}

BlockStored StoredAt(const DecodedBatch& decoded, std::size_t index = 0) {
  REQUIRE(decoded.batch.size() > index);
  return std::get<BlockStored>(decoded.batch.at(index));
}

}  // namespace

TEST_CASE("E1: keys of an event may come in any order, the tag last") {
  Payload payload;
  payload.Batch(1).pack().pack_map(5);
  payload.Key("block_size").pack().pack(2);
  payload.Key("medium").Key("CPU");
  payload.Key("token_ids").pack().pack(std::vector<int>{1, 2});
  payload.Key("block_hashes").pack().pack(std::vector<int>{7});
  payload.Key("type").Key("BlockStored");
  const DecodedBatch decoded = Read(payload.End());
  CHECK(StoredAt(decoded).medium == "CPU");
  CHECK(StoredAt(decoded).block_size == 2);
}

TEST_CASE("E1: a key that is there twice rejects its event, whichever key") {
  for (const char* key : {"type", "block_hashes", "token_ids", "medium"}) {
    CAPTURE(key);
    Payload payload;
    payload.Batch(2).Stored(key == std::string("medium") ? 2 : 1);
    if (key == std::string("medium")) payload.Key("medium").Key("GPU");
    payload.Key(key);
    if (key == std::string("type")) {
      payload.Key("BlockStored");
    } else if (key == std::string("medium")) {
      payload.Key("GPU");
    } else {
      payload.pack().pack(std::vector<int>{7});
    }
    payload.Stored();
    const DecodedBatch decoded = Read(payload.End());
    CHECK(decoded.batch.size() == 1);
    CHECK(Rejections(decoded) == "0 inconsistent events[0]." + std::string(key));
  }
}

TEST_CASE("E2: unknown elements and keys are ignored and counted, missing required keys reject one event") {
  Payload payload;
  payload.Batch(4);
  payload.pack().pack_array(12 + 1 + 3);
  payload.Key("BlockStored");
  payload.pack().pack(std::vector<int>{7});
  payload.pack().pack_nil();
  payload.pack().pack(std::vector<int>{1, 2});
  payload.pack().pack(2);
  for (int i = 0; i < 8; ++i) payload.pack().pack_nil();
  for (int i = 0; i < 3; ++i) payload.pack().pack(std::vector<std::vector<int>>{{1}, {2}});
  for (const char* missing : {"block_hashes", "token_ids", "block_size"}) {
    payload.pack().pack_map(3);
    payload.Key("type").Key("BlockStored");
    for (const char* key : {"block_hashes", "token_ids"}) {
      if (key != std::string(missing)) payload.Key(key).pack().pack(std::vector<int>{1});
    }
    if (missing != std::string("block_size")) payload.Key("block_size").pack().pack(1);
  }
  const DecodedBatch decoded = Read(payload.End());
  CHECK(decoded.batch.size() == 1);
  CHECK(decoded.ignored_fields == 3);
  CHECK(Rejections(decoded) ==
        "1 missing field events[1].block_hashes; 2 missing field events[2].token_ids; "
        "3 missing field events[3].block_size");
}

TEST_CASE("E2: locality is wire compatible with the schema before it") {
  // Hash 32 x ab, tokens 1..4, group 2, window 128, as the reference tests have it.
  const BlockHash hashes[] = {*BlockHash::FromBytes(Bytes(32, 0xab))};
  const TokenId tokens[] = {1, 2, 3, 4};
  BlockStored stored;
  stored.block_hashes = hashes;
  stored.token_ids = tokens;
  stored.block_size = 4;
  stored.group_idx = 2;
  stored.kv_cache_spec_sliding_window = 128;
  KVEventBatch without;
  without.Add(stored);
  stored.locality = "LOCAL";
  KVEventBatch with;
  with.Add(stored);
  KVEventsConfig::Extensions switches;
  switches.hash_form = HashForm::kBytes;
  const Bytes old_payload = Encode(without, switches);
  CHECK(std::string(old_payload.begin(), old_payload.end()).find("locality") == std::string::npos);
  CHECK_FALSE(StoredAt(Read(old_payload)).locality.has_value());
  const Bytes new_payload = Encode(with, switches);
  CHECK(StoredAt(Read(new_payload)).locality == "LOCAL");
  // One key and its value more, one more in the map's head, nothing else.
  CHECK(new_payload.size() == old_payload.size() + 1 + 8 + 1 + 5);
  CHECK_FALSE(with == without);
}

TEST_CASE("events differ by group, window and locality, and default to none of them") {
  const BlockHash hashes[] = {H(1)};
  const auto batch = [&](std::optional<std::uint32_t> group, std::optional<std::uint32_t> window,
                         std::optional<std::string_view> locality) {
    BlockStored stored;
    stored.block_hashes = hashes;
    stored.group_idx = group;
    stored.kv_cache_spec_sliding_window = window;
    stored.locality = locality;
    BlockRemoved removed;
    removed.block_hashes = hashes;
    removed.group_idx = group;
    removed.locality = locality;
    KVEventBatch events;
    events.Add(stored);
    events.Add(removed);
    return Read(Encode(events)).batch;
  };
  CHECK(batch({}, {}, {}) == batch({}, {}, {}));
  CHECK_FALSE(std::get<BlockStored>(batch({}, {}, {}).at(0)).group_idx.has_value());
  CHECK_FALSE(std::get<BlockRemoved>(batch({}, {}, {}).at(1)).group_idx.has_value());
  for (std::uint32_t group = 0; group < 4; ++group) CHECK_FALSE(batch(group, {}, {}) == batch(group + 1, {}, {}));
  CHECK_FALSE(batch(0, {}, {}) == batch({}, {}, {}));
  CHECK_FALSE(batch(1, 128, {}) == batch(1, 256, {}));
  CHECK_FALSE(batch(1, {}, "LOCAL") == batch(1, {}, "REMOTE"));
}

TEST_CASE("F2: unsigned, signed and bytes forms of one digest are the same 64 bits") {
  Bytes digest;
  for (int i = 0; i < 32; ++i) digest.push_back(static_cast<std::uint8_t>(0xf0 - i));
  const BlockHash hash = *BlockHash::FromBytes(digest);
  const std::uint64_t low = 0xd8d7d6d5d4d3d2d1u;
  const std::uint64_t first = 0xf0efeeedecebeae9u;
  REQUIRE(hash.Low64() == low);
  BlockRemoved removed;
  const BlockHash hashes[] = {hash};
  removed.block_hashes = hashes;
  KVEventBatch batch;
  batch.Add(removed);
  for (const HashForm form : {HashForm::kUint64, HashForm::kInt64, HashForm::kBytes, HashForm::kFirstInt64}) {
    KVEventsConfig::Extensions switches;
    switches.hash_form = form;
    const Bytes payload = Encode(batch, switches);
    const DecodedBatch decoded = Read(payload);
    const auto event = std::get<BlockRemoved>(decoded.batch.at(0));
    CHECK(event.block_hashes[0].Low64() == (form == HashForm::kFirstInt64 ? first : low));
    const std::string hex = ToHex(payload);
    if (form == HashForm::kUint64) CHECK(hex.find("cfd8d7d6d5d4d3d2d1") != std::string::npos);
    if (form == HashForm::kInt64) CHECK(hex.find("d3d8d7d6d5d4d3d2d1") != std::string::npos);
    if (form == HashForm::kFirstInt64) CHECK(hex.find("d3f0efeeedecebeae9") != std::string::npos);
    if (form == HashForm::kBytes) {
      CHECK(event.block_hashes[0] == hash);
      DecodeOptions options;
      options.hash_bits = HashBits::kFirst64;
      CHECK(std::get<BlockRemoved>(Read(payload, options).batch.at(0)).block_hashes[0].Low64() == first);
    }
  }
}

TEST_CASE("F2: a hash is read from any integer width, from bytes of any length, from hex digits") {
  struct Case {
    const char* hex;
    std::uint64_t low;
    std::size_t size;
  };
  const Case cases[] = {
      {"05", 5, 8},
      {"ff", ~std::uint64_t{0}, 8},
      {"e0", ~std::uint64_t{31}, 8},
      {"cc80", 0x80, 8},
      {"cd0001", 1, 8},
      {"ceffffffff", 0xffffffff, 8},
      {"cfffffffffffffffff", ~std::uint64_t{0}, 8},
      {"d080", ~std::uint64_t{0x7f}, 8},
      {"d07f", 0x7f, 8},
      {"d18000", ~std::uint64_t{0x7fff}, 8},
      {"d280000000", ~std::uint64_t{0x7fffffff}, 8},
      {"d38000000000000000", std::uint64_t{1} << 63, 8},
      {"d30000000000000005", 5, 8},
      {"c401ab", 0xab, 1},
      {"c4080102030405060708", 0x0102030405060708u, 8},
      {"c5000301ff02", 0x01ff02, 3},
      {"a430314646", 0x01ff, 2},
  };
  for (const Case& c : cases) {
    CAPTURE(c.hex);
    const DecodedBatch decoded = Read(FromHex("93c09193ac426c6f636b52656d6f76656491" + std::string(c.hex) + "c000"));
    CHECK(Rejections(decoded) == "");
    REQUIRE(decoded.batch.size() == 1);
    const auto removed = std::get<BlockRemoved>(decoded.batch.at(0));
    CHECK(removed.block_hashes[0].Low64() == c.low);
    CHECK(removed.block_hashes[0].size() == c.size);
  }
}

TEST_CASE("a hash longer than 32 bytes keeps its last 32") {
  Payload payload;
  payload.Batch(1).pack().pack_array(2);
  payload.Key("BlockRemoved").pack().pack_array(1);
  Bytes hash;
  for (int i = 0; i < 40; ++i) hash.push_back(static_cast<std::uint8_t>(i));
  payload.pack().pack(hash);
  const DecodedBatch decoded = Read(payload.End());
  const auto removed = std::get<BlockRemoved>(decoded.batch.at(0));
  CHECK(removed.block_hashes[0] == *BlockHash::FromBytes(std::span<const std::uint8_t>(hash).last(32)));
}

TEST_CASE("D18: an event with a future tag costs only itself") {
  Payload payload;
  payload.Batch(3).Stored().pack().pack_map(2);
  payload.Key("type").Key("TierBlocksCleared").Key("medium").Key("GPU");
  payload.pack().pack_map(2);
  payload.Key("type").Key("BlockRemoved").Key("block_hashes").pack().pack(std::vector<int>{7});
  const Bytes bytes = payload.End();
  const DecodedBatch decoded = Read(bytes);
  CHECK(decoded.batch.size() == 2);
  CHECK(decoded.rejected_total == 1);
  CHECK(Rejections(decoded) == "1 unknown event events[1].type");

  DecodeOptions options;
  options.strict = true;
  const auto refused = DecodeBatch(bytes, options);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == DecodeErrorCode::kUnknownEvent);
  CHECK(refused.error().path == "events[1].type");
}

TEST_CASE("E5: a salt in a field of its own becomes the last extra key of the first block") {
  // SGLang: a map at the place of the LoRA name.
  const DecodedBatch array =
      Read(FromHex("93c09198ab426c6f636b53746f726564920708c092010201c0a347505582aa63616368655f73616c74a174a17a0100"));
  CHECK(StoredAt(array).lora_name.has_value() == false);
  REQUIRE(StoredAt(array).extra_keys.per_block.size() == 2);
  CHECK(StoredAt(array).extra_keys.per_block[0] == ExtraKeys{std::string("t")});
  CHECK(StoredAt(array).extra_keys.per_block[1].empty());
  CHECK(array.ignored_fields == 1);

  Payload map;
  map.Batch(1).Stored(2).Key("extra_keys").pack().pack(std::vector<std::vector<std::string>>{{"lora"}});
  map.Key("cache_salt").Key("t");
  const DecodedBatch keyed = Read(map.End());
  CHECK(StoredAt(keyed).extra_keys.per_block[0] == ExtraKeys{std::string("lora"), std::string("t")});

  Payload nil;
  nil.Batch(1).Stored(1).Key("cache_salt").pack().pack_nil();
  CHECK(StoredAt(Read(nil.End())).extra_keys.absent);
}

TEST_CASE("E5: multimodal keys in a field of their own are kept as they are") {
  Payload payload;
  payload.Batch(2).Stored(3);
  payload.Key("mm_keys").pack().pack_array(1);
  payload.pack().pack_map(2);
  payload.Key("hash").Key("00ff").Key("start_offset").pack().pack(3);
  payload.Key("cache_salt").Key("s");
  payload.Key("session_id").Key("session-1");
  payload.Stored(2).Key("mm_keys").pack().pack_array(0);
  payload.Key("ownership").Key("pool");
  const DecodedBatch decoded = Read(payload.End());
  const std::string raw =
      "\x91\x82\xa4hash\xa4"
      "00ff\xac"
      "start_offset\x03";
  CHECK(StoredAt(decoded).extra_keys.per_block[0] == ExtraKeys{OpaqueKey{raw}, std::string("s")});
  CHECK(StoredAt(decoded).session_id == "session-1");
  CHECK(StoredAt(decoded, 1).extra_keys.absent);
  CHECK(StoredAt(decoded, 1).ownership == "pool");
  CHECK(decoded.ignored_fields == 0);
}

TEST_CASE("extra keys are told apart by their form, and unknown forms are kept raw") {
  // "ad", ("mmhash", 2), "salt", bytes, 5, ["a"], ("x", "y"), nil, {type: lora}, ("m", -3)
  const std::string keys =
      "9a"
      "a26164"
      "92a66d6d6861736802"
      "a473616c74"
      "c4020102"
      "05"
      "91a161"
      "92a178a179"
      "c0"
      "81a474797065a46c6f7261"
      "92a16dfd";
  const Bytes payload = FromHex(
      "93cb000000000000000091"
      "99ab426c6f636b53746f7265649107c092010202c0c0c091" +
      keys + "00");
  const DecodedBatch decoded = Read(payload);
  const ExtraKeys expected = {std::string("ad"),
                              MultimodalKey{"mmhash", 2},
                              std::string("salt"),
                              Bytes{1, 2},
                              OpaqueKey{"\x05"},
                              OpaqueKey{"\x91\xa1"
                                        "a"},
                              OpaqueKey{"\x92\xa1x\xa1y"},
                              OpaqueKey{"\xc0"},
                              OpaqueKey{"\x81\xa4type\xa4lora"},
                              MultimodalKey{"m", -3}};
  CHECK(StoredAt(decoded).extra_keys.per_block[0] == expected);
  KVEventsConfig::Extensions switches;
  switches.event_format = EventFormat::kArray;
  switches.array_tail = ArrayTail::kLegacy;
  CHECK(ToHex(Encode(decoded.batch, switches)) == ToHex(payload));
}

TEST_CASE("token pairs are flattened, and must chain") {
  const auto decode = [](const std::string& tokens) {
    return Read(FromHex("93c09195ab426c6f636b53746f7265649107c0" + tokens + "0200"));
  };
  const DecodedBatch chained = decode("93920102920203920304");
  const auto tokens = StoredAt(chained).token_ids;
  CHECK(std::vector<TokenId>(tokens.begin(), tokens.end()) == std::vector<TokenId>{1, 2, 3, 4});
  CHECK(Rejections(decode("92920102920303")) == "0 inconsistent events[0].token_ids[1][0]");
  CHECK(Rejections(decode("9292010203")) == "0 bad type events[0].token_ids[1]");
  CHECK(Rejections(decode("9201920203")) == "0 bad type events[0].token_ids[1]");
  CHECK(Rejections(decode("9193010203")) == "0 bad shape events[0].token_ids[0]");
  CHECK(Rejections(decode("919201ff")) == "0 out of range events[0].token_ids[0][1]");
}

TEST_CASE("time stamps are floats, seconds, milliseconds or unknown") {
  struct Case {
    const char* hex;
    double seconds;
  };
  const Case cases[] = {{"cb41d954fc40200000", 1700000000.5},
                        {"ca3fc00000", 1.5},
                        {"05", 5},
                        {"ce6553f100", 1700000000},
                        {"cf0000018bcfe56800", 1700000000},  // 1700000000000 ms
                        {"cf000000174876e800", 1e11},
                        {"ff", -1},
                        {"c0", 0},
                        {"cb7ff8000000000000", 0},   // NaN
                        {"cbfff0000000000000", 0}};  // -infinity
  for (const Case& c : cases) {
    CAPTURE(c.hex);
    const DecodedBatch decoded = Read(FromHex("93" + std::string(c.hex) + "9000"));
    CHECK(decoded.batch.ts == c.seconds);
    CHECK(decoded.batch == decoded.batch);
  }
}

TEST_CASE("the batch of an object store, milliseconds and nil sizes, is read") {
  Payload payload;
  payload.pack().pack_array(3);
  payload.pack().pack(std::uint64_t{1700000000250});
  payload.pack().pack_array(2);
  payload.pack().pack_map(9);
  payload.Key("event_id").pack().pack(17);
  payload.Key("event_type").Key("stored");
  payload.Key("type").Key("BlockStored");
  payload.Key("block_hashes").pack().pack(std::vector<std::int64_t>{-2});
  payload.Key("parent_block_hash").pack().pack_nil();
  payload.Key("token_ids").pack().pack_nil();
  payload.Key("block_size").pack().pack_nil();
  payload.Key("medium").Key("cpu");
  payload.Key("seq_hashes").pack().pack(std::vector<int>{1});
  payload.pack().pack_map(4);
  payload.Key("type").Key("BlockRemoved");
  payload.Key("block_hashes").pack().pack(std::vector<std::int64_t>{-2});
  payload.Key("token_ids").pack().pack_nil();
  payload.Key("medium").Key("disk");
  const DecodedBatch decoded = Read(payload.End());
  CHECK(decoded.batch.ts == 1700000000.25);
  CHECK(StoredAt(decoded).block_hashes[0].Low64() == ~std::uint64_t{1});
  CHECK(StoredAt(decoded).token_ids.empty());
  CHECK(StoredAt(decoded).block_size == 0);
  CHECK(StoredAt(decoded).medium == "cpu");
  CHECK(std::get<BlockRemoved>(decoded.batch.at(1)).medium == "disk");
  CHECK(decoded.ignored_fields == 4);
}

TEST_CASE("an event inside a bin is read, a second bin inside is not") {
  const std::string cleared = "91b0416c6c426c6f636b73436c6561726564";
  const DecodedBatch decoded = Read(FromHex("92c091c412" + cleared));
  CHECK(decoded.batch.size() == 1);
  CHECK(decoded.array_events == 1);
  CHECK(Rejections(Read(FromHex("92c091c414c412" + cleared))) == "0 bad type events[0]");
  // What is broken inside costs the event, not the message: the bin says where it ends.
  const DecodedBatch broken = Read(FromHex("92c092c411" + cleared.substr(0, 34) + cleared));
  CHECK(Rejections(broken) == "0 limit exceeded events[0]");
  CHECK(broken.batch.size() == 1);
  const DecodedBatch trailing = Read(FromHex("92c091c413" + cleared + "00"));
  CHECK(Rejections(trailing) == "0 trailing bytes events[0]");
  CHECK(trailing.rejected[0].error.offset == 23);
}

TEST_CASE("the rank of a map batch may be called attn_dp_rank") {
  Payload payload;
  payload.pack().pack_map(4);
  payload.Key("attn_dp_rank").pack().pack(3);
  payload.Key("events").pack().pack_array(0);
  payload.Key("ts").pack().pack(2.5);
  payload.Key("load").pack().pack(std::vector<int>{1, 2});
  const DecodedBatch decoded = Read(payload.bytes());
  CHECK(decoded.batch.data_parallel_rank == 3);
  CHECK(decoded.batch.ts == 2.5);
  CHECK(decoded.ignored_fields == 1);
  CHECK(decoded.shape == BatchShape::kMap);
}

}  // namespace kvwire
