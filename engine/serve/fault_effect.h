// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "engine/faults/fault_script.h"
#include "kv_events/config.h"

namespace kvwire::engine {

// Why a fault of the script can never happen to an engine whose events are configured so: without events there are no
// batches whose numbers a script could name, and without a publisher there is no wire. Names the first such fault, its
// kind, and what is allowed. Nothing when all can happen.
std::optional<std::string> WhyWithoutEffect(const FaultScript& script, const KVEventsConfig& events);

}  // namespace kvwire::engine
