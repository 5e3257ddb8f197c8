// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace kvwire {

// A count that one thread writes and others read. Cheaper than an atomic addition: only the writer changes it.
// Threads: Add and Set by one thread; value by any. What the writer did before a change is visible to who reads it.
class Counter {
 public:
  void Add(std::uint64_t amount) noexcept { Set(value_.load(std::memory_order_relaxed) + amount); }
  void Set(std::uint64_t value) noexcept { value_.store(value, std::memory_order_release); }
  std::uint64_t value() const noexcept { return value_.load(std::memory_order_acquire); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

}  // namespace kvwire
