// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/cli/tap_options.h"

namespace kvwire::engine {

// `kvwire tap` with several streams, or with streams that come and go: each line begins with its stream's name, each
// stream ends with its summary, and the worst verdict is the exit code.
int RunTapMany(const TapOptions& options);

}  // namespace kvwire::engine
