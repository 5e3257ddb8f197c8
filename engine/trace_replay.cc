// SPDX-License-Identifier: Apache-2.0
#include "engine/trace_replay.h"

#include <algorithm>
#include <utility>

namespace kvwire::engine {

namespace {

// Between two looks at the stop flag and two progress reports; also the longest sleep, so that a stop is seen soon.
constexpr std::chrono::milliseconds kLongestNap{20};

}  // namespace

Result<ReplaySummary> TraceReplay::Run() {
  start_ = options_.clock->Now();
  std::optional<MonotonicNanos> looked;
  while (true) {
    const MonotonicNanos time = options_.clock->Now();
    if (!looked || std::chrono::nanoseconds(time - *looked) >= kLongestNap || !engine_.has_work()) {
      looked = time;
      Report();
      summary_.stopped = Stopping();
      if (summary_.stopped) break;
    }
    const MonotonicNanos now = options_.speed > 0 ? time : 0;
    const Status added = AddDue(now);
    if (!added) return tl::unexpected<Error>(added.error());
    if (!engine_.has_work()) {
      if (!next_.has_value() && ended_) break;
      if (engine_.HasStateWork() && !engine_.StateWorkWaits()) {
        engine_.DoStateWork();
        continue;
      }
      // Without a speed only a stop leaves an idle engine with requests to add.
      if (next_.has_value() && options_.speed > 0) Idle(now);
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

// Requests that are refused take no room in the engine, so that this may pass a whole trace: it looks for a stop.
Status TraceReplay::AddDue(MonotonicNanos now) {
  while (!Stopping()) {
    Status peeked = Peek();
    if (!peeked) return peeked;
    if (!next_.has_value() || !Admits(now)) break;
    AddNext();
  }
  return {};
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
  constexpr double kNever = 4e18;  // nanoseconds; more than a century
  return start_ + static_cast<MonotonicNanos>(std::min(request.timestamp_ms * 1e6 / options_.speed, kNever));
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
  double share = reader_.progress();
  if (options_.limit != 0) {
    share = std::max(share, static_cast<double>(summary_.requests) / static_cast<double>(options_.limit));
  }
  options_.progress({share, summary_.requests, summary_.finished, scheduler.num_waiting(), scheduler.num_running()});
}

}  // namespace kvwire::engine
