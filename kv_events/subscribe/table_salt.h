// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kv_events/digest.h"

namespace kvwire {

// Where a block goes in a table of strangers' hashes. Hashes that fall on one place cannot be chosen without the salt,
// and nothing that leaves the process depends on it. A value.
struct TableSalt {
  std::uint64_t before = 0;
  std::uint64_t between = 0;

  // Random, the same for the whole life of the process.
  static const TableSalt& OfProcess();

  std::uint64_t Mix(std::uint32_t part, std::uint64_t low64) const noexcept {
    const std::uint64_t mixed = StateDigest::Mix(low64 ^ before) + part * 0x9e3779b97f4a7c15u;
    return StateDigest::Mix(mixed ^ between);
  }
};

}  // namespace kvwire
