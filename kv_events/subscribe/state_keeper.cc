// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/state_keeper.h"

namespace kvwire {

namespace {

constexpr std::string_view kSeveralReason = "several publishers feed this stream";
constexpr std::string_view kNumbersBackReason =
    "the publisher's numbers went back within one life, or the replay address is another publisher's";
constexpr std::string_view kAnswersOnlyReason =
    "every number was applied, by the replay address's word alone: nothing came live yet";

}  // namespace

void StateKeeper::Note(StreamFact fact) noexcept {
  switch (fact) {
    case StreamFact::kConnected:
      ever_connected_ = true;
      away_ = silent_ = false;
      return;
    case StreamFact::kDisconnected:
      away_ = true;
      return;
    case StreamFact::kSeveral:
      several_ = true;
      Lose(kSeveralReason);
      return;
    case StreamFact::kAlone:
      several_ = false;
      return;
    case StreamFact::kSilent:
      silent_ = true;
      return;
    case StreamFact::kUnanswered:
      unanswered_ = true;
      return;
    case StreamFact::kHeard:
      silent_ = false;
      return;
    case StreamFact::kAnswered:
      unanswered_ = false;
      return;
    case StreamFact::kBehind:
      behind_ = true;
      return;
    case StreamFact::kCaughtUp:
      behind_ = false;
      return;
    case StreamFact::kAnswersOnly:
      answers_only_ = true;
      return;
    case StreamFact::kAlsoLive:
      answers_only_ = false;
      return;
    case StreamFact::kNewLife:
      held_ = Held::kNothing;
      life_in_doubt_ = unreadable_ = numbers_back_ = false;
      if (several_) Lose(kSeveralReason);
      return;
    case StreamFact::kLifeInDoubt:
      life_in_doubt_ = true;
      return;
    case StreamFact::kSameLife:
      life_in_doubt_ = false;
      return;
    case StreamFact::kFirstNumber:
      NoteBaseline(!unreadable_);
      return;
    case StreamFact::kCleared:
    case StreamFact::kSnapshot:
    case StreamFact::kDigestMatches:
      NoteBaseline(true);
      return;
    case StreamFact::kJoinedLate:
      Lose("joined late: what was announced before is not known");
      return;
    case StreamFact::kMissing:
      Lose("messages are missing");
      return;
    case StreamFact::kDigestDiffers:
      if (held_ != Held::kPart) Lose("digest differs");
      return;
    case StreamFact::kVoid:
      Lose("a message could not be read");
      return;
    case StreamFact::kUnreadable:
      unreadable_ = true;
      return;
    case StreamFact::kContradicted:
      contradicted_ = true;
      return;
    case StreamFact::kAgreed:
      contradicted_ = false;
      return;
    case StreamFact::kNumbersBack:
      numbers_back_ = true;
      return;
    case StreamFact::kInOrder:
      numbers_back_ = false;
      return;
    case StreamFact::kUnsteady:
      Lose("the publisher begins anew again and again: it is asked after a pause");
      return;
    case StreamFact::kAsking:
    case StreamFact::kReplaying:
    case StreamFact::kTakingSnapshot:
    case StreamFact::kResting:
      activity_ = fact;
      return;
  }
}

void StateKeeper::NoteBaseline(bool readable) noexcept {
  if (several_) return;
  held_ = Held::kAll;
  life_in_doubt_ = false;
  if (readable) unreadable_ = false;
}

void StateKeeper::Lose(std::string_view reason) noexcept {
  held_ = Held::kPart;
  loss_ = reason;
}

StreamStatus StateKeeper::status() const noexcept {
  if (several_) return {StreamState::kUnsynchronised, kSeveralReason};
  if (contradicted_) {
    return {StreamState::kUnsynchronised,
            "live messages and answers differ: the replay address may be another publisher's"};
  }
  if (numbers_back_) return {StreamState::kUnsynchronised, kNumbersBackReason};
  if (activity_ == StreamFact::kAsking) return {StreamState::kRecovering, "the publisher is asked what was missed"};
  if (activity_ == StreamFact::kReplaying) return {StreamState::kRecovering, "a replay is under way"};
  if (activity_ == StreamFact::kTakingSnapshot) return {StreamState::kRecovering, "a snapshot is under way"};
  if (held_ == Held::kPart) return {StreamState::kUnsynchronised, loss_};
  if (held_ == Held::kNothing) {
    if (away_) return {StreamState::kConnecting, "the connection to the publisher ended"};
    return {StreamState::kConnecting, ever_connected_ ? "nothing received yet" : "not connected yet"};
  }
  if (away_) return {StreamState::kSuspect, "the connection to the publisher ended"};
  if (life_in_doubt_) return {StreamState::kSuspect, "nobody said whether the publisher is still the same"};
  if (silent_) return {StreamState::kSuspect, "no heartbeat for three intervals"};
  if (unanswered_) return {StreamState::kSuspect, "the publisher no longer answers"};
  if (behind_) return {StreamState::kSuspect, "the publisher has sent messages that did not come"};
  if (unreadable_) return {StreamState::kSuspect, "an event or a message could not be read"};
  return {StreamState::kSynchronised, answers_only_ ? kAnswersOnlyReason : "every number was applied"};
}

}  // namespace kvwire
