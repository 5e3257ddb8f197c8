// SPDX-License-Identifier: Apache-2.0
#include "kv_events/hash/extra_keys.h"

namespace kvwire {

ExtraKeys ExtraKeysOf(const BlockContent& content, std::uint32_t start, std::uint32_t end) {
  ExtraKeys keys;
  if (!content.lora_name.empty()) keys.emplace_back(content.lora_name);
  for (const MultimodalItem& item : content.items) {
    if (item.offset >= end) break;
    if (std::uint64_t{item.offset} + item.length <= start) continue;
    keys.emplace_back(MultimodalKey{item.identifier, std::int64_t{item.offset} - std::int64_t{start}});
  }
  if (start == 0 && !content.cache_salt.empty()) keys.emplace_back(content.cache_salt);
  return keys;
}

}  // namespace kvwire
