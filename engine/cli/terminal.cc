// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/terminal.h"

#include <cstddef>
#include <cstdlib>
#include <string_view>

#include <sys/ioctl.h>
#include <unistd.h>

#include "engine/cli/output.h"

namespace kvwire::engine {

namespace {

// The other screen, and the cursor away; and back.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l";
constexpr std::string_view kLeave = "\x1b[?25h\x1b[?1049l";
constexpr std::string_view kHome = "\x1b[H";
constexpr std::string_view kRestOfLine = "\x1b[K";
constexpr std::string_view kRestOfScreen = "\x1b[J";

}  // namespace

bool StdoutIsTerminal() noexcept {
  const char* const kind = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
}

Screen::Screen() { Print(kEnter); }

Screen::~Screen() {
  Print(kLeave);
  [[maybe_unused]] const Status flushed = FlushStdout();
}

TableSize Screen::size() noexcept {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {80, 24};
  return {size.ws_col, size.ws_row};
}

void Screen::Show(const std::vector<std::string>& lines) {
  std::string picture(kHome);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) picture += "\r\n";
    picture += lines[i];
    picture += kRestOfLine;
  }
  picture += kRestOfScreen;
  Print(picture);
}

}  // namespace kvwire::engine
