// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/stop_signal.h"

#include <atomic>
#include <csignal>

namespace kvwire::engine {

namespace {

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void OnStopSignal(int signal) {
  stop_requested.store(true, std::memory_order_relaxed);
  std::signal(signal, SIG_DFL);
}

}  // namespace

void InstallStopSignals() {
  std::signal(SIGINT, OnStopSignal);
  std::signal(SIGTERM, OnStopSignal);
}

bool StopRequested() noexcept { return stop_requested.load(std::memory_order_relaxed); }

}  // namespace kvwire::engine
