// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/cli/commands.h"
#include "engine/cli/descriptor_limit.h"
#include "engine/cli/number_options.h"
#include "engine/cli/output.h"
#include "engine/cli/stop_signal.h"
#include "engine/cli/stream_options.h"
#include "engine/cli/stream_roster.h"
#include "engine/cli/terminal.h"
#include "engine/cli/top_table.h"
#include "kv_events/clock.h"
#include "kv_events/escape_text.h"
#include "kv_events/subscribe/rank_group.h"
#include "kv_events/subscribe/stream_set.h"

namespace kvwire::engine {

namespace {

constexpr int kExitNotWell = 1;
constexpr int kExitFailed = 4;

struct TopOptions {
  StreamOptions streams;
  bool once = false;
  bool json = false;
  double interval = 1;  // seconds
  double wait = 3;
};

bool Well(const StreamFigures& stream) {
  return stream.status.state == StreamState::kSynchronised && stream.verdict != CheckVerdict::kViolated &&
         OtherRank(stream.address, stream.rank).empty();
}

bool AllWell(const std::vector<StreamFigures>& streams) {
  return !streams.empty() && std::ranges::all_of(streams, Well) &&
         std::ranges::all_of(RankGroupsOf(streams, RankPresence::kNow), &RankGroup::complete);
}

std::chrono::nanoseconds Interval(const TopOptions& options) {
  constexpr double kShortest = 0.05;
  return std::chrono::nanoseconds(NanosOf(std::max(options.interval, kShortest)));
}

// Until every stream is known, or the time is over.
void WaitForFirstFigures(const StreamSet& set, double wait) {
  constexpr std::chrono::milliseconds kLook(20);
  const Clock& clock = SystemClock::Get();
  const MonotonicNanos end = clock.Now() + NanosOf(wait);
  while (!StopRequested() && clock.Now() < end) {
    const std::vector<StreamFigures> streams = set.Snapshot();
    if (!streams.empty() && std::all_of(streams.begin(), streams.end(), Well)) return;
    SleepUnlessStopped(kLook);
  }
}

Status PrintPlain(const TopOptions& options, std::vector<StreamFigures> streams) {
  const Clock& clock = SystemClock::Get();
  if (options.json) {
    Print(JsonLine(TopAsJson(std::move(streams), clock.Now(), clock.WallSeconds())));
  } else {
    for (const std::string& line : TopLines(std::move(streams), clock.Now(), TableSize())) Print(line + "\n");
  }
  return FlushStdout();
}

// Once an interval, until a stop is asked for or the output cannot be written.
Status ShowPlain(const TopOptions& options, const StreamSet& set) {
  while (!StopRequested()) {
    SleepUnlessStopped(Interval(options));
    if (Status printed = PrintPlain(options, set.Snapshot()); !printed) return printed;
  }
  return {};
}

// The latest line of the log, where there is no place for more.
// Threads: any.
class LastLine {
 public:
  void Say(std::string_view line) {
    const std::lock_guard<std::mutex> lock(mutex_);
    line_ = line;
  }
  std::string line() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return line_;
  }

 private:
  mutable std::mutex mutex_;
  std::string line_;
};

std::vector<std::string> Picture(const StreamSet& set, const LastLine& last) {
  TableSize size = Screen::size();
  const std::string said = last.line();
  if (said.empty()) return TopLines(set.Snapshot(), SystemClock::Get().Now(), size);
  --size.rows;
  std::vector<std::string> lines = TopLines(set.Snapshot(), SystemClock::Get().Now(), size);
  lines.push_back(CutLine(EscapeText(said), size.columns));
  return lines;
}

Status ShowOnScreen(const TopOptions& options, const StreamSet& set, const LastLine& last) {
  {
    Screen screen;
    while (!StopRequested()) {
      screen.Show(Picture(set, last));
      if (Status shown = FlushStdout(); !shown) return shown;
      SleepUnlessStopped(Interval(options));
    }
  }
  // What was seen last stays.
  for (const std::string& line : Picture(set, last)) Print(line + "\n");
  return FlushStdout();
}

int RunTop(const TopOptions& options) {
  auto sources = MakeSources(options.streams);
  if (!sources) {
    PrintError("top", sources.error().message);
    return kExitFailed;
  }
  RaiseDescriptorLimit();
  StreamSet::Options set_options;
  set_options.stream.heartbeat = LinkHeartbeat(options.streams);
  StreamSet set(std::move(set_options));
  const bool screen = !options.once && !options.json && StdoutIsTerminal();
  StreamRoster::Options roster_options;
  roster_options.set = &set;
  roster_options.topic = options.streams.topic;
  LastLine last;
  roster_options.log = [&last, screen](LogLevel, std::string_view line) {
    if (screen) {
      last.Say(line);
    } else {
      PrintError("top", line);
    }
  };
  StreamRoster roster(*std::move(sources), std::move(roster_options));
  if (const Status started = roster.Start(); !started) {
    PrintError("top", started.error().message);
    return kExitFailed;
  }
  Status shown;
  int exit_code = 0;
  if (options.once) {
    WaitForFirstFigures(set, options.wait);
    std::vector<StreamFigures> streams = set.Snapshot();
    if (!AllWell(streams)) exit_code = kExitNotWell;
    shown = PrintPlain(options, std::move(streams));
  } else {
    shown = screen ? ShowOnScreen(options, set, last) : ShowPlain(options, set);
  }
  roster.Stop();
  if (shown) return exit_code;
  PrintError("top", shown.error().message);
  return kExitFailed;
}

}  // namespace

void AddTopCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("top", "Show streams of KV-cache events, a row each, the worst first");
  const auto options = std::make_shared<TopOptions>();
  AddStreamOptions(*command, &options->streams);
  command->add_flag("--once", options->once,
                    "Print one table and end; exit code 0 only if every stream is synchronised and of the rank that "
                    "is said, no rank is missing, and none broke a rule");
  command->add_flag("--json", options->json, "Print JSON, one object a refresh");
  AddSeconds(*command, "--interval", &options->interval, "Seconds from one refresh to the next");
  AddSeconds(*command, "--wait", &options->wait,
             "With --once: wait so many seconds for streams to become synchronised");
  command->callback([options, exit_code] { *exit_code = RunTop(*options); });
}

}  // namespace kvwire::engine
