// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/tap_many.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/cli/descriptor_limit.h"
#include "engine/cli/metrics_server.h"
#include "engine/cli/number_options.h"
#include "engine/cli/output.h"
#include "engine/cli/rank_groups_json.h"
#include "engine/cli/stop_signal.h"
#include "engine/cli/stream_roster.h"
#include "engine/cli/tap_format.h"
#include "kv_events/clock.h"
#include "kv_events/config.h"
#include "kv_events/subscribe/rank_group.h"
#include "kv_events/subscribe/stream_set.h"

namespace kvwire::engine {

namespace {

constexpr std::chrono::milliseconds kLook(50);

// What the streams ended with, those that left before the end included.
// Threads: any.
class Endings {
 public:
  void Take(const StreamSet::Ended& ended) {
    auto& sink = static_cast<TapSink&>(*ended.sink);
    const std::lock_guard<std::mutex> lock(mutex_);
    const Status written = sink.Finish(ended.figures.stream);
    if (!written && written_) written_ = written;
    ++counts_[static_cast<std::size_t>(sink.Verdict())];
  }

  std::size_t Count(CheckVerdict verdict) const { return counts_[static_cast<std::size_t>(verdict)]; }
  Status written() const { return written_; }

  CheckVerdict Worst() const {
    for (const CheckVerdict verdict : {CheckVerdict::kViolated, CheckVerdict::kIncomplete, CheckVerdict::kSilent}) {
      if (Count(verdict) > 0) return verdict;
    }
    return Count(CheckVerdict::kClean) > 0 ? CheckVerdict::kClean : CheckVerdict::kSilent;
  }

