// SPDX-License-Identifier: Apache-2.0
// Fields that producers leave out, spell differently or overload.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/subscribe/held_blocks.h"
#include "kv_events/wire/decoder.h"
#include "kv_events/wire/encoder.h"

namespace kvwire::test {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Medium = std::optional<std::string_view>;

constexpr TokenId kTokens[] = {1, 2, 3, 4};

DecodedBatch OverTheWire(const KVEventBatch& batch, EventFormat format) {
  KVEventsConfig::Extensions switches;
  switches.event_format = format;
  Bytes payload;
  BatchEncoder(switches).Encode(batch, &payload);
  auto decoded = DecodeBatch(payload);
  REQUIRE(decoded.has_value());
  CHECK(decoded->rejected_total == 0);
  return *std::move(decoded);
}

BlockStored StoredOf(const BlockHash* hash) {
  BlockStored stored;
  stored.block_hashes = {hash, 1};
  stored.token_ids = kTokens;
  stored.block_size = 4;
  return stored;
}

TEST_CASE("E6: an event of which only the first release's fields are set is whole: what came later is nil or absent") {
  const BlockHash hash = BlockHash::FromUint64(7);
  KVEventBatch batch;
  batch.Add(StoredOf(&hash));
  for (const EventFormat format : {EventFormat::kMap, EventFormat::kArray}) {
    const DecodedBatch decoded = OverTheWire(batch, format);
    const BlockStored stored = std::get<BlockStored>(decoded.batch.at(0));
    CHECK(stored.block_hashes[0] == hash);
    CHECK_FALSE(stored.lora_id);
    CHECK_FALSE(stored.lora_name);
    CHECK_FALSE(stored.medium);
    CHECK(stored.extra_keys.per_block.empty());
    CHECK_FALSE(stored.group_idx);
    CHECK_FALSE(stored.ownership);
  }
}

TEST_CASE(
    "E7: an adapter's name, an image and a salt among the extra keys are told apart, with an adapter's name or "
    "without") {
  const ExtraKeys cases[] = {
      {},
      {std::string("adapter")},
      {MultimodalKey{"image", -3}},
      {std::string("salt")},
      {std::string("adapter"), MultimodalKey{"image", 2}, std::string("salt")},
      {Bytes{1, 2, 3}},
  };
  const BlockHash hash = BlockHash::FromUint64(7);
  for (const ExtraKeys& keys : cases) {
    for (const bool with_adapter : {true, false}) {
      for (const EventFormat format : {EventFormat::kMap, EventFormat::kArray}) {
        CAPTURE(keys.size());
        CAPTURE(with_adapter);
        BlockStored stored = StoredOf(&hash);
        stored.extra_keys = {false, {&keys, 1}};
        if (with_adapter) stored.lora_name = "adapter";
        KVEventBatch batch;
        batch.Add(stored);
        const DecodedBatch decoded = OverTheWire(batch, format);
        const BlockStored read = std::get<BlockStored>(decoded.batch.at(0));
        CHECK(read.lora_name.has_value() == with_adapter);
        // A list of nothing but nils comes back as one.
        if (!keys.empty()) {
          REQUIRE(read.extra_keys.per_block.size() == 1);
          CHECK(read.extra_keys.per_block[0] == keys);
        }
      }
    }
  }
}

TEST_CASE("E9: the device's medium in any case, nil or absent is one tier, and an unknown one is another") {
  const BlockHash hash = BlockHash::FromUint64(7);
  for (const EventFormat format : {EventFormat::kMap, EventFormat::kArray}) {
    HeldBlocks held;
    const auto apply = [&](auto event) {
      KVEventBatch batch;
      batch.Add(event);
      return held.Apply(OverTheWire(batch, format).batch);
    };
    for (const Medium medium : {Medium("GPU"), Medium("gpu"), Medium("Gpu"), Medium()}) {
      BlockStored stored = StoredOf(&hash);
      stored.medium = medium;
      apply(stored);
      CHECK(held.size() == 1);
    }
    BlockStored elsewhere = StoredOf(&hash);
    elsewhere.medium = "tape";
    apply(elsewhere);
    CHECK(held.size() == 2);
    BlockRemoved removed;
    removed.block_hashes = {&hash, 1};
    for (int i = 0; i < 4; ++i) {
      removed.medium = i % 2 == 0 ? "gPu" : "GPU";
      CHECK(apply(removed) == 0);
    }
    CHECK(held.size() == 1);
    CHECK(held.digest().ToString().starts_with("0/TAPE 1:"));
  }
}

}  // namespace
}  // namespace kvwire::test
