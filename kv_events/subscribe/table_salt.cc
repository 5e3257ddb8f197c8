// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/table_salt.h"

#include <random>

namespace kvwire {

namespace {

std::uint64_t Random64(std::random_device* random) {
  const std::uint64_t high = (*random)();
  return high << 32 | (*random)();
}

TableSalt RandomSalt() {
  std::random_device random;
  return {Random64(&random), Random64(&random)};
}

}  // namespace

const TableSalt& TableSalt::OfProcess() {
  static const TableSalt salt = RandomSalt();
  return salt;
}

}  // namespace kvwire
