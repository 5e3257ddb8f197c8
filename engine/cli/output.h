// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "kv_events/error.h"

namespace kvwire::engine {

// What the commands print. Nothing here throws; of the two streams only the failures of stdout are remembered.
// Who reads the other end may be slow: printing waits for him, but not once a stop was asked for and he takes nothing
// for kPatienceWhenStopped. From then on what is printed is thrown away.
// Threads: any; each call's text stays in one piece.

// To stdout, as it is; on a terminal at once, else when enough is there or it is handed on.
void Print(std::string_view text) noexcept;

// To stderr: "kvwire COMMAND: MESSAGE" on one line, escaped. `command` may be empty.
void PrintError(std::string_view command, std::string_view message) noexcept;

// Hands what was printed to the system; what fails is for FlushStdout to say.
void HandOnStdout() noexcept;

// The same. Errors: a write that failed, now or at any time before, with its reason; a command whose output failed must
// not end with success.
Status FlushStdout();

// Fills the places of standard streams that are closed, before anything else is opened there: a file or socket must not
// get what is meant for a stream. Writing to a closed stream still fails.
void KeepStandardStreams() noexcept;

}  // namespace kvwire::engine
