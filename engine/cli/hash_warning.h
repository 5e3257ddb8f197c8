// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "kv_events/config.h"
#include "kv_events/hash/block_hasher.h"

namespace kvwire::engine {

// Why nobody else can compute the hashes that are published, if that is so: the root is random. Nothing while events
// are off.
std::optional<std::string> WhyHashesDiffer(HashAlgorithm algorithm, const HashSeed& seed, const KVEventsConfig& events);

}  // namespace kvwire::engine
