// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <CLI/CLI.hpp>

#include "kv_events/transport/curve_keys.h"

namespace kvwire::engine {

// --curve-server-key and --curve-key: how a publisher is connected to that is closed with CURVE. *client, which
// outlives the parsing, stays null where neither is given. A file that cannot be used is an error of the command line.
void AddCurveOption(CLI::App& command, std::shared_ptr<const CurveClient>* client);

}  // namespace kvwire::engine
