// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvwire {

// What an EventStream counts, since it was made. A value.
struct EventStreamStats {
  std::uint64_t live_messages = 0;  // well-formed live messages, duplicates included
  std::uint64_t applied = 0;        // batches handed to the sink
  std::uint64_t replayed = 0;       // of those, from a replay
  std::uint64_t other_topic = 0;    // replayed messages that were left out for their topic
  std::uint64_t left_out = 0;       // live messages that were dropped: of a life that is over, or maybe of it
  std::uint64_t undecodable = 0;
  std::uint64_t rejected_events = 0;
  std::uint64_t malformed = 0;  // live messages that are not three frames with a number
  std::uint64_t duplicates = 0;
  std::uint64_t restarts = 0;
  std::uint64_t recoveries = 0;
  std::uint64_t healed = 0;           // gaps closed by a replay
  std::uint64_t gaps = 0;             // gaps given up
  std::uint64_t missing = 0;          // numbers in them
  std::uint64_t replay_attempts = 0;  // requests for replay
  std::uint64_t replay_malformed = 0;
  std::uint64_t hellos_asked = 0;
  std::uint64_t hellos = 0;            // answered by a kvwire publisher
  std::uint64_t snapshots = 0;         // applied to their end
  std::uint64_t snapshots_failed = 0;  // attempts
  std::uint64_t superseded = 0;        // numbers that were not applied because a snapshot has their effect
  std::uint64_t digests_compared = 0;
  std::uint64_t digests_differed = 0;
  std::uint64_t contradictions = 0;
  std::uint64_t renewed = 0;  // live links given up because they were mute

  friend bool operator==(const EventStreamStats&, const EventStreamStats&) = default;
};

}  // namespace kvwire
