// SPDX-License-Identifier: Apache-2.0
#include "tests/support/thread_calls.h"

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kvwire::test {
namespace {

using Numbers = ThreadCalls::ByNumber;

// On a thread of its own, for a trap stays there.
template <class Body>
void OnTrappedThread(SystemCallTrap trap, Body body) {
  std::thread([&] {
    const Status trapped = TrapSystemCalls(trap);
    CHECK_MESSAGE(trapped.has_value(), trapped.error().message);
    if (trapped) body();
  }).join();
}

void CheckCounts(SystemCallTrap trap) {
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  REQUIRE(null >= 0);
  OnTrappedThread(trap, [&] {
    long wrong = 0;
    ThreadCalls calls;
    ThreadCalls nothing;
    {
      CallCounter counter;
      if (write(null, "abc", 3) != 3) ++wrong;
      if (write(-1, "abc", 3) != -1) ++wrong;
      if (getppid() <= 0) ++wrong;
      calls = counter.Stop();
    }
    write(null, "abc", 3);
    {
      CallCounter counter;
      nothing = counter.Stop();
    }
    CHECK(wrong == 0);
    CHECK(calls.system_calls == Numbers{{SYS_write, 2}, {SYS_getppid, 1}});
    CHECK(calls.allocator_calls.empty());
    CHECK(nothing.system_calls.empty());
  });
  close(null);
}

TEST_CASE("Step path: the counter sees each system call of its thread, by either trap" * doctest::skip(!kCountsCalls)) {
  SUBCASE("whichever there is") { CheckCounts(SystemCallTrap::kAny); }
  SUBCASE("dispatch") { CheckCounts(SystemCallTrap::kDispatch); }
  SUBCASE("seccomp") { CheckCounts(SystemCallTrap::kSeccomp); }
}

TEST_CASE("Step path: system calls within new are the allocator's" * doctest::skip(!kCountsCalls)) {
  OnTrappedThread(SystemCallTrap::kAny, [] {
    CallCounter counter;
    auto large = std::make_unique<char[]>(std::size_t{256} << 20);  // mapped by itself
    large.reset();
    const ThreadCalls calls = counter.Stop();
    CHECK(calls.system_calls.empty());
    CHECK(calls.allocator_calls == Numbers{{SYS_mmap, 1}, {SYS_munmap, 1}});
    CHECK(calls.allocations == 1);
  });
}

TEST_CASE("Step path: the counter sees locks and allocations of its own thread, and of no other") {
  std::mutex mutex;
  std::shared_mutex shared;
  CallCounter counter;
  { const std::lock_guard<std::mutex> lock(mutex); }
  if (mutex.try_lock()) mutex.unlock();
  { const std::shared_lock<std::shared_mutex> lock(shared); }
  { const std::lock_guard<std::shared_mutex> lock(shared); }
  delete new std::string(100, 'x');
  const ThreadCalls calls = counter.Stop();
  CHECK(calls.locks == (kCountsCalls ? 4 : 0));
  CHECK(calls.allocations == 2);

  std::thread other;
  std::uint64_t at_other = 0;
  {
    CallCounter here;
    other = std::thread([&] {
      CallCounter there;
      { const std::lock_guard<std::mutex> lock(mutex); }
      at_other = there.Stop().locks;
    });
    other.join();
    CHECK(here.Stop().locks == 0);
  }
  CHECK(at_other == (kCountsCalls ? 1 : 0));
}

}  // namespace
}  // namespace kvwire::test
