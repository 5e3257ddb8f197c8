// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace kvwire {

// Bytes that grow at their end.
// Ownership: Clear() keeps the memory, so that filling it again allocates nothing.
class ByteBuffer {
 public:
  void Clear() noexcept { size_ = 0; }
  std::size_t size() const noexcept { return size_; }
  std::uint8_t* data() noexcept { return bytes_.data(); }
  std::span<const std::uint8_t> bytes() const noexcept { return {bytes_.data(), size_}; }

  // Room for that many more bytes; returns where they go. They count once Advance() has been told.
  std::uint8_t* Reserve(std::size_t count) {
    if (bytes_.size() < size_ + count) Grow(size_ + count);
    return bytes_.data() + size_;
  }
  void Advance(std::size_t count) noexcept { size_ += count; }
  void Truncate(std::size_t size) noexcept { size_ = size; }  // REQUIRES: size <= size()

  void Append(const void* data, std::size_t count) {
    if (count == 0) return;
    std::memcpy(Reserve(count), data, count);
    size_ += count;
  }

 private:
  void Grow(std::size_t count) { bytes_.resize(std::max(count, 2 * bytes_.size())); }

  std::vector<std::uint8_t> bytes_;  // at least size_
  std::size_t size_ = 0;
};

}  // namespace kvwire
