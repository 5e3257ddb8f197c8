// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv_events/digest.h"
#include "kv_events/subscribe/event_stream.h"
#include "kv_events/subscribe/held_blocks.h"
#include "kv_events/wire/frames.h"

namespace kvwire::test {

// A publisher, a network and a consumer reduced to what matters for the question whether the consumer can be wrong:
// small enough to try every sequence of what can happen to a batch.

// What happens at a step. Each publishes a batch; a reader with a link that watches its peers sees restarts there, too.
enum class Step : std::uint8_t {
  kDeliver,
  kDrop,           // the replay has it
  kDuplicate,      // delivered twice
  kDelay,          // delivered as the last of its connection
  kUndecodable,    // delivered as a byte that is no batch; the replay has the true one
  kClear,          // AllBlocksCleared, delivered
  kRestartAtZero,  // another life, whose first batch is delivered
  kRestartPast,    // another life; what is delivered first is the number expected next, what came before was missed
};
inline constexpr std::size_t kNumSteps = 8;
std::string_view ToString(Step step) noexcept;
std::string ToString(std::span<const Step> steps);

enum class Mode : std::uint8_t { kNoReplay, kReplay, kReplayHello };
std::string_view ToString(Mode mode) noexcept;

enum class Ending : std::uint8_t {
  kHeartbeat,  // an empty batch with a number follows the last step
  kSilent,
};
enum class Peers : std::uint8_t { kWatched, kUnwatched };

enum class Pace : std::uint8_t {
  kEachStep,  // the consumer has done all its work before the next step
  kAtEnd,     // it was stopped, and finds everything at once
};
std::string_view ToString(Pace pace) noexcept;

enum class Room : std::uint8_t {
  kAmple,
  kScarce,  // the replay has the last two batches, and two live messages may wait for one
};
std::string_view ToString(Room room) noexcept;

struct SearchOptions {
  Mode mode = Mode::kReplay;
  Ending ending = Ending::kHeartbeat;
  Peers peers = Peers::kWatched;
  Pace pace = Pace::kEachStep;
  Room room = Room::kAmple;
};

// What is so when nothing moves any more.
struct SearchResult {
  StreamStatus status;
  bool equal = false;  // the consumer holds what the publisher holds

  bool claimed() const noexcept { return status.state == StreamState::kSynchronised; }
  bool wrong() const noexcept { return claimed() && !equal; }
};

// Runs one sequence from the beginning.
SearchResult Run(const SearchOptions& options, std::span<const Step> steps);

}  // namespace kvwire::test
