// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/fault_effect.h"

#include <cstddef>

#include <fmt/format.h>

namespace kvwire::engine {

std::optional<std::string> WhyWithoutEffect(const FaultScript& script, const KVEventsConfig& events) {
  if (events.EffectivePublisher() != PublisherKind::kNull) return std::nullopt;
  for (std::size_t i = 0; i < script.faults.size(); ++i) {
    const FaultKind kind = script.faults[i].kind;
    if (events.enable_kv_cache_events && PlaceOf(kind) == FaultPlace::kEngine) continue;
    return fmt::format("faults[{}].kind: \"{}\" can have no effect: {}", i, ToString(kind),
                       events.enable_kv_cache_events
                           ? "the publisher is \"null\", so nothing is sent; allowed: \"evict\", \"preempt\", "
                             "\"reset\" or \"restart\""
                           : "KV-cache events are off, so no batch has a number; allowed: no faults in a script; those "
                             "that happen now need no number");
  }
  return std::nullopt;
}

}  // namespace kvwire::engine
