// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>

namespace kvwire {

// Identity of one KV-cache block: 1 to 32 bytes, held inline. An engine whose identities are 64-bit integers uses
// FromUint64; the integer form on the wire of a longer hash is its last 8 bytes. Default-constructed: no hash.
// Threads: a value.
class BlockHash {
 public:
  static constexpr std::size_t kMaxSize = 32;

  BlockHash() = default;

  // The 8 bytes of `value`, big-endian.
  static BlockHash FromUint64(std::uint64_t value) noexcept {
    BlockHash hash;
    hash.size_ = 8;
    for (int i = 7; i >= 0; --i, value >>= 8) {
      hash.bytes_[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(value);
    }
    return hash;
  }

  // Nothing unless 1 <= bytes.size() <= kMaxSize.
  static std::optional<BlockHash> FromBytes(std::span<const std::uint8_t> bytes) noexcept {
    if (bytes.empty() || bytes.size() > kMaxSize) return std::nullopt;
    BlockHash hash;
    hash.size_ = static_cast<std::uint8_t>(bytes.size());
    std::memcpy(hash.bytes_.data(), bytes.data(), bytes.size());
    return hash;
  }

  bool empty() const noexcept { return size_ == 0; }
  std::size_t size() const noexcept { return size_; }
  std::span<const std::uint8_t> bytes() const noexcept { return {bytes_.data(), size_}; }

  // The last 8 bytes read big-endian; a shorter hash is padded with zeros on the left. Zero if empty.
  // Source: vLLM's integer form (VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=1).
  std::uint64_t Low64() const noexcept {
    std::uint64_t value = 0;
    if (size_ < sizeof value) {
      for (std::size_t i = 0; i < size_; ++i) value = value << 8 | bytes_[i];
      return value;
    }
    std::memcpy(&value, bytes_.data() + size_ - sizeof value, sizeof value);
    return std::endian::native == std::endian::little ? __builtin_bswap64(value) : value;
  }

  // Lower-case hexadecimal, two digits a byte.
  std::string ToHex() const;

  friend bool operator==(const BlockHash& a, const BlockHash& b) noexcept {
    return a.size_ == b.size_ && std::memcmp(a.bytes_.data(), b.bytes_.data(), a.size_) == 0;
  }
  friend std::strong_ordering operator<=>(const BlockHash& a, const BlockHash& b) noexcept;

 private:
  std::array<std::uint8_t, kMaxSize> bytes_{};
  std::uint8_t size_ = 0;
};
static_assert(sizeof(BlockHash) == 33);

}  // namespace kvwire

template <>
struct std::hash<kvwire::BlockHash> {
  std::size_t operator()(const kvwire::BlockHash& block) const noexcept {
    // The low bits of a cryptographic digest are already spread; a 64-bit identity is mixed once.
    std::uint64_t x = block.Low64();
    x = (x ^ (x >> 32)) * 0x9e3779b97f4a7c15u;
    return static_cast<std::size_t>(x ^ (x >> 29));
  }
};
