// SPDX-License-Identifier: Apache-2.0
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <msgpack.hpp>

#include "wire_test_support.h"

namespace kvwire {

namespace {

using Switches = KVEventsConfig::Extensions;

std::vector<Switches> AllSwitches() {
  std::vector<Switches> all;
  for (const EventFormat format : {EventFormat::kMap, EventFormat::kArray}) {
    for (const ArrayTail tail : {ArrayTail::kFull, ArrayTail::kLegacy}) {
      for (const HashForm form : {HashForm::kUint64, HashForm::kInt64, HashForm::kBytes, HashForm::kFirstInt64}) {
        for (const WideHashes wide : {WideHashes::kMinimal, WideHashes::kAlways}) {
          Switches switches;
          switches.event_format = format;
          switches.array_tail = tail;
          switches.hash_form = form;
          switches.wide_hashes = wide;
          all.push_back(switches);
        }
      }
    }
  }
  return all;
}

BlockHash AsWritten(const BlockHash& hash, const Switches& switches) {
  switch (switches.hash_form) {
    case HashForm::kUint64:
    case HashForm::kInt64:
      return H(hash.Low64());
    case HashForm::kFirstInt64:
      return H(BlockHash::FromBytes(hash.bytes().first(std::min<std::size_t>(8, hash.size())))->Low64());
    case HashForm::kBytes:
      break;
  }
  return hash;
}

// What is left of a batch after a trip over the wire.
KVEventBatch AsWritten(const KVEventBatch& batch, const Switches& switches) {
  KVEventBatch written;
  written.ts = batch.ts;
  written.data_parallel_rank = batch.data_parallel_rank;
  const bool map = switches.event_format == EventFormat::kMap;
  const bool full = map || switches.array_tail == ArrayTail::kFull;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    KVEventBatch::Event event = batch.at(i);
    std::vector<BlockHash> hashes;
    if (auto* stored = std::get_if<BlockStored>(&event)) {
      for (const BlockHash& hash : stored->block_hashes) hashes.push_back(AsWritten(hash, switches));
      stored->block_hashes = hashes;
      if (stored->parent_block_hash) stored->parent_block_hash = AsWritten(*stored->parent_block_hash, switches);
      if (!full) {
        stored->group_idx.reset();
        stored->kv_cache_spec_kind.reset();
        stored->kv_cache_spec_sliding_window.reset();
      }
      if (!map) {
        stored->locality.reset();
        stored->ownership.reset();
        stored->session_id.reset();
      }
      written.Add(*stored);
    } else if (auto* removed = std::get_if<BlockRemoved>(&event)) {
      for (const BlockHash& hash : removed->block_hashes) hashes.push_back(AsWritten(hash, switches));
      removed->block_hashes = hashes;
      if (!full) removed->group_idx.reset();
      if (!map) {
        removed->locality.reset();
        removed->ownership.reset();
      }
      written.Add(*removed);
    } else {
      written.Add(AllBlocksCleared{});
    }
  }
  return written;
}

std::size_t CountOf(const msgpack::object& event) {
  return event.type == msgpack::type::MAP ? event.via.map.size : event.via.array.size;
}

std::string TagOf(const msgpack::object& event) {
  if (event.type == msgpack::type::ARRAY) return event.via.array.ptr[0].as<std::string>();
  REQUIRE(event.via.map.ptr[0].key.as<std::string>() == "type");
  return event.via.map.ptr[0].val.as<std::string>();
}

// Reads the payload with another library and checks the structure around the values.
void CheckStructure(const Bytes& payload, const KVEventBatch& batch, const Switches& switches) {
  std::size_t offset = 0;
  const msgpack::object_handle handle =
      msgpack::unpack(reinterpret_cast<const char*>(payload.data()), payload.size(), offset);
  REQUIRE(offset == payload.size());
  const msgpack::object& root = handle.get();
  REQUIRE(root.type == msgpack::type::ARRAY);
  REQUIRE(root.via.array.size == 3);
  REQUIRE(root.via.array.ptr[0].type == msgpack::type::FLOAT64);
  CHECK(root.via.array.ptr[0].via.f64 == batch.ts);
  CHECK(root.via.array.ptr[2].type ==
        (batch.data_parallel_rank ? msgpack::type::POSITIVE_INTEGER : msgpack::type::NIL));
  const msgpack::object_array& events = root.via.array.ptr[1].via.array;
  REQUIRE(events.size == batch.size());
  const bool map = switches.event_format == EventFormat::kMap;
  const bool full = switches.array_tail == ArrayTail::kFull;
  for (std::uint32_t i = 0; i < events.size; ++i) {
    const KVEventBatch::Event event = batch.at(i);
    REQUIRE(events.ptr[i].type == (map ? msgpack::type::MAP : msgpack::type::ARRAY));
    if (const auto* stored = std::get_if<BlockStored>(&event)) {
      CHECK(TagOf(events.ptr[i]) == "BlockStored");
      if (!map) CHECK(CountOf(events.ptr[i]) == (full ? 12 : 9));
      const msgpack::object& tokens = map ? events.ptr[i].via.map.ptr[3].val : events.ptr[i].via.array.ptr[3];
      REQUIRE(tokens.type == msgpack::type::ARRAY);
      REQUIRE(tokens.via.array.size == stored->token_ids.size());
      bool equal = true;
      for (std::uint32_t t = 0; t < tokens.via.array.size; ++t) {
        equal = equal && tokens.via.array.ptr[t].as<TokenId>() == stored->token_ids[t];
      }
      CHECK(equal);
    } else if (std::holds_alternative<BlockRemoved>(event)) {
      CHECK(TagOf(events.ptr[i]) == "BlockRemoved");
      if (!map) CHECK(CountOf(events.ptr[i]) == (full ? 4 : 3));
    } else {
      CHECK(TagOf(events.ptr[i]) == "AllBlocksCleared");
      CHECK(CountOf(events.ptr[i]) == 1);
    }
  }
}

}  // namespace

TEST_CASE("random batches survive the wire under every combination of switches") {
  std::mt19937_64 random(20260601);
  for (const Switches& switches : AllSwitches()) {
    for (int round = 0; round < 12; ++round) {
      const KVEventBatch batch = RandomBatch(&random);
      const Bytes payload = Encode(batch, switches);
      CheckStructure(payload, batch, switches);
      const auto decoded = DecodeBatch(payload);
      REQUIRE(decoded);
      CHECK(Rejections(*decoded) == "");
      CHECK(decoded->ignored_fields == 0);
      const bool equal = decoded->batch == AsWritten(batch, switches);
      CHECK(equal);
      // What was read is written as it was: the encoding has one form.
      const bool stable = Encode(decoded->batch, switches) == payload || switches.hash_form == HashForm::kFirstInt64;
      CHECK(stable);
    }
  }
}

}  // namespace kvwire
