// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace kvwire::engine {

// Each function adds one command to `app`; when it was chosen and parsed, it runs and leaves its exit code in
// *exit_code. The commands only wire objects together.
void AddDoctorCommand(CLI::App& app, int* exit_code);
void AddKeygenCommand(CLI::App& app, int* exit_code);
void AddPlayCommand(CLI::App& app, int* exit_code);
void AddReplayTraceCommand(CLI::App& app, int* exit_code);
void AddServeCommand(CLI::App& app, int* exit_code);
void AddTapCommand(CLI::App& app, int* exit_code);
void AddTopCommand(CLI::App& app, int* exit_code);

}  // namespace kvwire::engine
