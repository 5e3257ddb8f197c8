// SPDX-License-Identifier: Apache-2.0
#include "engine/unique_text.h"

#include <cstdint>
#include <random>

#include <fmt/format.h>

namespace kvwire::engine {

std::string UniqueText() {
  thread_local std::mt19937_64 random{(std::uint64_t{std::random_device{}()} << 32) | std::random_device{}()};
  return fmt::format("{:016x}{:016x}", random(), random());
}

}  // namespace kvwire::engine
