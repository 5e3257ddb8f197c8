// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/serve/routes.h"
#include "kv_events/error.h"

namespace kvwire::engine {

// The adapters of --lora-modules: NAME=PATH, or {"name": ..., "path": ..., "base_model_name": ...}, of which the last
// may be missing. Without it the parent is the first of `models`, the names that requests may give.
// Errors: kInvalidArgument names the flag, the value and what is allowed; also for a name that is taken.
Result<std::vector<LoraModule>> ParseLoraModules(std::span<const std::string> values,
                                                 std::span<const std::string> models);

}  // namespace kvwire::engine
