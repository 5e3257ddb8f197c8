// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/event_log.h"

#include <algorithm>
#include <utility>

#include "kv_events/subscribe/payload_view.h"

namespace kvwire::engine {

void EventLog::Record(std::uint64_t batch_number, const KVEventBatch& batch) {
  std::vector<Line> lines;
  for (std::size_t i = 0; i < std::min(batch.size(), kLines); ++i) {
    lines.push_back({0, batch_number, batch.ts, DescribeEvent(batch.at(i))});
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Line& line : lines) {
    line.id = ++last_id_;
    lines_.push_back(std::move(line));
  }
  while (lines_.size() > kLines) lines_.pop_front();
}

std::vector<EventLog::Line> EventLog::Since(std::uint64_t id) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto first = std::find_if(lines_.begin(), lines_.end(), [id](const Line& line) { return line.id > id; });
  return {first, lines_.end()};
}

}  // namespace kvwire::engine
