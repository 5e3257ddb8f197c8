// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/state_notes.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace kvwire::test {
namespace {

constexpr MonotonicNanos kSecond = 1'000'000'000;
constexpr StreamStatus kConnecting{StreamState::kConnecting, "nothing received yet"};
constexpr StreamStatus kSynchronised{StreamState::kSynchronised, "every number was applied"};
constexpr StreamStatus kSuspect{StreamState::kSuspect, "the connection ended"};

TEST_CASE("B12: a publisher that never answers costs one line, and a minute of it no more") {
  StateNotes notes;
  std::vector<std::string> lines;
  for (MonotonicNanos now = 0; now < 60 * kSecond; now += kSecond / 50) {
    if (auto line = notes.Look(kConnecting, now)) lines.push_back(*line);
  }
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] == "connecting: nothing received yet");
}

TEST_CASE("a change is said at once, when nothing was said shortly before") {
  StateNotes notes;
  CHECK_FALSE(notes.Look(kConnecting, 0).has_value());
  CHECK(notes.Look(kSynchronised, 10).value() == "synchronised: every number was applied");
  CHECK_FALSE(notes.Look(kSynchronised, 5 * kSecond).has_value());
  CHECK(notes.Look(kSuspect, 5 * kSecond).value() == "suspect: the connection ended");
}

TEST_CASE("B12: lines of a state that changes every second come further and further apart") {
  StateNotes notes;
  std::vector<MonotonicNanos> said;
  for (int second = 0; second < 6 * 3600; ++second) {
    if (notes.Look(second % 2 == 0 ? kSynchronised : kSuspect, second * kSecond)) said.push_back(second);
  }
  CHECK(said.size() <= 46);
  int in_first_minute = 0;
  for (const MonotonicNanos second : said) in_first_minute += second < 60 ? 1 : 0;
  CHECK(in_first_minute <= 10);
  CHECK(said.back() - said[said.size() - 2] >= StateNotes::kLongestPause / kSecond);
}

TEST_CASE("what changed in a pause and changed back is not said; what stayed is, with the number of changes") {
  StateNotes notes;
  notes.Look(kConnecting, 0);
  REQUIRE(notes.Look(kSynchronised, 1).has_value());
  CHECK_FALSE(notes.Look(kSuspect, 2).has_value());
  CHECK_FALSE(notes.Look(kSynchronised, 3).has_value());
  CHECK_FALSE(notes.Look(kSynchronised, 2 * kSecond).has_value());
  REQUIRE(notes.Look(kSuspect, 3 * kSecond).has_value());
  notes.Look(kSynchronised, 3 * kSecond + 1);
  notes.Look(kConnecting, 3 * kSecond + 2);
  CHECK(notes.Look(kConnecting, 9 * kSecond).value() == "connecting: nothing received yet (after 2 changes)");
}

TEST_CASE("after a quiet time the pause is short again") {
  StateNotes notes;
  for (int second = 0; second < 3600; ++second) {
    notes.Look(second % 2 == 0 ? kSynchronised : kSuspect, second * kSecond);
  }
  const MonotonicNanos later = 3600 * kSecond + 2 * StateNotes::kLongestPause;
  notes.Look(kSuspect, later);
  CHECK(notes.Look(kSynchronised, later + StateNotes::kQuiet).has_value());
  CHECK_FALSE(notes.Look(kSuspect, later + StateNotes::kQuiet + 1).has_value());
  CHECK(notes.Look(kSuspect, later + StateNotes::kQuiet + 2 * kSecond).has_value());
}

}  // namespace
}  // namespace kvwire::test
