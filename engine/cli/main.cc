// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include "engine/cli/commands.h"
#include "engine/cli/output.h"
#include "engine/cli/serve_options.h"
#include "engine/cli/stop_signal.h"
#include "engine/cli/usage_message.h"

namespace {

constexpr int kExitFailed = 1;
constexpr int kExitInternal = 70;

// Does not show how a flag that turns something off does it.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    constexpr std::string_view kOff = "{false}";
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    for (std::size_t at = name.find(kOff); at != std::string::npos; at = name.find(kOff)) name.erase(at, kOff.size());
    return name;
  }
};

int Run(int argc, char** argv) {
  CLI::App app("KV-cache events of an LLM engine: run, watch, record and play their stream.", "kvwire");
  app.set_version_flag("--version", KVWIRE_VERSION);
  app.require_subcommand(1);
  app.formatter(std::make_shared<HelpFormatter>());
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
