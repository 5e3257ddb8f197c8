// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "engine/engine_core.h"
#include "engine/trace_replay.h"
#include "kv_events/clock.h"
#include "kv_events/event_publisher.h"

namespace kvwire::engine {

// The figures of a replay, gathered when it has ended.
struct ReplayReport {
  ReplaySummary summary;
  scheduler::SchedulerStats scheduler;
  PublisherStats publisher;
  StepTimes times;
  std::uint64_t peak_memory_bytes = 0;  // 0: unknown
};

std::string ReportAsText(const ReplayReport& report);
std::string ReportAsJson(const ReplayReport& report);

// Highest resident memory of this process so far.
std::uint64_t PeakMemoryBytes();

// Shows on stderr how far a replay is: a bar on a terminal, else a line every few seconds.
class ProgressLine {
 public:
  explicit ProgressLine(const Clock& clock);

  // Draws when it is time to.
  void Update(const ReplayProgress& progress);
  // Leaves the terminal's line.
  void Finish();

 private:
  const Clock& clock_;
  const bool terminal_;
  const MonotonicNanos start_;
  MonotonicNanos next_;
  bool drawn_ = false;
};

}  // namespace kvwire::engine
