// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "kv_events/events.h"

namespace kvwire {

// One resident block as its owner knows it. Views are valid only during the call that hands it out.
struct ResidentBlock {
  BlockHash hash;
  std::optional<BlockHash> parent;
  std::span<const TokenId> token_ids;
  std::uint32_t group = 0;
  std::string_view medium = kMediumGpu;
};

// Whoever owns the truth about resident blocks: a block pool, a tier, a foreign engine's walk.
// Threads: called on the thread that owns the blocks.
class StateSource {
 public:
  virtual ~StateSource() = default;

  // Calls visit once for every distinct resident (hash, group, medium).
  virtual void Walk(const std::function<void(const ResidentBlock&)>& visit) const = 0;
};

}  // namespace kvwire
