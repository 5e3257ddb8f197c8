// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "kv_events/subscribe/stream_state.h"

namespace kvwire {

// What happens to a stream, as far as it bears on whether what was received can be believed.
enum class StreamFact : std::uint8_t {
  // Connections.
  kConnected,
  kDisconnected,  // nobody is connected any more
  kSeveral,       // more than one publisher is connected
  kAlone,         // no longer so
  kSilent,        // nothing was heard for three heartbeats
  kUnanswered,    // a publisher that answered a hello does not answer the next one
  kHeard,         // a message came live
  kAnswered,      // a hello was answered
  kBehind,        // the publisher has sent what did not come for some time
  kCaughtUp,      // it came
  kAnswersOnly,   // nothing came live of this life
  kAlsoLive,      // something did
  // Lives.
  kNewLife,      // another publisher, or nobody knows whose: what was applied is void
  kLifeInDoubt,  // the connection ended: what comes next may be of another life
  kSameLife,     // it is not
  // Baselines: what is held is all there is.
  kFirstNumber,  // the first message of the life was applied, or it has sent none
  kCleared,      // AllBlocksCleared
  kSnapshot,     // a snapshot was applied to its end
  kDigestMatches,
  // Losses.
  kJoinedLate,
  kMissing,
  kDigestDiffers,
  kVoid,        // a message or an event could not be read, in a dialect that allows none
  kUnreadable,  // ... in a dialect that goes on without it
  // Answers.
  kContradicted,  // they are not of the publisher that is heard
  kAgreed,        // they are
  kNumbersBack,   // the publisher named a number that was passed, in the same life
  kInOrder,       // it named one that was not
  kUnsteady,      // lives follow each other quickly: the new one is not asked yet
  // What is being done about it.
  kAsking,  // who the publisher is, or what came before
  kReplaying,
  kTakingSnapshot,
  kResting,  // nothing
};

// The state of a stream as a function of what happened to it.
//   Baselines make it synchronised, losses unsynchronised until the next baseline, doubts suspect: a connection that
//   ended until the life is known to go on, silence until something is heard, an unreadable event until the next
//   baseline but kFirstNumber. While answers contradict what is heard, no baseline helps until they agree; while
//   several publishers are connected, nothing is a baseline.
// A value. Threads: one thread at a time.
class StateKeeper {
 public:
  void Note(StreamFact fact) noexcept;
  StreamStatus status() const noexcept;
  // Whether a baseline would change nothing.
  bool whole() const noexcept { return held_ == Held::kAll && !unreadable_ && !several_; }
  bool contradicted() const noexcept { return contradicted_; }

 private:
  enum class Held : std::uint8_t { kNothing, kPart, kAll };

  void NoteBaseline(bool readable) noexcept;
  void Lose(std::string_view reason) noexcept;

  Held held_ = Held::kNothing;
  std::string_view loss_;  // kPart: why
  StreamFact activity_ = StreamFact::kResting;
  bool ever_connected_ = false;
  bool away_ = false;
  bool several_ = false;
  bool contradicted_ = false;
  bool numbers_back_ = false;
  bool silent_ = false;
  bool unanswered_ = false;
  bool behind_ = false;
  bool answers_only_ = false;
  bool life_in_doubt_ = false;
  bool unreadable_ = false;
};

}  // namespace kvwire
