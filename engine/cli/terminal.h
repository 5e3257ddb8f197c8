// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "engine/cli/top_table.h"

namespace kvwire::engine {

// Whether the standard output is a terminal that understands cursor movements.
bool StdoutIsTerminal() noexcept;

// The whole screen of the terminal at the standard output, to show one picture after another. What was there before,
// and the cursor, come back with the end.
// Threads: one; nothing else prints to the standard output meanwhile.
class Screen {
 public:
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // Asked anew each time; 80 by 24 when the terminal does not say.
  static TableSize size() noexcept;

  void Show(const std::vector<std::string>& lines);
};

}  // namespace kvwire::engine
