// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/hash_warning.h"

#include <fmt/format.h>

namespace kvwire::engine {

std::optional<std::string> WhyHashesDiffer(HashAlgorithm algorithm, const HashSeed& seed,
                                           const KVEventsConfig& events) {
  if (seed.source != HashSeedSource::kRandom || !events.enable_kv_cache_events) return std::nullopt;
  return fmt::format(
      "--prefix-caching-hash-algo {}: without PYTHONHASHSEED the root of the hashes is random: equal prompts have "
      "other hashes in every process",
      ToString(algorithm));
}

}  // namespace kvwire::engine
