// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv_events/events.h"

namespace kvwire {

// An image, audio or video item at a place of the prompt.
struct MultimodalItem {
  std::string identifier;
  std::uint32_t offset = 0;  // first token
  std::uint32_t length = 0;  // tokens

  friend bool operator==(const MultimodalItem&, const MultimodalItem&) = default;
};

// What besides its tokens determines the content of a request's blocks.
struct BlockContent {
  std::string lora_name;              // empty: no adapter
  std::vector<MultimodalItem> items;  // by offset
  std::string cache_salt;             // empty: none

  bool empty() const noexcept { return lora_name.empty() && items.empty() && cache_salt.empty(); }
};

// The extra keys of the block that holds the tokens [start, end): the LoRA name; every item that overlaps the block,
// with its offset from the block's start; the salt if the block starts the request. Empty when there is none.
// Source: docs/protocol.md, "Block hashes".
ExtraKeys ExtraKeysOf(const BlockContent& content, std::uint32_t start, std::uint32_t end);

}  // namespace kvwire
