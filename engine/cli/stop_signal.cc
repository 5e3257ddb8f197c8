// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/stop_signal.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>

#include <poll.h>
#include <sys/eventfd.h>

namespace kvwire::engine {

namespace {

std::atomic<bool> stop_requested{false};
// Readable for ever once a stop was asked for; -1: not installed, or no descriptor left.
std::atomic<int> stop_event{-1};
std::atomic<std::int64_t> stop_time{0};  // when, in nanoseconds of the monotonic clock
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
              std::atomic<std::int64_t>::is_always_lock_free);

constexpr std::array kStopSignals = {SIGINT, SIGTERM};

// Who stops a process and its group sends two at once and means one.
constexpr std::int64_t kOneRequest = 500'000'000;

std::int64_t MonotonicNow() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

extern "C" void OnStopSignal(int signal) {
  const int saved = errno;
  if (std::int64_t none = 0; stop_time.compare_exchange_strong(none, MonotonicNow())) {
    stop_requested.store(true);
    if (const int event = stop_event.load(); event >= 0) eventfd_write(event, 1);
  } else if (MonotonicNow() - stop_time.load() > kOneRequest) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  errno = saved;
}

}  // namespace

void InstallStopSignals() {
  if (stop_event.load() < 0) stop_event.store(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  // Without SA_RESTART: a call that waits, such as opening a pipe that nobody writes to, ends with the signal.
  struct sigaction action {};
  action.sa_handler = OnStopSignal;
  for (const int each : kStopSignals) sigaction(each, &action, nullptr);
}

bool StopRequested() noexcept { return stop_requested.load(std::memory_order_relaxed); }

int StopDescriptor() noexcept { return stop_event.load(); }

void SleepUnlessStopped(std::chrono::nanoseconds time) noexcept {
  using Clock = std::chrono::steady_clock;
  // Without the event a stop is seen between two slices.
  constexpr std::chrono::nanoseconds kSlice = std::chrono::milliseconds(50);
  const Clock::time_point start = Clock::now();
  while (!StopRequested()) {
    // The end is never computed: it may lie beyond the clock.
    std::chrono::nanoseconds left = time - (Clock::now() - start);
    if (left.count() <= 0) return;
    pollfd event{stop_event.load(), POLLIN, 0};
    if (event.fd < 0) left = std::min(left, kSlice);
    const timespec limit{static_cast<std::time_t>(left.count() / 1'000'000'000),
                         static_cast<long>(left.count() % 1'000'000'000)};
    ppoll(&event, 1, &limit, nullptr);
  }
}

}  // namespace kvwire::engine
