// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "engine/serve/instance.h"
#include "engine/serve/server_counters.h"

namespace kvwire::engine {

// The figures of an instance in Prometheus' text format 0.0.4: those that vLLM has too under vLLM's names, others as
// kvwire_*; every one with the labels model_name and engine, the rank. Taken at the call. Threads: any.
std::string MetricsText(const Instance& instance, const ServerCounters& counters, std::string_view model_name);

}  // namespace kvwire::engine
