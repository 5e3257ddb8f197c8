// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "engine/faults/fault_script.h"
#include "kv_events/error.h"

namespace kvwire::engine {

// The argument of --faults: a script's JSON, or the path of a file of it. Null when it is empty.
// Errors: the message begins with the flag.
Result<std::shared_ptr<const FaultScript>> ReadFaultScript(const std::string& argument);

}  // namespace kvwire::engine
