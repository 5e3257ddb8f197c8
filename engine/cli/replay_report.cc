// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/replay_report.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace kvwire::engine {

namespace {

double Seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

double BlocksPerSecond(const ReplayReport& report) {
  const double wall = Seconds(report.summary.wall);
  return wall > 0 ? static_cast<double>(report.scheduler.full_prompt_blocks) / wall : 0;
}

double Share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string Line(std::string_view name, const std::string& value) { return fmt::format("{:<16} {}\n", name, value); }

// Empty for a tier that did nothing.
std::string TierLine(std::string_view name, std::uint64_t hit_tokens, const scheduler::KVConnectorStats& tier,
                     const scheduler::SchedulerStats& all) {
  if (hit_tokens == 0 && tier.stored + tier.failed_stores == 0) return "";
  return Line(name, fmt::format("{} hit tokens ({:.2f} %), {} blocks stored, {} removed, {} loaded, {} not stored",
                                hit_tokens, Share(hit_tokens, all.prompt_tokens), tier.stored, tier.removed,
                                tier.loaded, tier.failed_stores));
}

// A stderr that takes nothing is no reason to end a replay.
void Draw(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

}  // namespace

std::string ReportAsText(const ReplayReport& report) {
  const ReplaySummary& run = report.summary;
  const scheduler::SchedulerStats& s = report.scheduler;
  const PublisherStats& p = report.publisher;
  std::string text;
  text += Line("requests", fmt::format("{} ({} finished, {} refused{})", run.requests, run.finished, run.refused,
                                       run.stopped ? "; stopped before the end" : ""));
  text += Line("prompt tokens", fmt::format("{}", s.prompt_tokens));
  text += Line("prompt blocks", fmt::format("{} full, {} new", s.full_prompt_blocks, s.new_prompt_blocks));
  text += Line("hits", fmt::format("{} blocks, {} tokens ({:.2f} % of prompt tokens)", s.hit_blocks, s.hit_tokens,
                                   Share(s.hit_tokens, s.prompt_tokens)));
  text += TierLine("host tier", s.host_hit_tokens, s.host, s);
  text += TierLine("disk tier", s.disk_hit_tokens, s.disk, s);
  if (s.host_hit_tokens + s.disk_hit_tokens > 0) {
    text +=
        Line("found in", fmt::format("device {} + host {} + disk {} + computed {} = {} prompt tokens", s.hit_tokens,
                                     s.host_hit_tokens, s.disk_hit_tokens, s.computed_prompt_tokens, s.prompt_tokens));
  }
  text += Line("output tokens", fmt::format("{}", s.output_tokens));
  text += Line("steps", fmt::format("{}, {} preemptions", s.steps, s.preemptions));
  text += Line("events",
               fmt::format("{} in {} batches: {} blocks stored, {} removed", s.events, s.batches, s.stored, s.removed));
  text += Line("publisher", fmt::format("{} sent, {} bytes; dropped: {} queue full, {} error, {} closed", p.sent,
                                        p.bytes_sent, p.dropped_full, p.dropped_error, p.dropped_closed));
  text += Line("time in", fmt::format("schedule {:.3f} s, model {:.3f} s, update {:.3f} s, event calls {:.3f} s",
                                      Seconds(report.times.schedule), Seconds(report.times.run),
                                      Seconds(report.times.update), Seconds(report.times.event_calls)));
  text +=
      Line("wall time", fmt::format("{:.3f} s, {:.0f} prompt blocks/s", Seconds(run.wall), BlocksPerSecond(report)));
  text += Line("peak memory", fmt::format("{:.2f} GiB", static_cast<double>(report.peak_memory_bytes) / (1u << 30)));
  return text;
}

std::string ReportAsJson(const ReplayReport& report) {
  const ReplaySummary& run = report.summary;
  const scheduler::SchedulerStats& s = report.scheduler;
  const PublisherStats& p = report.publisher;
  const nlohmann::ordered_json json{
      {"requests", run.requests},
      {"finished", run.finished},
      {"refused", run.refused},
      {"stopped", run.stopped},
      {"prompt_tokens", s.prompt_tokens},
      {"full_prompt_blocks", s.full_prompt_blocks},
      {"new_prompt_blocks", s.new_prompt_blocks},
      {"hit_blocks", s.hit_blocks},
      {"hit_tokens", s.hit_tokens},
      {"host_hit_tokens", s.host_hit_tokens},
      {"disk_hit_tokens", s.disk_hit_tokens},
      {"computed_prompt_tokens", s.computed_prompt_tokens},
      {"host_stored", s.host.stored},
      {"host_removed", s.host.removed},
      {"host_failed_stores", s.host.failed_stores},
      {"disk_stored", s.disk.stored},
      {"disk_removed", s.disk.removed},
      {"disk_failed_stores", s.disk.failed_stores},
      {"failed_loads", s.failed_loads},
      {"computed_tokens", s.scheduled_tokens},
      {"output_tokens", s.output_tokens},
      {"steps", s.steps},
      {"preemptions", s.preemptions},
      {"stored", s.stored},
      {"removed", s.removed},
      {"events", s.events},
      {"batches", s.batches},
      {"dropped", s.dropped_batches},
      {"suppressed", s.stream.suppressed},
      {"resyncs", s.stream.resyncs},
      {"renewed", s.stream.renewed},
      {"snapshots", s.stream.walks},
      {"snapshot_blocks", s.stream.walked},
      {"sent", p.sent},
      {"bytes_sent", p.bytes_sent},
      {"dropped_full", p.dropped_full},
      {"dropped_error", p.dropped_error},
      {"dropped_closed", p.dropped_closed},
      {"seconds_schedule", Seconds(report.times.schedule)},
      {"seconds_model", Seconds(report.times.run)},
      {"seconds_update", Seconds(report.times.update)},
      {"seconds_event_calls", Seconds(report.times.event_calls)},
      {"seconds_wall", Seconds(run.wall)},
      {"blocks_per_second", BlocksPerSecond(report)},
      {"peak_memory_bytes", report.peak_memory_bytes},
  };
  return json.dump() + "\n";
}

std::uint64_t PeakMemoryBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "VmHWM: %llu", &kib) == 1) return std::uint64_t{kib} << 10;
  }
  return 0;
}

