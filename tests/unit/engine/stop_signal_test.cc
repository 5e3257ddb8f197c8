// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/stop_signal.h"

#include <chrono>
#include <csignal>
#include <thread>
#include <utility>

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kvwire::engine {
namespace {

// In processes of their own, before this one is stopped.
TEST_CASE("the first signal asks for an end, any later one kills") {
  for (const auto& [first, second] :
       {std::pair(SIGTERM, SIGTERM), {SIGINT, SIGINT}, {SIGTERM, SIGINT}, {SIGINT, SIGTERM}}) {
    CAPTURE(first);
    CAPTURE(second);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      alarm(30);
      InstallStopSignals();
      std::raise(first);
      if (!StopRequested()) _exit(1);
      for (;;) std::raise(second);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == second);
  }
}

TEST_CASE("two signals at once are one request") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(30);
    InstallStopSignals();
    sigset_t both;
    sigset_t before;
    sigemptyset(&both);
    sigaddset(&both, SIGINT);
    sigaddset(&both, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &both, &before);
    std::raise(SIGINT);
    std::raise(SIGTERM);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    SleepUnlessStopped(std::chrono::hours(1));
    _exit(7);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
}

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
