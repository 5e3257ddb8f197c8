// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/top_table.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "engine/cli/rank_groups_json.h"
#include "kv_events/escape_text.h"
#include "kv_events/events.h"
#include "kv_events/subscribe/rank_group.h"

namespace kvwire::engine {

std::string CutLine(const std::string& text, std::size_t width) {
  if (text.size() <= width) return text;
  std::size_t end = 0;
  for (std::size_t next = 0; next < width; next += std::max<std::size_t>(Utf8Length(text.substr(next)), 1)) end = next;
  return text.substr(0, end) + "~";
}

namespace {

constexpr std::size_t kLeastColumns = 60;
constexpr std::size_t kMostMedia = 4;

std::string_view ShortName(StreamState state) {
  constexpr std::array<std::string_view, kNumStreamStates> kNames = {"connect", "unsync", "recover", "synced",
                                                                     "suspect"};
  return kNames[static_cast<std::size_t>(state)];
}

std::string_view ShortName(CheckVerdict verdict) {
  return verdict == CheckVerdict::kIncomplete ? std::string_view("incompl.") : ToString(verdict);
}

// 0 is the worst.
int RankOf(StreamState state) {
  switch (state) {
    case StreamState::kUnsynchronised:
      return 0;
    case StreamState::kSuspect:
      return 1;
    case StreamState::kConnecting:
      return 2;
    case StreamState::kRecovering:
      return 3;
    case StreamState::kSynchronised:
      return 4;
  }
  return 0;
}

int RankOf(CheckVerdict verdict) {
  switch (verdict) {
    case CheckVerdict::kViolated:
      return 0;
    case CheckVerdict::kIncomplete:
      return 1;
    case CheckVerdict::kSilent:
      return 2;
    case CheckVerdict::kClean:
      return 3;
  }
  return 0;
}

// Of the device first, then in the order of their names, kMostMedia at most.
std::vector<std::string> MediaOf(const std::vector<StreamFigures>& streams) {
  std::set<std::string> seen;
  for (const StreamFigures& stream : streams) {
    for (const StateDigest::Entry& entry : stream.blocks) seen.insert(entry.medium);
  }
  std::vector<std::string> media{std::string(kMediumGpu)};
  for (const std::string& medium : seen) {
    if (medium != kMediumGpu && media.size() < kMostMedia) media.push_back(medium);
  }
  return media;
}

std::uint64_t BlocksOf(const StreamFigures& stream, const std::string& medium) {
  std::uint64_t blocks = 0;
  for (const StateDigest::Entry& entry : stream.blocks) blocks += entry.medium == medium ? entry.count : 0;
  return blocks;
}

std::string NameOf(const StreamFigures& stream) {
  constexpr std::string_view kTcp = "tcp://";
  std::string_view name = stream.address.instance.empty() ? stream.address.name : stream.address.instance;
  if (name.starts_with(kTcp)) name.remove_prefix(kTcp.size());
  return EscapeText(name);
}

std::string CountLine(const std::vector<StreamFigures>& streams) {
  std::array<std::size_t, kNumStreamStates> counts{};
  for (const StreamFigures& stream : streams) ++counts[static_cast<std::size_t>(stream.status.state)];
  std::string line = fmt::format("{} stream{}", streams.size(), streams.size() == 1 ? "" : "s");
  for (std::size_t i = 0; i < kNumStreamStates; ++i) {
    if (counts[i] > 0) line += fmt::format(", {} {}", counts[i], ShortName(static_cast<StreamState>(i)));
  }
  return line;
}

// The columns that not every table has.
struct Columns {
  std::size_t name_width = 0;
  bool ranks = false;
  std::vector<std::string> media;
};

std::string RankCell(const StreamFigures& stream) {
  return stream.address.rank ? std::to_string(*stream.address.rank) : std::string("-");
}

std::string Heading(const Columns& columns) {
  std::string line = fmt::format("{:<{}}", "STREAM", columns.name_width);
  if (columns.ranks) line += fmt::format(" {:>4}", "RANK");
  line += fmt::format(" {:<7} {:>8} {:>6}", "STATE", "NEXT", "EV/S");
  for (const std::string& medium : columns.media) line += fmt::format(" {:>5}", CutLine(EscapeText(medium), 5));
  return line + fmt::format(" {:>4} {:>4} {:>4} {:<8}", "AGE", "GAPS", "RST", "VERDICT");
}

std::string Row(const StreamFigures& stream, const Columns& columns, MonotonicNanos now) {
  std::string line = fmt::format("{:<{}}", CutLine(NameOf(stream), columns.name_width), columns.name_width);
  if (columns.ranks) line += fmt::format(" {:>4}", RankCell(stream));
  line += fmt::format(
      " {:<7} {:>8} {:>6}", ShortName(stream.status.state),
      stream.next < 100'000'000 ? std::to_string(stream.next) : ShortNumber(static_cast<double>(stream.next)),
      ShortNumber(stream.events_per_second));
  for (const std::string& medium : columns.media) {
    line += fmt::format(" {:>5}", ShortNumber(static_cast<double>(BlocksOf(stream, medium))));
  }
  const std::string age = stream.last_message_at ? ShortTime(now - *stream.last_message_at) : "-";
  return line + fmt::format(" {:>4} {:>4} {:>4} {:<8}", age, ShortNumber(static_cast<double>(stream.stream.gaps)),
                            ShortNumber(static_cast<double>(stream.stream.restarts)), ShortName(stream.verdict));
}

// Of the instances whose ranks are not all there, and of the streams that are of another rank; with few rows for a
// quarter of them at most.
std::vector<std::string> GroupLines(const std::vector<StreamFigures>& streams, TableSize size) {
  const std::size_t most = size.rows == 0 ? streams.size() : std::max<std::size_t>(size.rows / 4, 1);
  std::vector<std::string> lines;
  for (const RankGroup& group : RankGroupsOf(streams, RankPresence::kNow)) {
    if (!group.complete()) lines.push_back(group.ToString());
  }
  for (const StreamFigures& stream : streams) {
    const std::string other = OtherRank(stream.address, stream.rank);
    if (!other.empty()) lines.push_back(fmt::format("{}: {}", EscapeText(stream.address.name), other));
  }
  if (lines.size() > most) {
    const std::size_t left_out = lines.size() - (most - 1);
    lines.resize(most - 1);
    lines.push_back(fmt::format("and {} more such line{}", left_out, left_out == 1 ? "" : "s"));
  }
  if (size.columns > 0) {
    for (std::string& line : lines) line = CutLine(line, std::max(size.columns, kLeastColumns));
  }
  return lines;
}

}  // namespace

std::string ShortNumber(double value) {
  constexpr double kPlain = 9999.5;
  if (value < kPlain) return fmt::format("{:.0f}", value);
  for (const char* const unit : {"k", "M", "G", "T"}) {
    value /= 1000;
    if (value < 99.95) return fmt::format("{:.1f}{}", value, unit);
    if (value < 999.5) return fmt::format("{:.0f}{}", value, unit);
  }
  return ">999T";
}

std::string ShortTime(MonotonicNanos time) {
  const double seconds = static_cast<double>(std::max<MonotonicNanos>(time, 0)) * 1e-9;
  constexpr double kMinute = 60;
  constexpr double kHour = 3600;
  constexpr double kDay = 86400;
  if (seconds < 9.95) return fmt::format("{:.1f}s", seconds);
  if (seconds < 2 * kMinute) return fmt::format("{:.0f}s", seconds);
  if (seconds < 2 * kHour) return fmt::format("{:.0f}m", seconds / kMinute);
  if (seconds < 2 * kDay) return fmt::format("{:.0f}h", seconds / kHour);
  return fmt::format("{:.0f}d", std::min(seconds / kDay, 999.0));
}

void SortWorstFirst(std::vector<StreamFigures>* streams) {
  const auto key = [](const StreamFigures& stream) {
    return std::tuple(stream.verdict != CheckVerdict::kViolated, RankOf(stream.status.state), RankOf(stream.verdict),
                      std::string_view(stream.address.name));
  };
  std::sort(streams->begin(), streams->end(),
            [&key](const StreamFigures& a, const StreamFigures& b) { return key(a) < key(b); });
}

std::vector<std::string> TopLines(std::vector<StreamFigures> streams, MonotonicNanos now, TableSize size) {
  SortWorstFirst(&streams);
  Columns table{std::string_view("STREAM").size(), false, MediaOf(streams)};
  for (const StreamFigures& stream : streams) {
    table.name_width = std::max(table.name_width, NameOf(stream).size());
    table.ranks = table.ranks || stream.address.rank;
  }
  const auto width_without_name = [&table] {
    return Heading({0, table.ranks, table.media}).size() - std::string_view("STREAM").size();
  };
  if (size.columns > 0) {
    const std::size_t columns = std::max(size.columns, kLeastColumns);
    constexpr std::size_t kLeastName = 8;
    // Lower tiers go before the names become too short to tell.
    while (table.media.size() > 1 && width_without_name() + kLeastName > columns) table.media.pop_back();
    table.name_width = std::min(table.name_width, columns - width_without_name());
  }
  std::vector<std::string> lines = GroupLines(streams, size);
  lines.insert(lines.begin(), CountLine(streams));
  lines.push_back(Heading(table));
  const std::size_t room = size.rows == 0 ? streams.size() : size.rows - std::min(size.rows, lines.size());
  const std::size_t shown = streams.size() <= room ? streams.size() : room - std::min<std::size_t>(room, 1);
  for (std::size_t i = 0; i < shown; ++i) lines.push_back(Row(streams[i], table, now));
  if (shown < streams.size()) lines.push_back(fmt::format("and {} more", streams.size() - shown));
  return lines;
}

Json TopAsJson(std::vector<StreamFigures> streams, MonotonicNanos now, double wall_seconds) {
  SortWorstFirst(&streams);
  const std::vector<RankGroup> groups = RankGroupsOf(streams, RankPresence::kNow);
  Json list = Json::array();
  for (const StreamFigures& stream : streams) {
    Json blocks = Json::array();
    for (const StateDigest::Entry& entry : stream.blocks) {
      blocks.push_back({{"group", entry.group}, {"medium", entry.medium}, {"blocks", entry.count}});
    }
    Json row{{"stream", stream.address.name},
             {"endpoint", stream.address.endpoint.ToString()},
             {"dp_rank", stream.address.rank ? Json(*stream.address.rank) : Json(nullptr)},
             {"state", ToString(stream.status.state)},
             {"reason", stream.status.Reason()},
             {"state_seconds", static_cast<double>(now - stream.status_since) * 1e-9},
             {"next", stream.next},
             {"messages", stream.messages()},
             {"events_per_second", stream.events_per_second},
             {"blocks", std::move(blocks)},
             {"gaps", stream.stream.gaps},
             {"missing", stream.stream.missing},
             {"restarts", stream.stream.restarts},
             {"violations", stream.counts.violations},
             {"verdict", ToString(stream.verdict)}};
    row["age_seconds"] =
        stream.last_message_at ? Json(static_cast<double>(now - *stream.last_message_at) * 1e-9) : Json(nullptr);
    if (const std::string other = OtherRank(stream.address, stream.rank); !other.empty()) row["other_rank"] = other;
    if (!stream.why.empty()) row["incomplete"] = stream.why;
    list.push_back(std::move(row));
  }
  Json table{{"time", wall_seconds}, {"streams", std::move(list)}};
  if (!groups.empty()) table["instances"] = RankGroupsAsJson(groups);
  return table;
}

}  // namespace kvwire::engine
