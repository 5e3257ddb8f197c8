// SPDX-License-Identifier: Apache-2.0
#include "kv_events/state_dump.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "kv_events/digest.h"
#include "kv_events/escape_text.h"

namespace kvwire {

void DumpState(const StateSource& source, const std::function<void(std::string_view line)>& write) {
  struct Block {
    std::uint64_t low64 = 0;
    std::uint32_t group = 0;
    std::uint32_t medium = 0;  // its place in media
  };
  std::vector<std::string> media;  // few
  std::vector<Block> blocks;
  source.Walk([&](const ResidentBlock& block) {
    const std::string medium = CanonicalMedium(block.medium);
    auto found = std::find(media.begin(), media.end(), medium);
    if (found == media.end()) found = media.insert(found, medium);
    blocks.push_back({block.hash.Low64(), block.group, static_cast<std::uint32_t>(found - media.begin())});
  });
  std::sort(blocks.begin(), blocks.end(), [&media](const Block& a, const Block& b) {
    return std::tie(a.group, media[a.medium], a.low64) < std::tie(b.group, media[b.medium], b.low64);
  });
  std::string line;
  for (const Block& block : blocks) {
    line.clear();
    fmt::format_to(std::back_inserter(line), "{} {} {:016x}", block.group, EscapeField(media[block.medium]),
                   block.low64);
    write(line);
  }
}

}  // namespace kvwire
