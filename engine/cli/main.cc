// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <exception>

#include <CLI/CLI.hpp>

#include "engine/cli/commands.h"
#include "engine/cli/stop_signal.h"

int main(int argc, char** argv) {
  CLI::App app("KV-cache events of an LLM engine: run, watch, record and play their stream.", "kvwire");
  app.set_version_flag("--version", KVWIRE_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  kvwire::engine::InstallStopSignals();
  kvwire::engine::AddReplayTraceCommand(app, &exit_code);
  kvwire::engine::AddTapCommand(app, &exit_code);
  kvwire::engine::AddPlayCommand(app, &exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvwire: %s\n", error.what());
    return 70;
  }
  return exit_code;
}
