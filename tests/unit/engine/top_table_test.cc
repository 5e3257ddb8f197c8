// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/top_table.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "kv_events/subscribe/rank_group.h"

namespace kvwire::engine {
namespace {

constexpr MonotonicNanos kSecond = 1'000'000'000;

StreamFigures Figures(const std::string& name, StreamState state, CheckVerdict verdict) {
  StreamFigures figures;
  figures.address.name = name;
  figures.status.state = state;
  figures.verdict = verdict;
  return figures;
}

std::vector<std::string> NamesOf(const std::vector<StreamFigures>& streams) {
  std::vector<std::string> names;
  for (const StreamFigures& stream : streams) names.push_back(stream.address.name);
  return names;
}

TEST_CASE("the worst stream comes first: broken rules, then the state, then the verdict, then the name") {
  std::vector<StreamFigures> streams{
      Figures("well-b", StreamState::kSynchronised, CheckVerdict::kClean),
      Figures("well-a", StreamState::kSynchronised, CheckVerdict::kClean),
      Figures("incomplete", StreamState::kSynchronised, CheckVerdict::kIncomplete),
      Figures("recovering", StreamState::kRecovering, CheckVerdict::kClean),
      Figures("connecting", StreamState::kConnecting, CheckVerdict::kSilent),
      Figures("suspect", StreamState::kSuspect, CheckVerdict::kClean),
      Figures("unsynchronised", StreamState::kUnsynchronised, CheckVerdict::kIncomplete),
      Figures("violated", StreamState::kSynchronised, CheckVerdict::kViolated),
  };
  SortWorstFirst(&streams);
  CHECK(NamesOf(streams) == std::vector<std::string>{"violated", "unsynchronised", "suspect", "connecting",
                                                     "recovering", "incomplete", "well-a", "well-b"});
}

TEST_CASE("a row says state, number, rate, blocks per tier, age, gaps, restarts and verdict") {
  StreamFigures stream = Figures("tcp://10.0.0.1:5557", StreamState::kSynchronised, CheckVerdict::kClean);
  stream.next = 1234;
  stream.events_per_second = 12345.6;
  stream.blocks = {{0, "CPU", 70, 0}, {0, "GPU", 1000, 0}, {1, "GPU", 24, 0}};
  stream.last_message_at = 7 * kSecond;
  stream.stream.gaps = 2;
  stream.stream.restarts = 1;
  const auto lines = TopLines({stream}, 10 * kSecond, TableSize());
  REQUIRE(lines.size() == 3);
  CHECK(lines[0] == "1 stream, 1 synced");
  CHECK(lines[1] == "STREAM        STATE       NEXT   EV/S   GPU   CPU  AGE GAPS  RST VERDICT ");
  CHECK(lines[2] == "10.0.0.1:5557 synced      1234  12.3k  1024    70 3.0s    2    1 clean   ");
}

StreamFigures Rank(const std::string& instance, std::int64_t rank, RankPresence presence) {
  StreamFigures figures = Figures(instance, StreamState::kSynchronised, CheckVerdict::kClean);
  figures.address = AsRank(figures.address, rank);
  figures.address.dp_size = 4;
  figures.connected = presence == RankPresence::kNow;
  figures.reached = true;
  return figures;
}

TEST_CASE("B11: ranks have a column, and an instance that lacks one has a line of its own above the table") {
  std::vector<StreamFigures> streams;
  for (const std::int64_t rank : {0, 1, 3}) streams.push_back(Rank("tcp://10.0.0.1:5557", rank, RankPresence::kNow));
  const auto lines = TopLines(streams, 0, TableSize());
  REQUIRE(lines.size() == 6);
  CHECK(lines[1] == "tcp://10.0.0.1:5557: incomplete, rank 2 missing (3 of 4 are there)");
  CHECK(lines[2].starts_with("STREAM        RANK STATE  "));
  CHECK(lines[5].starts_with("10.0.0.1:5557    3 synced "));
  // One that was there and went is missing now, but it came.
  streams.push_back(Rank("tcp://10.0.0.1:5557", 2, RankPresence::kEver));
  CHECK(TopLines(streams, 0, TableSize())[1] == lines[1]);
  CHECK(RankGroupsOf(streams, RankPresence::kEver)[0].complete());
  streams.back().connected = true;
  CHECK(TopLines(streams, 0, TableSize())[1].starts_with("STREAM "));
  const auto json = TopAsJson(streams, 0, 0);
  CHECK(json["instances"][0]["state"] == "complete");
  CHECK(json["streams"][3]["dp_rank"] == 3);
}

TEST_CASE("B11: a stream whose batches name another rank than its address has a line above the table") {
  std::vector<StreamFigures> streams{Rank("tcp://10.0.0.1:5557", 1, RankPresence::kNow)};
  streams[0].address.dp_size = 0;
  streams[0].rank = 1;
  CHECK(TopLines(streams, 0, TableSize())[1].starts_with("STREAM "));
  streams[0].rank = 3;
  CHECK(TopLines(streams, 0, TableSize())[1] ==
        "tcp://10.0.0.1:5557#1: its batches name rank 3, and its address is that of rank 1");
  CHECK(TopAsJson(streams, 0, 0)["streams"][0]["other_rank"] ==
        "its batches name rank 3, and its address is that of rank 1");
}

TEST_CASE("B11: that a stream's batches name another rank is said once for each such rank") {
  const StreamAddress address = Rank("engine", 1, RankPresence::kNow).address;
  RankNotes notes;
  CHECK_FALSE(notes.Look(address, std::nullopt));
  CHECK_FALSE(notes.Look(address, 1));
  CHECK(notes.Look(address, 2) ==
        "its batches name rank 2, and its address is that of rank 1: ports and ranks are mixed up");
  CHECK_FALSE(notes.Look(address, 1));
  CHECK_FALSE(notes.Look(address, 2));
  CHECK(notes.Look(address, 3));
  for (std::int64_t rank = 0; rank < 100; ++rank) notes.Look(address, 100 + rank);
  CHECK_FALSE(notes.Look(address, 1000));
  CHECK_FALSE(RankNotes().Look(StreamAddress(), 2));
}

TEST_CASE("many incomplete instances leave room for the table") {
  std::vector<StreamFigures> streams;
  for (int i = 0; i < 30; ++i) streams.push_back(Rank(fmt::format("engine-{:02}", i), 0, RankPresence::kNow));
  const auto lines = TopLines(streams, 0, {80, 24});
  CHECK(lines.size() == 24);
  CHECK(lines[1] == "engine-00: incomplete, ranks 1, 2, 3 missing (1 of 4 are there)");
  CHECK(lines[6] == "and 25 more such lines");
  CHECK(lines[7].starts_with("STREAM "));
}

TEST_CASE("no line is longer than 80 columns, whatever the streams are called and hold") {
  std::vector<StreamFigures> streams;
  for (int i = 0; i < 40; ++i) {
    StreamFigures stream =
        Figures(fmt::format("tcp://a-very-long-name-of-a-host-\u00e9\u00e9\u00e9.cluster.local:{}", i),
                StreamState::kUnsynchronised, CheckVerdict::kIncomplete);
    stream.next = 123'456'789'012'345;
    stream.events_per_second = 9.9e9;
    stream.stream.gaps = stream.stream.restarts = 123'456'789;
    for (const char* const medium : {"GPU", "CPU", "DISK", "STORAGE", "A", "B", "EXTERNAL-MEMORY"}) {
      stream.blocks.push_back({0, medium, 987'654'321, 0});
    }
    streams.push_back(stream);
  }
  const auto lines = TopLines(streams, 0, {80, 24});
  CHECK(lines.size() == 24);
  CHECK(lines.back() == "and 19 more");
  for (const std::string& line : lines) {
    CAPTURE(line);
    CHECK(line.size() <= 80 + 3);  // three two-byte characters at most
  }
  // Narrow terminals lose tiers, and then get lines of 60 columns.
  for (const std::string& line : TopLines(streams, 0, {40, 24})) CHECK(line.size() <= 60 + 3);
  CHECK(TopLines(streams, 0, {80, 1}).size() <= 3);
}

TEST_CASE("without streams the table says so") {
  const auto lines = TopLines({}, 0, {80, 24});
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "0 streams");
}

TEST_CASE("a name has no power over the terminal") {
  const auto lines = TopLines({Figures("a\x1b[2J", StreamState::kSynchronised, CheckVerdict::kClean)}, 0, TableSize());
  CHECK(lines[2].starts_with("a\\x1b[2J "));
}

TEST_CASE("numbers and times are short, and grow without a gap") {
  CHECK(ShortNumber(0) == "0");
  CHECK(ShortNumber(9999) == "9999");
  CHECK(ShortNumber(10000) == "10.0k");
  CHECK(ShortNumber(99949) == "99.9k");
  CHECK(ShortNumber(99960) == "100k");
  CHECK(ShortNumber(999'499) == "999k");
  CHECK(ShortNumber(999'600) == "1.0M");
  CHECK(ShortNumber(1e30) == ">999T");
  CHECK(ShortTime(-5) == "0.0s");
  CHECK(ShortTime(kSecond / 2) == "0.5s");
  CHECK(ShortTime(12 * kSecond) == "12s");
  CHECK(ShortTime(300 * kSecond) == "5m");
  CHECK(ShortTime(3 * 3600 * kSecond) == "3h");
  CHECK(ShortTime(9 * 86400 * kSecond) == "9d");
}

TEST_CASE("a line is cut between two characters") {
  CHECK(CutLine("abc", 3) == "abc");
  CHECK(CutLine("abcd", 3) == "ab~");
  CHECK(CutLine("a\u00e9\u00e9", 3) == "a~");
  CHECK(CutLine("a\u00e9\u00e9", 4) == "a\u00e9~");
}

TEST_CASE("JSON has everything in full, the worst first") {
  StreamFigures stream = Figures("b", StreamState::kSuspect, CheckVerdict::kIncomplete);
  stream.why = "because";
  stream.blocks = {{1, "GPU", 5, 0}};
  const Json json = TopAsJson({Figures("a", StreamState::kSynchronised, CheckVerdict::kClean), stream}, kSecond, 17.5);
  CHECK(json["time"] == 17.5);
  REQUIRE(json["streams"].size() == 2);
  CHECK(json["streams"][0]["stream"] == "b");
  CHECK(json["streams"][0]["state"] == "suspect");
  CHECK(json["streams"][0]["incomplete"] == "because");
  CHECK(json["streams"][0]["blocks"][0]["blocks"] == 5);
  CHECK(json["streams"][0]["age_seconds"].is_null());
  CHECK(json["streams"][1]["verdict"] == "clean");
}

}  // namespace
}  // namespace kvwire::engine
