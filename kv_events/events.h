// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kv_events/block_hash.h"

namespace kvwire {

// A token of the model's vocabulary; at most kMaxTokenId.
using TokenId = std::uint32_t;
inline constexpr TokenId kMaxTokenId = 0x7fffffff;

// Where a block lives, spelled as vLLM does.
inline constexpr std::string_view kMediumGpu = "GPU";
inline constexpr std::string_view kMediumCpu = "CPU";
inline constexpr std::string_view kMediumDisk = "DISK";
inline constexpr std::string_view kMediumStorage = "STORAGE";

// An image, audio or video item that overlaps a block.
struct MultimodalKey {
  std::string identifier;
  std::int64_t offset = 0;  // item start minus block start, in tokens; may be negative

  friend bool operator==(const MultimodalKey&, const MultimodalKey&) = default;
};

// A key of a form kvwire does not interpret: its msgpack bytes as received. Compared raw, never reinterpreted.
struct OpaqueKey {
  std::string msgpack;

  friend bool operator==(const OpaqueKey&, const OpaqueKey&) = default;
};

// What besides its tokens and its parent makes a block's content its own. A plain string is a LoRA name or a cache
// salt; raw bytes are the digest of prompt embeddings.
// Order: LoRA name, multimodal items by offset, cache salt (first block only), prompt embeddings.
using ExtraKey = std::variant<std::string, MultimodalKey, std::vector<std::uint8_t>, OpaqueKey>;

// The extra keys of one block; empty means none (nil on the wire).
using ExtraKeys = std::vector<ExtraKey>;

// Extra keys of an event's blocks. `absent`: the field is not on the wire at all. Otherwise one entry per block; an
// empty `per_block` with `absent == false` means that no block has any (a list of nils).
struct ExtraKeysView {
  bool absent = true;
  std::span<const ExtraKeys> per_block;
};

// Blocks that became available, in prefix order: block i's parent is block i - 1, and the first one's parent is
// parent_block_hash (nothing: it starts a prompt). token_ids holds block_size tokens per block, or is empty when the
// source does not know them.
// Ownership: a view; spans and texts belong to the caller of Add..., or to the batch that is visited.
// Source: vLLM's BlockStored; members are spelled like the wire keys.
struct BlockStored {
  std::span<const BlockHash> block_hashes;
  std::optional<BlockHash> parent_block_hash;
  std::span<const TokenId> token_ids;
  std::uint32_t block_size = 0;  // tokens per block
  std::optional<std::int64_t> lora_id;
  std::optional<std::string_view> medium;
  std::optional<std::string_view> lora_name;
  ExtraKeysView extra_keys;
  std::optional<std::uint32_t> group_idx;
  std::optional<std::string_view> kv_cache_spec_kind;
  std::optional<std::uint32_t> kv_cache_spec_sliding_window;  // tokens
  std::optional<std::string_view> locality;
  std::optional<std::string_view> ownership;
  std::optional<std::string_view> session_id;
};

// Blocks that are no longer available.
// Ownership: a view, as BlockStored.
// Source: vLLM's BlockRemoved.
struct BlockRemoved {
  std::span<const BlockHash> block_hashes;
  std::optional<std::string_view> medium;
  std::optional<std::uint32_t> group_idx;
  std::optional<std::string_view> locality;
  std::optional<std::string_view> ownership;
};

// Every block of the stream is gone.
struct AllBlocksCleared {};

}  // namespace kvwire
