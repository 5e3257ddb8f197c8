// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace kvwire::engine {

// --dialect. `name` holds the default, outlives the parsing, and is a dialect's name afterwards.
void AddDialectOption(CLI::App& command, std::string* name);

}  // namespace kvwire::engine
