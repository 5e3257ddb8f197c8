// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <exception>

#include <CLI/CLI.hpp>

#include "engine/cli/commands.h"
#include "engine/cli/output.h"
#include "engine/cli/serve_options.h"
#include "engine/cli/stop_signal.h"
#include "engine/cli/usage_message.h"

namespace {

constexpr int kExitFailed = 1;
constexpr int kExitInternal = 70;

int Run(int argc, char** argv) {
  CLI::App app("KV-cache events of an LLM engine: run, watch, record and play their stream.", "kvwire");
  app.set_version_flag("--version", KVWIRE_VERSION);
  app.require_subcommand(1);
  app.failure_message(kvwire::engine::UsageMessage);
  int exit_code = 0;
  kvwire::engine::AddServeCommand(app, &exit_code);
  kvwire::engine::AddReplayTraceCommand(app, &exit_code);
  kvwire::engine::AddTapCommand(app, &exit_code);
  kvwire::engine::AddPlayCommand(app, &exit_code);
  kvwire::engine::AddTopCommand(app, &exit_code);
  kvwire::engine::AddDoctorCommand(app, &exit_code);
  try {
    app.parse(kvwire::engine::CommandLine(argc, argv));
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  kvwire::engine::KeepStandardStreams();
  kvwire::engine::InstallStopSignals();
  // A file that may not grow any further is an error of its own.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const int exit_code = Run(argc, argv);
    const kvwire::Status written = kvwire::engine::FlushStdout();
    if (written || exit_code != 0) return exit_code;
    kvwire::engine::PrintError("", written.error().message);
    return kExitFailed;
  } catch (const std::exception& error) {
    kvwire::engine::PrintError("", error.what());
    return kExitInternal;
  }
}
