// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace kvwire::engine {

// Makes SIGINT and SIGTERM ask for a clean end instead of killing the process; one that comes more than half a second
// later, of either kind, kills it.
void InstallStopSignals();

// Whether a stop was asked for. Any thread.
bool StopRequested() noexcept;

// Readable for ever once a stop was asked for; -1: there is none, and StopRequested must be asked. Any thread.
int StopDescriptor() noexcept;

// Sleeps, but returns at once when a stop was or is asked for. Any thread.
void SleepUnlessStopped(std::chrono::nanoseconds time) noexcept;

}  // namespace kvwire::engine
