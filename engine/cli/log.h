// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kv_events/log.h"

namespace kvwire::engine {

// Writes to stderr, with time and level. Any thread.
LogSink StderrLog();

}  // namespace kvwire::engine
