// SPDX-License-Identifier: Apache-2.0
// Every sequence of what can happen to a few batches: a consumer that claims to be synchronised holds what the
// publisher holds.
#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/fault/search_model.h"

namespace kvwire::test {
namespace {

constexpr std::size_t kDepth = KVWIRE_SEARCH_DEPTH;

using Sequence = std::vector<Step>;

// The steps of a sequence that are no plain delivery, as a set.
using Faults = std::uint32_t;

constexpr Faults Bit(Step step) { return Faults{1} << static_cast<unsigned>(step); }

Faults FaultsOf(const Sequence& steps) {
  Faults faults = 0;
  for (const Step step : steps) faults |= Bit(step);
  return faults & ~Bit(Step::kDeliver);
}

std::string Names(Faults faults) {
  std::string text;
  for (std::size_t i = 0; i < kNumSteps; ++i) {
    const Step step = static_cast<Step>(i);
    if ((faults & Bit(step)) != 0) text += (text.empty() ? "" : " + ") + std::string(ToString(step));
  }
  return text.empty() ? "nothing" : text;
}

struct Case {
  std::uint64_t wrong = 0;
  Sequence first;
  StreamStatus status;
};

struct Report {
  std::uint64_t sequences = 0;
  std::uint64_t claimed = 0;  // and right
  std::uint64_t unclaimed = 0;
  std::uint64_t wrong = 0;
  std::uint64_t allowed = 0;  // wrong, where nothing on the wire tells
  std::map<Faults, Case> cases;
};

// With nobody to ask, nothing need tell a life that went past the old number from the old one.
bool Allowed(const SearchOptions& options, Faults faults) {
  return options.mode == Mode::kNoReplay && (faults & Bit(Step::kRestartPast)) != 0;
}

void Try(const SearchOptions& options, const Sequence& steps, Report* report) {
  const SearchResult result = Run(options, steps);
  ++report->sequences;
  if (!result.wrong()) {
    ++(result.claimed() ? report->claimed : report->unclaimed);
    return;
  }
  const Faults faults = FaultsOf(steps);
  ++(Allowed(options, faults) ? report->allowed : report->wrong);
  Case& found = report->cases[faults];
  if (found.wrong++ == 0) {
    found.first = steps;
    found.status = result.status;
  }
}

Report TryAll(const SearchOptions& options) {
  Report report;
  Sequence steps(kDepth, Step::kDeliver);
  for (;;) {
    Try(options, steps, &report);
    // The next sequence, as a number with one digit a step.
    std::size_t i = 0;
    for (; i < kDepth; ++i) {
      steps[i] = static_cast<Step>((static_cast<std::size_t>(steps[i]) + 1) % kNumSteps);
      if (steps[i] != Step::kDeliver) break;
    }
    if (i == kDepth) return report;
  }
}

// Long sequences by chance, half of their steps deliveries.
Report TrySome(const SearchOptions& options, int sequences, std::size_t length) {
  Report report;
  std::mt19937_64 random(7);
  Sequence steps(length);
  for (int i = 0; i < sequences; ++i) {
    for (Step& step : steps) step = static_cast<Step>(random() % 2 == 0 ? 0 : random() % kNumSteps);
    Try(options, steps, &report);
  }
  return report;
}

// The sets of faults that suffice, each with its first sequence.
std::string Describe(const Report& report) {
  std::string text = fmt::format("{} sequences: {} claimed and right, {} not claimed, {} wrong, {} wrong and allowed\n",
                                 report.sequences, report.claimed, report.unclaimed, report.wrong, report.allowed);
  for (const auto& [faults, found] : report.cases) {
    const bool minimal = std::none_of(report.cases.begin(), report.cases.end(), [faults = faults](const auto& other) {
      return other.first != faults && (other.first & faults) == other.first;
    });
    if (!minimal) continue;
    text += fmt::format("  {}: {} wrong, e.g. [{}]: {}, {}\n", Names(faults), found.wrong, ToString(found.first),
                        ToString(found.status.state), found.status.reason);
  }
  return text;
}

std::vector<SearchOptions> Variants() {
  std::vector<SearchOptions> variants;
  for (const Mode mode : {Mode::kNoReplay, Mode::kReplay, Mode::kReplayHello}) {
    for (const Pace pace : {Pace::kEachStep, Pace::kAtEnd}) {
      for (const Room room : {Room::kAmple, Room::kScarce}) {
        if (mode == Mode::kNoReplay && room == Room::kScarce) continue;  // nothing ever waits
        variants.push_back({.mode = mode, .pace = pace, .room = room});
      }
    }
  }
  return variants;
}

void CheckNothingWrong(const SearchOptions& options, const Report& report) {
  const std::string text = fmt::format("{}, {}, {}: {}", ToString(options.mode), ToString(options.pace),
                                       ToString(options.room), Describe(report));
  fmt::print("{}", text);
  CAPTURE(text);
  CHECK(report.wrong == 0);
}

TEST_CASE("no sequence of faults makes a consumer claim what the publisher does not hold") {
  std::uint64_t all = 1;
  for (std::size_t i = 0; i < kDepth; ++i) all *= kNumSteps;
  for (const SearchOptions& options : Variants()) {
    const Report report = TryAll(options);
    CHECK(report.sequences == all);
    CHECK(report.claimed > 0);
    CheckNothingWrong(options, report);
  }
}

TEST_CASE("nor do long sequences by chance") {
  for (const SearchOptions& options : Variants()) {
    CheckNothingWrong(options, TrySome(options, kDepth < 6 ? 500 : 10'000, 60));
  }
}

TEST_CASE("C12: without a heartbeat nothing tells of a lost last message; one heartbeat does") {
  const std::vector<Step> steps{Step::kDeliver, Step::kDrop};
  for (const Mode mode : {Mode::kNoReplay, Mode::kReplay}) {
    CAPTURE(ToString(mode));
    CHECK_FALSE(Run({.mode = mode, .ending = Ending::kSilent}, steps).equal);
    CHECK_FALSE(Run({.mode = mode, .ending = Ending::kHeartbeat}, steps).wrong());
  }
  CHECK(Run({.mode = Mode::kReplay, .ending = Ending::kHeartbeat}, steps).equal);
}

TEST_CASE(
    "C14: without hello a life that went past the old number may pass for a gap; who watches the connection asks") {
  const std::vector<Step> steps{Step::kDeliver, Step::kDeliver, Step::kRestartPast};
  // Numbers and replay alone: the new life's batches on top of the old ones.
  CHECK_FALSE(Run({.mode = Mode::kReplay, .peers = Peers::kUnwatched}, steps).equal);
  CHECK_FALSE(Run({.mode = Mode::kNoReplay, .peers = Peers::kUnwatched}, steps).equal);
  CHECK(Run({.mode = Mode::kReplay, .peers = Peers::kWatched}, steps).equal);
}

TEST_CASE("the model's publisher and consumer agree when nothing goes wrong") {
  const std::vector<Step> steps(20, Step::kDeliver);
  for (const Mode mode : {Mode::kNoReplay, Mode::kReplay}) {
    const SearchResult result = Run({.mode = mode}, steps);
    CHECK(result.equal);
    CHECK(result.claimed());
  }
}

}  // namespace
}  // namespace kvwire::test
