// SPDX-License-Identifier: Apache-2.0
#include "engine/trace_replay.h"

#include <algorithm>
#include <utility>

namespace kvwire::engine {

namespace {

// Steps between two looks at the stop flag and two progress reports: about a millisecond of decode steps.
constexpr std::uint64_t kStepsBetweenLooks = 256;

// Longest sleep, so that a stop is seen soon.
constexpr std::chrono::milliseconds kLongestNap{20};

}  // namespace

Result<ReplaySummary> TraceReplay::Run() {
  start_ = options_.clock->Now();
  std::uint64_t steps = 0;
  while (true) {
    if (steps++ % kStepsBetweenLooks == 0 || !engine_.has_work()) {
      Report();
      summary_.stopped = options_.stop && options_.stop();
      if (summary_.stopped) break;
    }
    const MonotonicNanos now = options_.speed > 0 ? options_.clock->Now() : 0;
    while (true) {
      const Status peeked = Peek();
      if (!peeked) return tl::unexpected<Error>(peeked.error());
      if (!next_.has_value() || !Admits(now)) break;
      AddNext();
    }
    if (!engine_.has_work()) {
      if (!next_.has_value()) break;
      Idle(now);
      continue;
    }
    const EngineCore::StepResult step = engine_.Step();
    summary_.finished += step.finished.size();
    if (step.published && options_.on_batch) options_.on_batch(engine_.batches_published() - 1);
  }
  summary_.wall = std::chrono::nanoseconds(options_.clock->Now() - start_);
  Report();
  return summary_;
}

// Makes next_ the request to be taken next; nothing at the end.
Status TraceReplay::Peek() {
  if (next_.has_value() || ended_) return {};
  ended_ = options_.limit != 0 && summary_.requests >= options_.limit;
  if (ended_) return {};
  Result<std::optional<TraceRequest>> request = reader_.Next();
  if (!request) return tl::unexpected<Error>(std::move(request).error());
  next_ = *std::move(request);
  ended_ = !next_.has_value();
  return {};
}

bool TraceReplay::Admits(MonotonicNanos now) const {
  if (options_.speed > 0) return DueAt(*next_) <= now;
  return engine_.scheduler().num_waiting() < engine_.scheduler().config().max_num_seqs;
}

MonotonicNanos TraceReplay::DueAt(const TraceRequest& request) const {
  return start_ + static_cast<MonotonicNanos>(request.timestamp_ms * 1e6 / options_.speed);
}

void TraceReplay::AddNext() {
  scheduler::NewRequest request;
  request.id = next_->line;
  request.prompt = TracePromptTokens(*next_);
  request.max_tokens = next_->output_length;
  ++summary_.requests;
  const Status added = engine_.Add(std::move(request));
  if (!added) {
    ++summary_.refused;
    if (options_.on_refused) options_.on_refused(*next_, added.error());
  }
  next_.reset();
}

void TraceReplay::Idle(MonotonicNanos now) {
  const std::chrono::nanoseconds left(DueAt(*next_) - now);
  options_.sleep(std::min<std::chrono::nanoseconds>(left, kLongestNap));
}

void TraceReplay::Report() {
  if (!options_.progress) return;
  const scheduler::Scheduler& scheduler = engine_.scheduler();
  options_.progress(
      {reader_.progress(), summary_.requests, summary_.finished, scheduler.num_waiting(), scheduler.num_running()});
}

}  // namespace kvwire::engine
