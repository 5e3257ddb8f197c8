// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include "engine/engine_core.h"
#include "engine/trace.h"
#include "kv_events/clock.h"
#include "kv_events/error.h"

namespace kvwire::engine {

struct ReplayProgress {
  double share = 0;  // of the trace file, or of the limit
  std::uint64_t requests = 0;
  std::uint64_t finished = 0;
  std::uint64_t waiting = 0;
  std::uint64_t running = 0;
};

struct ReplayOptions {
  std::uint64_t limit = 0;  // requests to take from the trace; 0: all
  double speed = 0;  // trace time runs so many times faster than the clock; 0: requests come as they can be served
  // All may be empty, except `sleep` when speed is not zero; `sleep` may return early. Called on the caller's thread,
  // between steps.
  std::function<bool()> stop;
  std::function<void(const ReplayProgress&)> progress;
  std::function<void(std::uint64_t ordinal)> on_batch;  // the batch that a step published, counted from 0
  std::function<void(const TraceRequest&, const Error&)> on_refused;
  std::function<void(std::chrono::nanoseconds)> sleep;
  const Clock* clock = &SystemClock::Get();
};

struct ReplaySummary {
  std::uint64_t requests = 0;  // taken from the trace
  std::uint64_t refused = 0;   // could never have been served
  std::uint64_t finished = 0;
  bool stopped = false;  // before the end
  std::chrono::nanoseconds wall{0};
};

// Drives an engine with a trace on the calling thread until every request is finished or a stop is asked for. Request
// ids are the line numbers. Without a speed, at most max_num_seqs prompts wait in memory, and the same trace and
// configuration give the same stream; with one, as many as have come.
// Errors: kInvalidArgument for a bad trace line. The engine is left as it is, unfinished requests included.
class TraceReplay {
 public:
  // REQUIRES: both outlive the replay.
  TraceReplay(TraceReader* reader, EngineCore* engine, ReplayOptions options)
      : reader_(*reader), engine_(*engine), options_(std::move(options)) {}

  Result<ReplaySummary> Run();

 private:
  Status Peek();
  Status AddDue(MonotonicNanos now);
  bool Admits(MonotonicNanos now) const;
  bool Stopping() const { return options_.stop && options_.stop(); }
  MonotonicNanos DueAt(const TraceRequest& request) const;
  void AddNext();
  void Idle(MonotonicNanos now);
  void Report();

  TraceReader& reader_;
  EngineCore& engine_;
  const ReplayOptions options_;
  std::optional<TraceRequest> next_;
  bool ended_ = false;
  MonotonicNanos start_ = 0;
  ReplaySummary summary_;
};

}  // namespace kvwire::engine
