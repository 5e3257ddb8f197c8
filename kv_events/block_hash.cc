// SPDX-License-Identifier: Apache-2.0
#include "kv_events/block_hash.h"

#include <algorithm>

namespace kvwire {

std::string BlockHash::ToHex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes().size());
  for (const std::uint8_t byte : bytes()) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

std::strong_ordering operator<=>(const BlockHash& a, const BlockHash& b) noexcept {
  const int order = std::memcmp(a.bytes_.data(), b.bytes_.data(), std::min(a.size_, b.size_));
  if (order != 0) return order <=> 0;
  return a.size_ <=> b.size_;
}

}  // namespace kvwire
