// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

// Of the first write to stdout that failed; 0: none did.
int first_failure = 0;

void Remember(bool done) {
  if (done || first_failure != 0) return;
  first_failure = errno != 0 ? errno : EIO;
}

}  // namespace

void Print(std::string_view text) noexcept {
  errno = 0;
  Remember(std::fwrite(text.data(), 1, text.size(), stdout) == text.size());
}

void PrintError(std::string_view command, std::string_view message) noexcept {
  const std::string line = fmt::format("kvwire{}{}: {}\n", command.empty() ? "" : " ", command, EscapeText(message));
  std::fwrite(line.data(), 1, line.size(), stderr);
}

Status FlushStdout() {
  errno = 0;
  Remember(std::fflush(stdout) == 0);
  // Also what others wrote to the stream.
  Remember(std::ferror(stdout) == 0);
  if (first_failure == 0) return {};
  return MakeError(ErrorCode::kUnavailable,
                   fmt::format("cannot write to the standard output: {}", std::strerror(first_failure)));
}

void KeepStandardStreams() noexcept {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free number is taken, which is this one. Opened the wrong way round, so that its use fails.
    open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace kvwire::engine
