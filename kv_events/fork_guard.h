// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

namespace kvwire {

// What a forked child is told that uses an object of its parent.
inline constexpr std::string_view kForkedText = "used after fork: it belongs to the parent process; make a new one";

// Tells whether this process is another one than that which made the guard: a child by fork. What a parent's threads
// own is not to be touched there: they do not run in the child, and were anywhere when it was forked.
// Threads: any. Bounds: forked() is a load and a comparison, no system call.
class ForkGuard {
 public:
  ForkGuard() noexcept;

  bool forked() const noexcept { return made_ != generation_.load(std::memory_order_relaxed); }

  // Another number in each child of a child.
  static std::uint32_t Generation() noexcept;

 private:
  static void CountChild() noexcept;

  static std::atomic<std::uint32_t> generation_;  // forks between this process and the first one

  std::uint32_t made_;
};

// A value that a forked child does not destroy: its memory may be in the middle of a change.
template <class T>
class Unforked {
 public:
  template <class... Arguments>
  explicit Unforked(Arguments&&... arguments) : value_(std::forward<Arguments>(arguments)...) {}
  Unforked(const Unforked&) = delete;
  Unforked& operator=(const Unforked&) = delete;
  ~Unforked() {
    if (!guard_.forked()) std::destroy_at(&value_);
  }

  bool forked() const noexcept { return guard_.forked(); }

  T& operator*() noexcept { return value_; }
  const T& operator*() const noexcept { return value_; }
  T* operator->() noexcept { return &value_; }
  const T* operator->() const noexcept { return &value_; }

 private:
  const ForkGuard guard_;
  union {
    T value_;
  };
};

}  // namespace kvwire
