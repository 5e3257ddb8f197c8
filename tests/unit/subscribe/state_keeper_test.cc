// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/state_keeper.h"

#include <string_view>
#include <vector>

#include <doctest/doctest.h>

namespace kvwire::test {
namespace {

using F = StreamFact;

struct Row {
  std::vector<F> facts;
  StreamState state;
  std::string_view reason;
};

constexpr std::string_view kWhole = "every number was applied";
constexpr std::string_view kLate = "joined late: what was announced before is not known";
constexpr std::string_view kDoubt = "nobody said whether the publisher is still the same";
constexpr std::string_view kUnread = "an event or a message could not be read";
constexpr std::string_view kEnded = "the connection to the publisher ended";
constexpr std::string_view kContradiction =
    "live messages and answers differ: the replay address may be another publisher's";
constexpr std::string_view kBack =
    "the publisher's numbers went back within one life, or the replay address is another publisher's";
constexpr std::string_view kAnswers =
    "every number was applied, by the replay address's word alone: nothing came live yet";
constexpr std::string_view kMany = "several publishers feed this stream";

TEST_CASE("C9, C12, C14, C19, J5: the state of a stream and its reason, by what happened to it") {
  const std::vector<Row> rows{
      // Connecting.
      {{}, StreamState::kConnecting, "not connected yet"},
      {{F::kConnected}, StreamState::kConnecting, "nothing received yet"},
      {{F::kConnected, F::kDisconnected}, StreamState::kConnecting, kEnded},
      {{F::kConnected, F::kDisconnected, F::kConnected}, StreamState::kConnecting, "nothing received yet"},
      {{F::kConnected, F::kFirstNumber, F::kNewLife}, StreamState::kConnecting, "nothing received yet"},
      // Baselines.
      {{F::kFirstNumber}, StreamState::kSynchronised, kWhole},
      {{F::kCleared}, StreamState::kSynchronised, kWhole},
      {{F::kSnapshot}, StreamState::kSynchronised, kWhole},
      {{F::kDigestMatches}, StreamState::kSynchronised, kWhole},
      {{F::kAnswersOnly, F::kFirstNumber}, StreamState::kSynchronised, kAnswers},
      {{F::kAnswersOnly, F::kSnapshot, F::kAlsoLive}, StreamState::kSynchronised, kWhole},
      {{F::kAnswersOnly, F::kMissing}, StreamState::kUnsynchronised, "messages are missing"},
      // Losses, and what ends them.
      {{F::kJoinedLate}, StreamState::kUnsynchronised, kLate},
      {{F::kFirstNumber, F::kMissing}, StreamState::kUnsynchronised, "messages are missing"},
      {{F::kFirstNumber, F::kDigestDiffers}, StreamState::kUnsynchronised, "digest differs"},
      {{F::kJoinedLate, F::kDigestDiffers}, StreamState::kUnsynchronised, kLate},
      {{F::kFirstNumber, F::kVoid}, StreamState::kUnsynchronised, "a message could not be read"},
      {{F::kJoinedLate, F::kCleared}, StreamState::kSynchronised, kWhole},
      {{F::kFirstNumber, F::kMissing, F::kSnapshot}, StreamState::kSynchronised, kWhole},
      {{F::kFirstNumber, F::kMissing, F::kDigestMatches}, StreamState::kSynchronised, kWhole},
      {{F::kMissing, F::kNewLife, F::kFirstNumber}, StreamState::kSynchronised, kWhole},
      {{F::kFirstNumber, F::kMissing, F::kSameLife}, StreamState::kUnsynchronised, "messages are missing"},
      // Several publishers.
      {{F::kFirstNumber, F::kSeveral}, StreamState::kUnsynchronised, kMany},
      {{F::kSeveral, F::kFirstNumber}, StreamState::kUnsynchronised, kMany},
      {{F::kSeveral, F::kSnapshot, F::kAlone}, StreamState::kUnsynchronised, kMany},
      {{F::kSeveral, F::kNewLife, F::kAlone}, StreamState::kUnsynchronised, kMany},
      {{F::kFirstNumber, F::kSeveral, F::kAlone, F::kSnapshot}, StreamState::kSynchronised, kWhole},
      {{F::kFirstNumber, F::kSeveral, F::kReplaying}, StreamState::kUnsynchronised, kMany},
      // Doubts, and what ends them.
      {{F::kConnected, F::kFirstNumber, F::kLifeInDoubt, F::kDisconnected}, StreamState::kSuspect, kEnded},
      {{F::kFirstNumber, F::kLifeInDoubt, F::kDisconnected, F::kConnected}, StreamState::kSuspect, kDoubt},
      {{F::kFirstNumber, F::kLifeInDoubt, F::kSameLife}, StreamState::kSynchronised, kWhole},
      {{F::kFirstNumber, F::kLifeInDoubt, F::kCleared}, StreamState::kSynchronised, kWhole},
      {{F::kFirstNumber, F::kLifeInDoubt, F::kNewLife}, StreamState::kConnecting, "not connected yet"},
      {{F::kJoinedLate, F::kLifeInDoubt, F::kDisconnected}, StreamState::kUnsynchronised, kLate},
      {{F::kFirstNumber, F::kSilent}, StreamState::kSuspect, "no heartbeat for three intervals"},
      {{F::kFirstNumber, F::kSilent, F::kHeard}, StreamState::kSynchronised, kWhole},
      {{F::kFirstNumber, F::kSilent, F::kConnected}, StreamState::kSynchronised, kWhole},
      {{F::kFirstNumber, F::kSilent, F::kAnswered}, StreamState::kSuspect, "no heartbeat for three intervals"},
      {{F::kFirstNumber, F::kUnanswered}, StreamState::kSuspect, "the publisher no longer answers"},
      {{F::kFirstNumber, F::kUnanswered, F::kHeard}, StreamState::kSuspect, "the publisher no longer answers"},
      {{F::kFirstNumber, F::kUnanswered, F::kAnswered}, StreamState::kSynchronised, kWhole},
      {{F::kFirstNumber, F::kBehind}, StreamState::kSuspect, "the publisher has sent messages that did not come"},
      {{F::kFirstNumber, F::kBehind, F::kCaughtUp}, StreamState::kSynchronised, kWhole},
      {{F::kFirstNumber, F::kUnreadable}, StreamState::kSuspect, kUnread},
      {{F::kUnreadable, F::kFirstNumber}, StreamState::kSuspect, kUnread},
      {{F::kFirstNumber, F::kUnreadable, F::kSameLife}, StreamState::kSuspect, kUnread},
      {{F::kFirstNumber, F::kUnreadable, F::kCleared}, StreamState::kSynchronised, kWhole},
      {{F::kFirstNumber, F::kUnreadable, F::kSnapshot}, StreamState::kSynchronised, kWhole},
      {{F::kFirstNumber, F::kUnreadable, F::kDigestMatches}, StreamState::kSynchronised, kWhole},
      {{F::kFirstNumber, F::kUnreadable, F::kNewLife, F::kFirstNumber}, StreamState::kSynchronised, kWhole},
      {{F::kJoinedLate, F::kUnreadable}, StreamState::kUnsynchronised, kLate},
      // Answers that are not of the publisher that is heard: nothing but agreement helps.
      {{F::kFirstNumber, F::kContradicted}, StreamState::kUnsynchronised, kContradiction},
      {{F::kContradicted, F::kNewLife, F::kFirstNumber}, StreamState::kUnsynchronised, kContradiction},
      {{F::kContradicted, F::kSnapshot, F::kDigestMatches, F::kReplaying},
       StreamState::kUnsynchronised,
       kContradiction},
      {{F::kContradicted, F::kFirstNumber, F::kAgreed}, StreamState::kSynchronised, kWhole},
      {{F::kNewLife, F::kNumbersBack}, StreamState::kUnsynchronised, kBack},
      {{F::kNumbersBack, F::kFirstNumber, F::kSnapshot}, StreamState::kUnsynchronised, kBack},
      {{F::kNumbersBack, F::kFirstNumber, F::kInOrder}, StreamState::kSynchronised, kWhole},
      {{F::kNumbersBack, F::kNewLife, F::kFirstNumber}, StreamState::kSynchronised, kWhole},
      {{F::kNewLife, F::kUnsteady},
       StreamState::kUnsynchronised,
       "the publisher begins anew again and again: it is asked after a pause"},
      {{F::kNewLife, F::kUnsteady, F::kFirstNumber}, StreamState::kSynchronised, kWhole},
      // What is being done about it, whatever the rest.
      {{F::kAsking}, StreamState::kRecovering, "the publisher is asked what was missed"},
      {{F::kFirstNumber, F::kReplaying}, StreamState::kRecovering, "a replay is under way"},
      {{F::kJoinedLate, F::kTakingSnapshot}, StreamState::kRecovering, "a snapshot is under way"},
      {{F::kFirstNumber, F::kReplaying, F::kResting}, StreamState::kSynchronised, kWhole},
      {{F::kReplaying, F::kMissing, F::kResting}, StreamState::kUnsynchronised, "messages are missing"},
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CAPTURE(i);
    StateKeeper keeper;
    for (const F fact : rows[i].facts) keeper.Note(fact);
    CHECK(ToString(keeper.status().state) == ToString(rows[i].state));
    CHECK(keeper.status().reason == rows[i].reason);
  }
}

}  // namespace
}  // namespace kvwire::test
