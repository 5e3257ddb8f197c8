// SPDX-License-Identifier: Apache-2.0
#include "kv_events/fork_guard.h"

#include <pthread.h>

namespace kvwire {

std::atomic<std::uint32_t> ForkGuard::generation_{0};

ForkGuard::ForkGuard() noexcept : made_(Generation()) {}

void ForkGuard::CountChild() noexcept { generation_.fetch_add(1, std::memory_order_relaxed); }

std::uint32_t ForkGuard::Generation() noexcept {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, [] { CountChild(); });
  return generation_.load(std::memory_order_relaxed);
}

}  // namespace kvwire
