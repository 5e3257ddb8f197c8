// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "engine/cli/tap_format.h"
#include "kv_events/subscribe/rank_group.h"

namespace kvwire::engine {

// A list: instance, its ranks, the missing ones, and "complete" or "incomplete".
Json RankGroupsAsJson(const std::vector<RankGroup>& groups);

}  // namespace kvwire::engine
