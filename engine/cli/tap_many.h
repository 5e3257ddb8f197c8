// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "engine/cli/metrics_server.h"
#include "engine/cli/tap_options.h"
#include "kv_events/error.h"

namespace kvwire::engine {

// `kvwire tap` with several streams, or with streams that come and go: each line begins with its stream's name, each
// stream ends with its summary, and the worst verdict is the exit code.
int RunTapMany(const TapOptions& options);

// Serves these figures at --metrics, and prints where; null if nobody asked for it.
Result<std::unique_ptr<MetricsServer>> ServeTapMetrics(const TapOptions& options, MetricsServer::Figures figures);

}  // namespace kvwire::engine
