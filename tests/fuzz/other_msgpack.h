// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <msgpack.hpp>

#include "tests/fuzz/fuzz_target.h"

namespace kvwire::fuzz {

// Bytes as another msgpack library reads them, msgpack-cxx.

// What the bytes begin with, as far as it could be followed. Takes no memory for what lengths declare.
struct OtherStructure {
  bool whole = false;       // one value, which ends inside the bytes
  std::size_t end = 0;      // of that value
  std::uint32_t depth = 0;  // most arrays and maps around each other

  bool fills(std::size_t size) const { return whole && end == size; }
};

inline OtherStructure StructureOf(std::span<const std::uint8_t> bytes) {
  struct Visitor : msgpack::null_visitor {
    bool start_array(std::uint32_t /*elements*/) { return Enter(); }
    bool end_array() { return Leave(); }
    bool start_map(std::uint32_t /*pairs*/) { return Enter(); }
    bool end_map() { return Leave(); }
    bool Enter() {
      most = std::max(most, ++open);
      return true;
    }
    bool Leave() {
      --open;
      return true;
    }
    std::uint32_t open = 0;
    std::uint32_t most = 0;
  };
  OtherStructure structure;
  Visitor visitor;
  try {
    structure.whole = msgpack::parse(reinterpret_cast<const char*>(bytes.data()), bytes.size(), structure.end, visitor);
  } catch (const msgpack::unpack_error&) {
    // An ext of 2^32-1 bytes, by which its length would overflow.
  }
  structure.depth = visitor.most;
  return structure;
}

// The value that fills the bytes. Texts, bins and exts view them.
// REQUIRES: StructureOf(bytes).fills(bytes.size()), so that no declared count is above what is there.
inline msgpack::object_handle OtherValue(std::span<const std::uint8_t> bytes) {
  const auto refer = [](msgpack::type::object_type, std::size_t, void*) { return true; };
  std::size_t end = 0;
  msgpack::object_handle value =
      msgpack::unpack(reinterpret_cast<const char*>(bytes.data()), bytes.size(), end, +refer);
  KVWIRE_PROMISE(end == bytes.size());
  return value;
}

inline std::span<const msgpack::object> ElementsOf(const msgpack::object& array) {
  return {array.via.array.ptr, array.via.array.size};
}

inline std::span<const msgpack::object_kv> PairsOf(const msgpack::object& map) {
  return {map.via.map.ptr, map.via.map.size};
}

inline std::string_view TextOf(const msgpack::object& text) { return {text.via.str.ptr, text.via.str.size}; }

inline std::span<const std::uint8_t> BytesOf(const msgpack::object& bin) {
  return {reinterpret_cast<const std::uint8_t*>(bin.via.bin.ptr), bin.via.bin.size};
}

inline bool IsInteger(const msgpack::object& value) {
  return value.type == msgpack::type::POSITIVE_INTEGER || value.type == msgpack::type::NEGATIVE_INTEGER;
}

// The integer's 64 bits: of a negative one its two's complement.
inline std::uint64_t BitsOf(const msgpack::object& integer) {
  KVWIRE_PROMISE(IsInteger(integer));
  return integer.type == msgpack::type::POSITIVE_INTEGER ? integer.via.u64
                                                         : static_cast<std::uint64_t>(integer.via.i64);
}

// The value of the first pair with that text as its key; null if there is none.
inline const msgpack::object* Find(const msgpack::object& map, std::string_view key) {
  for (const msgpack::object_kv& pair : PairsOf(map)) {
    if (pair.key.type == msgpack::type::STR && TextOf(pair.key) == key) return &pair.val;
  }
  return nullptr;
}

}  // namespace kvwire::fuzz
