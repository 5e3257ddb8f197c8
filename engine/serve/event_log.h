// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "engine/unique_text.h"
#include "kv_events/batch.h"

namespace kvwire::engine {

// The latest events of a rank as lines to read, for its developer page.
// Threads: any. Bounds: kLines lines; of a batch with more events the first ones.
class EventLog {
 public:
  static constexpr std::size_t kLines = 500;

  struct Line {
    std::uint64_t id = 0;  // counts lines, from 1
    std::uint64_t batch = 0;
    double ts = 0;
    std::string text;
  };

  // Tells this log from every other, whose ids count other lines.
  const std::string& name() const noexcept { return name_; }

  void Record(std::uint64_t batch_number, const KVEventBatch& batch);

  // Lines behind `id`, oldest first.
  std::vector<Line> Since(std::uint64_t id) const;

 private:
  const std::string name_ = UniqueText();
  mutable std::mutex mutex_;
  std::deque<Line> lines_;  // guarded by mutex_, as the next one
  std::uint64_t last_id_ = 0;
};

}  // namespace kvwire::engine
