// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "wire_test_support.h"

namespace kvwire {

namespace {

using Switches = KVEventsConfig::Extensions;

KVEventBatch OneStored(const BlockStored& stored) {
  KVEventBatch batch;
  batch.data_parallel_rank = 0;
  batch.Add(stored);
  return batch;
}

KVEventBatch OneRemoved(const BlockHash& hash) {
  KVEventBatch batch;
  batch.data_parallel_rank = 0;
  BlockRemoved removed;
  removed.block_hashes = std::span(&hash, 1);
  removed.medium = "GPU";
  removed.group_idx = 1;
  batch.Add(removed);
  return batch;
}

// The bytes between the batch's head (an array of 3, a float, an array of 1) and its rank.
std::string EventHex(const KVEventBatch& batch, const Switches& switches) {
  const std::string hex = ToHex(Encode(batch, switches));
  return hex.substr(22, hex.size() - 24);
}

// The one hash of the one BlockRemoved, as written.
std::string HashHex(const BlockHash& hash, HashForm form, WideHashes wide) {
  Switches switches;
  switches.event_format = EventFormat::kArray;
  switches.array_tail = ArrayTail::kLegacy;
  switches.hash_form = form;
  switches.wide_hashes = wide;
  const std::string hex = EventHex(OneRemoved(hash), switches);
  const std::size_t head = 2 + 26 + 2;  // array of 3, tag, array of 1
  return hex.substr(head, hex.size() - head - 8);
}

}  // namespace

TEST_CASE("F2: a hash is written in each form, shortest or always in nine bytes") {
  const BlockHash small = H(5);
  const BlockHash big = H(0x8000000000000001u);
  const BlockHash short_bytes = *BlockHash::FromBytes(Bytes{0xab, 0xcd});
  const BlockHash digest =
      *BlockHash::FromBytes(FromHex("f0000000000000010000000000000000000000000000000000000000000000ff"));
  struct Case {
    BlockHash hash;
    HashForm form;
    WideHashes wide;
    const char* hex;
  };
  const Case cases[] = {
      {small, HashForm::kUint64, WideHashes::kMinimal, "05"},
      {small, HashForm::kUint64, WideHashes::kAlways, "cf0000000000000005"},
      {small, HashForm::kInt64, WideHashes::kMinimal, "05"},
      {small, HashForm::kInt64, WideHashes::kAlways, "cf0000000000000005"},
      {small, HashForm::kBytes, WideHashes::kMinimal, "c4080000000000000005"},
      {small, HashForm::kBytes, WideHashes::kAlways, "c4080000000000000005"},
      {small, HashForm::kFirstInt64, WideHashes::kMinimal, "05"},
      {big, HashForm::kUint64, WideHashes::kMinimal, "cf8000000000000001"},
      {big, HashForm::kInt64, WideHashes::kMinimal, "d38000000000000001"},
      {H(~std::uint64_t{0}), HashForm::kInt64, WideHashes::kMinimal, "ff"},
      {H(~std::uint64_t{0}), HashForm::kInt64, WideHashes::kAlways, "d3ffffffffffffffff"},
      {short_bytes, HashForm::kUint64, WideHashes::kMinimal, "cdabcd"},
      {short_bytes, HashForm::kBytes, WideHashes::kMinimal, "c402abcd"},
      {short_bytes, HashForm::kFirstInt64, WideHashes::kMinimal, "cdabcd"},
      {short_bytes, HashForm::kFirstInt64, WideHashes::kAlways, "cf000000000000abcd"},
      {digest, HashForm::kUint64, WideHashes::kMinimal, "ccff"},
      {digest, HashForm::kInt64, WideHashes::kMinimal, "ccff"},
      {digest, HashForm::kFirstInt64, WideHashes::kMinimal, "d3f000000000000001"},
      {digest, HashForm::kBytes, WideHashes::kMinimal,
       "c420f0000000000000010000000000000000000000000000000000000000000000ff"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.hex);
    CHECK(HashHex(c.hash, c.form, c.wide) == c.hex);
  }
}

TEST_CASE("a parent takes the form of the hashes") {
  const BlockHash hashes[] = {H(1)};
  BlockStored stored;
  stored.block_hashes = hashes;
  stored.parent_block_hash = H(2);
  Switches switches;
  switches.event_format = EventFormat::kArray;
  switches.wide_hashes = WideHashes::kAlways;
  CHECK(EventHex(OneStored(stored), switches).substr(26, 38) ==
        "91"
        "cf0000000000000001"
        "cf0000000000000002");
  switches.hash_form = HashForm::kBytes;
  CHECK(EventHex(OneStored(stored), switches).substr(26, 42) ==
        "91"
        "c4080000000000000001"
        "c4080000000000000002");
}

TEST_CASE("array events end where the tail switch says") {
  const BlockHash hashes[] = {H(1)};
  BlockStored stored;
  stored.block_hashes = hashes;
  stored.group_idx = 3;
  stored.kv_cache_spec_kind = "mamba";
  stored.locality = "LOCAL";
  stored.ownership = "pool";
  stored.session_id = "s";
  Switches switches;
  switches.event_format = EventFormat::kArray;
  CHECK(EventHex(OneStored(stored), switches) == "9cab426c6f636b53746f7265649101c09000c0c0c0c003a56d616d6261c0");
  CHECK(EventHex(OneRemoved(H(1)), switches) == "94ac426c6f636b52656d6f7665649101a347505501");
  switches.array_tail = ArrayTail::kLegacy;
  CHECK(EventHex(OneStored(stored), switches) == "99ab426c6f636b53746f7265649101c09000c0c0c0c0");
  CHECK(EventHex(OneRemoved(H(1)), switches) == "93ac426c6f636b52656d6f7665649101a3475055");
}

TEST_CASE("L1: token_ids of omit leaves an empty list where the tokens are, in either form") {
  const BlockHash hashes[] = {H(1)};
  const TokenId tokens[] = {7, 70000};
  BlockStored stored;
  stored.block_hashes = hashes;
  stored.token_ids = tokens;
  stored.block_size = 2;
  BlockStored bare = stored;
  bare.token_ids = {};
  Switches full;
  Switches omit;
  omit.token_ids = TokenIds::kOmit;
  for (const EventFormat format : {EventFormat::kMap, EventFormat::kArray}) {
    full.event_format = omit.event_format = format;
    CHECK(EventHex(OneStored(stored), omit) == EventHex(OneStored(bare), full));
    CHECK(EventHex(OneStored(stored), omit) != EventHex(OneStored(stored), full));
  }
}

TEST_CASE("media are renamed, others pass") {
  Switches switches;
  switches.event_format = EventFormat::kArray;
  switches.array_tail = ArrayTail::kLegacy;
  switches.medium_gpu = "device";
  switches.medium_cpu = "CPU_PINNED";
  switches.medium_disk = "ssd";
  switches.medium_storage = std::string(300, 'd');
  const BlockHash hashes[] = {H(1)};
  const auto written = [&](std::string_view medium) {
    BlockRemoved removed;
    removed.block_hashes = hashes;
    removed.medium = medium;
    KVEventBatch batch;
    batch.Add(removed);
    const auto decoded = DecodeBatch(Encode(batch, switches));
    REQUIRE(decoded);
    return std::string(*std::get<BlockRemoved>(decoded->batch.at(0)).medium);
  };
  CHECK(written("GPU") == "device");
  CHECK(written("CPU") == "CPU_PINNED");
  CHECK(written("DISK") == "ssd");
  CHECK(written("STORAGE") == std::string(300, 'd'));
  CHECK(written("gpu") == "gpu");
  CHECK(written("") == "");
}

TEST_CASE("the rank is nil only while it is unset") {
  KVEventBatch batch;
  CHECK(ToHex(Encode(batch)) == "93cb000000000000000090c0");
  batch.data_parallel_rank = 0;
  CHECK(ToHex(Encode(batch)) == "93cb00000000000000009000");
  batch.data_parallel_rank = 300;
  CHECK(ToHex(Encode(batch)) == "93cb000000000000000090cd012c");
}

TEST_CASE("heads widen at 16 and 65536 elements and at 32, 256 and 65536 bytes") {
  for (const std::size_t count : {15u, 16u, 65535u, 65536u}) {
    const std::vector<TokenId> tokens(count, 1);
    BlockStored stored;
    stored.token_ids = tokens;
    stored.block_size = 1;
    Switches switches;
    switches.event_format = EventFormat::kArray;
    const std::string head = EventHex(OneStored(stored), switches).substr(30, 10);
    if (count == 15) CHECK(head.substr(0, 2) == "9f");
    if (count == 16) CHECK(head.substr(0, 6) == "dc0010");
    if (count == 65535) CHECK(head.substr(0, 6) == "dcffff");
    if (count == 65536) CHECK(head == "dd00010000");
  }
  for (const std::size_t size : {31u, 32u, 255u, 256u, 65535u, 65536u}) {
    const std::string name(size, 'n');
    BlockStored stored;
    stored.lora_name = name;
    Switches switches;
    switches.event_format = EventFormat::kArray;
    switches.array_tail = ArrayTail::kLegacy;
    const std::string head = EventHex(OneStored(stored), switches).substr(38, 10);
    if (size == 31) CHECK(head.substr(0, 2) == "bf");
    if (size == 32) CHECK(head.substr(0, 4) == "d920");
    if (size == 255) CHECK(head.substr(0, 4) == "d9ff");
    if (size == 256) CHECK(head.substr(0, 6) == "da0100");
    if (size == 65535) CHECK(head.substr(0, 6) == "daffff");
    if (size == 65536) CHECK(head == "db00010000");
  }
}

TEST_CASE("tokens take the shortest width") {
  const TokenId tokens[] = {0, 127, 128, 255, 256, 65535, 65536, 0x7fffffff, 0xffffffff};
  BlockStored stored;
  stored.token_ids = tokens;
  Switches switches;
  switches.event_format = EventFormat::kArray;
  CHECK(EventHex(OneStored(stored), switches).substr(28, 58) ==
        "c0"
        "99"
        "00"
        "7f"
        "cc80"
        "ccff"
        "cd0100"
        "cdffff"
        "ce00010000"
        "ce7fffffff"
        "ceffffffff");
}

TEST_CASE("extra keys are nil, or an array of texts, pairs, bytes and raw values") {
  const BlockHash hashes[] = {H(1), H(2)};
  const std::vector<ExtraKeys> extra_keys = {{std::string("ad"), MultimodalKey{"mmhash", 2}, MultimodalKey{"m", -3},
                                              std::string("salt"), Bytes{1, 2}, OpaqueKey{"\x05"}},
                                             {}};
  BlockStored stored;
  stored.block_hashes = hashes;
  stored.extra_keys = {false, extra_keys};
  Switches switches;
  switches.event_format = EventFormat::kArray;
  switches.array_tail = ArrayTail::kLegacy;
  const std::string listed = EventHex(OneStored(stored), switches);
  CHECK(listed.substr(44) ==
        "92"
        "96"
        "a26164"
        "92a66d6d6861736802"
        "92a16dfd"
        "a473616c74"
        "c4020102"
        "05"
        "c0");
  stored.extra_keys.per_block = {};
  CHECK(EventHex(OneStored(stored), switches).substr(44) == "92c0c0");
  stored.extra_keys.absent = true;
  CHECK(EventHex(OneStored(stored), switches).substr(44) == "c0");
}

TEST_CASE("encoding appends to what the buffer holds") {
  KVEventBatch batch;
  batch.Add(AllBlocksCleared{});
  Bytes buffer = {1, 2, 3};
  const BatchEncoder encoder{Switches{}};
  encoder.Encode(batch, &buffer);
  encoder.Encode(batch, &buffer);
  const std::string once = ToHex(Encode(batch));
  CHECK(ToHex(buffer) == "010203" + once + once);
}

}  // namespace kvwire