 private:
  std::mutex mutex_;
  Status written_;
  std::array<std::size_t, kNumCheckVerdicts> counts_{};
};

// What these flags do is for one stream.
Status CheckFlags(const TapOptions& options) {
  for (const auto& [given, flag] : {std::pair(!options.against.empty(), "--against"),
                                    {options.against_rank.has_value(), "--against-rank"},
                                    {options.bind, "--bind"},
                                    {!options.output.record.empty(), "--record"},
                                    {!options.output.dump_state.empty(), "--dump-state"},
                                    {!options.output.dump_digests.empty(), "--dump-digests"}}) {
    if (!given) continue;
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{}: there may be several streams; allowed: only with one --endpoint", flag));
  }
  return {};
}

StreamSet::Options SetOptions(const TapOptions& options) {
  StreamSet::Options set;
  set.stream = options.Watched();
  set.stream.log = [](LogLevel, std::string_view line) { PrintError("tap", line); };
  set.make_sink = [options](const StreamAddress& address) -> Result<std::unique_ptr<CheckedSink>> {
    TapOutput own = options.OutputOf(address);
    own.stream = address.name;
    auto sink = TapSink::Create(own);
    if (!sink) return tl::unexpected<Error>(sink.error());
    (*sink)->Begins(address.endpoint.ToString(),
                    address.replay_endpoint ? address.replay_endpoint->ToString() : std::string(),
                    SocketMode::kConnect);
    return *std::move(sink);
  };
  return set;
}

// When news of any stream came last, if any came.
std::optional<MonotonicNanos> LatestNews(const std::vector<StreamFigures>& streams) {
  std::optional<MonotonicNanos> latest;
  for (const StreamFigures& stream : streams) {
    if (stream.last_news_at) latest = std::max(latest.value_or(0), *stream.last_news_at);
  }
  return latest;
}

bool AnyRecovering(const std::vector<StreamFigures>& streams) {
  return std::any_of(streams.begin(), streams.end(), [](const StreamFigures& each) { return each.recovering; });
}

void Pause() {
  HandOnStdout();
  SleepUnlessStopped(kLook);
}

// Asks every publisher whether what came is all, and waits for the answers.
void AskWhetherThatIsAll(StreamSet* set) {
  const Clock& clock = SystemClock::Get();
  set->Confirm();
  const MonotonicNanos begin = clock.Now();
  while (AnyRecovering(set->Snapshot())) {
    const MonotonicNanos limit = StopRequested() ? kAskLimitWhenStopped : kAskLimit;
    if (clock.Now() - begin >= limit) return;
    HandOnStdout();
    std::this_thread::sleep_for(kLook);
  }
}

void Watch(const TapOptions& options, StreamSet* set) {
  const Clock& clock = SystemClock::Get();
  MonotonicNanos quiet_since = clock.Now();
  while (!StopRequested()) {
    const std::vector<StreamFigures> streams = set->Snapshot();
    const std::optional<MonotonicNanos> latest = LatestNews(streams);
    if (latest) quiet_since = std::max(quiet_since, *latest);
    const double limit = latest ? options.until_idle : options.wait;
    if (limit > 0 && !AnyRecovering(streams) && clock.Now() - quiet_since >= NanosOf(limit)) {
      if (!latest) return;
      AskWhetherThatIsAll(set);
      if (LatestNews(set->Snapshot()) == latest) return;
      quiet_since = clock.Now();
    }
    Pause();
  }
  AskWhetherThatIsAll(set);
}

int Fail(const Error& error) {
  PrintError("tap", error.message);
  return kTapFailed;
}

// The worst of the streams' verdicts, and of the instances': one whose ranks are not all there was not seen as a whole.
CheckVerdict WorstOf(const Endings& endings, const std::vector<RankGroup>& groups) {
  const CheckVerdict worst = endings.Worst();
  const bool complete = std::ranges::all_of(groups, &RankGroup::complete);
  return complete || worst == CheckVerdict::kViolated ? worst : CheckVerdict::kIncomplete;
}

void PrintOverall(const TapOptions& options, const Endings& endings, const std::vector<RankGroup>& groups) {
  Json verdicts = Json::object();
  std::string text;
  std::size_t streams = 0;
  for (std::size_t i = 0; i < kNumCheckVerdicts; ++i) {
    const auto verdict = static_cast<CheckVerdict>(i);
    const std::size_t count = endings.Count(verdict);
    streams += count;
    verdicts[std::string(kvwire::ToString(verdict))] = count;
    text += fmt::format(", {} {}", kvwire::ToString(verdict), count);
  }
  const std::string_view worst = kvwire::ToString(WorstOf(endings, groups));
  if (options.output.json) {
    Json line{{"streams", streams}, {"verdicts", verdicts}};
    if (!groups.empty()) line["instances"] = RankGroupsAsJson(groups);
    line["verdict"] = worst;
    Print(JsonLine(line));
  } else {
    for (const RankGroup& group : groups) {
      if (!group.complete()) Print(group.ToString() + "\n");
    }
    Print(fmt::format("streams {}{}\n", streams, text));
    if (options.output.check) Print(fmt::format("verdict: {}\n", worst));
  }
}

}  // namespace

Result<std::unique_ptr<MetricsServer>> ServeTapMetrics(const TapOptions& options, MetricsServer::Figures figures) {
  if (options.metrics.empty()) return std::unique_ptr<MetricsServer>();
  auto server = MetricsServer::Create(options.metrics, std::move(figures));
  if (!server) return server;
  const std::string url = (*server)->url();
  Print(options.output.json ? JsonLine({{"metrics", url}}) : fmt::format("metrics on {}\n", url));
  return server;
}

int RunTapMany(const TapOptions& options) {
  if (const Status flags = CheckFlags(options); !flags) return Fail(flags.error());
  auto sources = MakeSources(options.streams);
  if (!sources) return Fail(sources.error());
  RaiseDescriptorLimit();
  Endings endings;
  StreamSet set(SetOptions(options));
  auto metrics = ServeTapMetrics(options, [&set] { return set.Snapshot(); });
  if (!metrics) return Fail(metrics.error());
  StreamRoster::Options roster_options;
  roster_options.set = &set;
  roster_options.topic = options.streams.topic;
  roster_options.log = [](LogLevel, std::string_view line) { PrintError("tap", line); };
  roster_options.on_ended = [&endings](const StreamSet::Ended& ended) { endings.Take(ended); };
  StreamRoster roster(*std::move(sources), std::move(roster_options));
  if (const Status started = roster.Start(); !started) return Fail(started.error());
  Watch(options, &set);
  roster.Stop();
  metrics->reset();
  std::vector<StreamFigures> figures;
  for (const StreamSet::Ended& ended : set.RemoveAll()) {
    endings.Take(ended);
    figures.push_back(ended.figures);
  }
  const std::vector<RankGroup> groups = RankGroupsOf(figures, RankPresence::kEver);
  PrintOverall(options, endings, groups);
  if (const Status written = endings.written(); !written) return Fail(written.error());
  const CheckVerdict worst = WorstOf(endings, groups);
  const bool complete = std::ranges::all_of(groups, &RankGroup::complete);
  // A rank that never came is never a pass, asked to check or not.
  if (options.output.check || (!complete && worst == CheckVerdict::kIncomplete)) return static_cast<int>(worst);
  return endings.Count(CheckVerdict::kSilent) > 0 || worst == CheckVerdict::kSilent
             ? static_cast<int>(CheckVerdict::kSilent)
             : 0;
}

}  // namespace kvwire::engine
