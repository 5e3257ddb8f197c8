// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace kvwire::test {

// What a test program allocates with new. Linking allocation_counter.cc replaces the program's operator new and delete.
// Threads: any.
std::size_t AllocationCount() noexcept;          // calls of new so far
std::size_t AllocationCountOfThread() noexcept;  // ... by the calling thread
bool IsAllocating() noexcept;                    // the calling thread is within new or delete
std::size_t LiveBytes() noexcept;                // allocated and not freed
std::size_t PeakBytes() noexcept;                // the most LiveBytes() was since ResetPeak()
void ResetPeak() noexcept;

}  // namespace kvwire::test