ProgressLine::ProgressLine(const Clock& clock)
    : clock_(clock), terminal_(::isatty(STDERR_FILENO) == 1), start_(clock.Now()), next_(start_) {}

void ProgressLine::Update(const ReplayProgress& progress) {
  constexpr MonotonicNanos kTerminalPeriod = 100'000'000;
  constexpr MonotonicNanos kLinePeriod = 5'000'000'000;
  const MonotonicNanos now = clock_.Now();
  if (now < next_) return;
  const bool first = next_ == start_;
  next_ = now + (terminal_ ? kTerminalPeriod : kLinePeriod);
  // A log gets its first line only when the run turns out to be long.
  if (!terminal_ && first) return;
  const std::string figures = fmt::format("{:3.0f} %  {:.0f} s  {} requests, {} finished, {} running, {} waiting",
                                          100 * progress.share, static_cast<double>(now - start_) * 1e-9,
                                          progress.requests, progress.finished, progress.running, progress.waiting);
  if (terminal_) {
    constexpr std::size_t kWidth = 30;
    const auto filled = std::min(kWidth, static_cast<std::size_t>(progress.share * kWidth));
    Draw(fmt::format("\r[{}{}] {}\033[K", std::string(filled, '#'), std::string(kWidth - filled, '.'), figures));
  } else {
    Draw(figures + '\n');
  }
  drawn_ = terminal_;
}

void ProgressLine::Finish() {
  if (drawn_) Draw("\n");
  drawn_ = false;
}

}  // namespace kvwire::engine
