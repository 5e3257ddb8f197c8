// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kvwire::engine {

// Makes SIGINT and SIGTERM ask for a clean end instead of killing the process; a second one kills it.
void InstallStopSignals();

// Whether a stop was asked for. Any thread.
bool StopRequested() noexcept;

}  // namespace kvwire::engine
