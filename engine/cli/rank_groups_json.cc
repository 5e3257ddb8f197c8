// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/rank_groups_json.h"

namespace kvwire::engine {

Json RankGroupsAsJson(const std::vector<RankGroup>& groups) {
  Json list = Json::array();
  for (const RankGroup& group : groups) {
    list.push_back({{"instance", group.instance},
                    {"ranks", group.ranks},
                    {"missing", group.missing},
                    {"state", group.complete() ? "complete" : "incomplete"}});
  }
  return list;
}

}  // namespace kvwire::engine
