// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "kv_events/events.h"

namespace kvwire {

// What a BlockStored says of all its blocks alike, with texts of its own; members as there.
struct BlockAttributes {
  std::uint32_t block_size = 0;
  std::optional<std::int64_t> lora_id;
  std::optional<std::string> medium;
  std::optional<std::string> lora_name;
  bool extra_keys_absent = true;
  std::optional<std::uint32_t> group_idx;
  std::optional<std::string> kv_cache_spec_kind;
  std::optional<std::uint32_t> kv_cache_spec_sliding_window;
  std::optional<std::string> locality;
  std::optional<std::string> ownership;
  std::optional<std::string> session_id;

  // Takes over the fields; keeps the memory of texts.
  void Assign(const BlockStored& stored);

  // A BlockStored without hashes, parent, tokens and keys; valid as long as this is.
  BlockStored ToStored() const;

  // A BlockRemoved without hashes; valid as long as this is.
  BlockRemoved ToRemoved() const;

  friend bool operator==(const BlockAttributes&, const BlockAttributes&) = default;
};

// The first part of a block's content in which the two differ, spelled as on the wire; empty if there is none. Not
// compared: group and medium, which say which block it is, and the session, which says who asked for it.
std::string_view DifferentField(const BlockAttributes& a, const BlockAttributes& b);

// Attributes that are held once however many blocks have them.
// Bounds: what is in use, and at most kKept more.
class AttributeTable {
  struct Hash {
    std::size_t operator()(const BlockAttributes& attributes) const noexcept;
  };
  using Map = std::unordered_map<BlockAttributes, std::uint32_t, Hash>;  // -> uses

 public:
  static constexpr std::size_t kKept = 64;

  // Stays where it is until released as often as it was acquired and shared.
  using Handle = Map::value_type*;

  Handle Acquire(const BlockStored& stored);
  static Handle Share(Handle handle) noexcept {
    ++handle->second;
    return handle;
  }
  void Release(Handle handle);

 private:
  Map map_;
  BlockAttributes scratch_;
};

}  // namespace kvwire
