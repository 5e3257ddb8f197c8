// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kv_events/wire/frames.h"

namespace kvwire {

// How far what was received of a stream can be believed.
enum class StreamState : std::uint8_t {
  kConnecting,      // nobody is connected, or nothing is known yet
  kUnsynchronised,  // what is held may be incomplete: there is no baseline, or something is missing
  kRecovering,      // a replay or a snapshot is under way
  kSynchronised,    // what is held is what the publisher said up to the last number
  kSuspect,         // it was, and something speaks against it: a lost connection, silence, an unreadable event
};
inline constexpr std::size_t kNumStreamStates = 5;

constexpr std::string_view ToString(StreamState state) noexcept {
  constexpr std::array<std::string_view, kNumStreamStates> kNames = {"connecting", "unsynchronised", "recovering",
                                                                     "synchronised", "suspect"};
  return kNames[static_cast<std::size_t>(state)];
}

// A place in the stream from which nobody could go on; its numbers from there on are missing, or a snapshot stands for
// them.
struct ResumeRefusal {
  SequenceNumber asked = 0;
  // What the publisher has: as its last hello says; nothing from who answers none, or has none.
  std::optional<SequenceNumber> oldest;
  std::optional<SequenceNumber> newest;

  friend bool operator==(const ResumeRefusal&, const ResumeRefusal&) = default;
};

// The state and, in a few words, why; the text lives for ever.
struct StreamStatus {
  StreamState state = StreamState::kConnecting;
  std::string_view reason = "not connected yet";
  std::optional<ResumeRefusal> refused = std::nullopt;  // the first since what is held was all there is
  bool replay_silent = false;                           // the replay was asked, and does not answer; not synchronised

  // The reason and, if there is one, the refusal: "messages are missing: cannot resume from 3, oldest=7 newest=9"; and
  // "; the replay does not answer".
  std::string Reason() const;

  friend bool operator==(const StreamStatus&, const StreamStatus&) = default;
};

}  // namespace kvwire
