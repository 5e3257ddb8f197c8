// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <unistd.h>

namespace kvwire::test {

// A loopback address of this process: no other test takes its ports when they are released.
inline std::string OwnLoopback() {
  const int id = getpid();
  return "127." + std::to_string(1 + id / 65536 % 200) + "." + std::to_string(id / 256 % 256) + "." +
         std::to_string(id % 256);
}

}  // namespace kvwire::test
