// SPDX-License-Identifier: Apache-2.0
#include "tests/support/allocation_counter.h"

#include <atomic>
#include <cstdlib>
#include <new>

#include <malloc.h>

namespace {

std::atomic<std::size_t> count{0};
std::atomic<std::size_t> live{0};
std::atomic<std::size_t> peak{0};

thread_local std::size_t count_of_thread = 0;
thread_local bool allocating = false;

class Allocating {
 public:
  Allocating() noexcept { allocating = true; }
  ~Allocating() { allocating = false; }
  Allocating(const Allocating&) = delete;
  Allocating& operator=(const Allocating&) = delete;
};

}  // namespace

void* operator new(std::size_t size) {
  const Allocating here;
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  ++count;
  ++count_of_thread;
  const std::size_t now = live += malloc_usable_size(memory);
  for (std::size_t most = peak; now > most && !peak.compare_exchange_weak(most, now);) {
  }
  return memory;
}

// A sanitizer brings a form of its own, whose memory the operator delete below must not free.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return ::operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void operator delete(void* memory) noexcept {
  if (memory == nullptr) return;
  const Allocating here;
  live -= malloc_usable_size(memory);
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }

namespace kvwire::test {

std::size_t AllocationCount() noexcept { return count; }
std::size_t LiveBytes() noexcept { return live; }
std::size_t PeakBytes() noexcept { return peak; }
std::size_t AllocationCountOfThread() noexcept { return count_of_thread; }
bool IsAllocating() noexcept { return allocating; }
void ResetPeak() noexcept { peak = live.load(); }

}  // namespace kvwire::test
