// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "kv_events/error.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KVWIRE_COUNTS_CALLS 0
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define KVWIRE_COUNTS_CALLS 0
#endif
#ifndef KVWIRE_COUNTS_CALLS
#define KVWIRE_COUNTS_CALLS 1
#endif

namespace kvwire::test {

// Whether locks and system calls are counted. Not under the address and thread sanitizers: they intercept the locks
// themselves, hold back signals and make system calls of their own.
inline constexpr bool kCountsCalls = KVWIRE_COUNTS_CALLS != 0;

// What a thread did.
struct ThreadCalls {
  using ByNumber = std::map<long, std::uint64_t>;  // how often

  std::uint64_t locks = 0;        // of mutexes and read-write locks, attempts included
  std::uint64_t allocations = 0;  // with new
  ByNumber system_calls;
  ByNumber allocator_calls;  // system calls within new and delete: the heap grew or shrank, or two threads met in it

  void Add(const ThreadCalls& more);
  // One line.
  std::string ToString() const;
};

// How system calls are noticed. Both hand them to a handler of SIGSYS, which makes them in the thread's stead.
enum class SystemCallTrap : std::uint8_t {
  kAny,       // the first of those below that the system has
  kDispatch,  // Linux 5.11, x86-64: syscall user dispatch
  // A filter that stays on the thread and those it starts: they may block no signals, so they start no threads of
  // their own. What a thread needs to end is not counted: see the list in thread_calls.cc.
  kSeccomp,
};

// From now on the system calls of the calling thread can be counted. Once a thread.
// Errors: kUnavailable names what the system refused.
Status TrapSystemCalls(SystemCallTrap trap = SystemCallTrap::kAny);

// Counts what the calling thread does during its life. Linking thread_calls.cc (with allocation_counter.cc) replaces
// the program's pthread_mutex_lock and its like.
// REQUIRES: TrapSystemCalls succeeded on the thread, or only locks and allocations matter; one counter a thread at a
//   time. Where system calls are trapped no process or thread is started under it.
class CallCounter {
 public:
  CallCounter() noexcept;
  ~CallCounter();
  CallCounter(const CallCounter&) = delete;
  CallCounter& operator=(const CallCounter&) = delete;

  // Ends the counting. Idempotent.
  ThreadCalls Stop();
};

}  // namespace kvwire::test
