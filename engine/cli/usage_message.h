// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace kvwire::engine {

// What a command line that cannot be parsed is answered with: what is wrong with it, by name, and what is known. For
// CLI::App::failure_message of the app that has the commands.
std::string UsageMessage(const CLI::App* app, const CLI::Error& error);

}  // namespace kvwire::engine
