// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/stop_signal.h"

#include <chrono>
#include <csignal>
#include <thread>

#include <doctest/doctest.h>
#include <unistd.h>

namespace kvwire::engine {
namespace {

// One case: a stop cannot be taken back. A sleep that does not end is killed by the alarm.
TEST_CASE("a sleep takes its time, and a stop ends it and every later one") {
  alarm(30);
  const auto start = std::chrono::steady_clock::now();
  SleepUnlessStopped(std::chrono::milliseconds(20));
  SleepUnlessStopped(std::chrono::nanoseconds(-1));
  InstallStopSignals();
  SleepUnlessStopped(std::chrono::milliseconds(20));
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(40));
  CHECK_FALSE(StopRequested());

  // Taken by the other thread, so that no system call of this one is interrupted.
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGINT);
  std::thread other([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::raise(SIGINT);
  });
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  SleepUnlessStopped(std::chrono::nanoseconds::max());
  CHECK(StopRequested());
  other.join();
  SleepUnlessStopped(std::chrono::hours(1));
  pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
  alarm(0);
}

}  // namespace
}  // namespace kvwire::engine
