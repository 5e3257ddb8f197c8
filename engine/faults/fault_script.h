// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv_events/block_hash.h"
#include "kv_events/error.h"
#include "kv_events/wire/frames.h"

namespace kvwire::engine {

// What goes wrong, on purpose. The first four happen to the live message; the replay buffer has the true one.
enum class FaultKind : std::uint8_t {
  kDrop,         // is not sent
  kDuplicate,    // is sent twice
  kDelay,        // is sent later, and so is everything behind it
  kUndecodable,  // carries bytes that no decoder accepts
  kOverflow,     // the batch is dropped as if the queue were full: its number is burnt, no replay has it
  kEvict,        // a block leaves the prefix cache
  kPreempt,      // the newest running request is preempted
  kReset,        // the prefix cache is emptied, running requests are preempted
  kRestart,      // the engine is replaced, as if its process had crashed and come back
};
inline constexpr std::size_t kNumFaultKinds = 9;

std::string_view ToString(FaultKind kind) noexcept;

// Who carries a kind of fault out.
enum class FaultPlace : std::uint8_t {
  kLink,    // between publisher and socket
  kQueue,   // where the step hands its batch over
  kEngine,  // between two steps
};

FaultPlace PlaceOf(FaultKind kind) noexcept;

// A kind, when it happens, and what the kind needs. A value.
struct Fault {
  FaultKind kind = FaultKind::kDrop;

  // Exactly one of these: with the batch of this number, once; with every batch whose number is a multiple; with each
  // batch by chance, 0 to 1.
  std::optional<SequenceNumber> at;
  std::optional<std::uint64_t> every;
  std::optional<double> probability;
  std::optional<std::uint64_t> count;  // not with `at`: so many times at most

  std::uint32_t delay_ms = 0;                  // kDelay
  BlockHash block;                             // kEvict: a block's name, see ParseBlockName
  std::optional<std::uint32_t> group;          // kEvict: of this KV-cache group only
  std::optional<SequenceNumber> first_number;  // kRestart; else a few above the last one

  friend bool operator==(const Fault&, const Fault&) = default;
};

// Which batches of a stream meet which faults. What happens depends on the script and on the batches' numbers alone,
// not on time: the same stream meets the same faults again.
//
// A value. Source: docs/faults.md.
struct FaultScript {
  static constexpr std::size_t kMaxFaults = 1000;
  static constexpr std::uint32_t kMaxDelayMs = 60'000;
  static constexpr std::uint32_t kMaxGroup = 0xffff;
  static constexpr SequenceNumber kMaxNumber = ~SequenceNumber{0} >> 1;

  std::uint64_t seed = 0;
  std::vector<Fault> faults;

  friend bool operator==(const FaultScript&, const FaultScript&) = default;

  // {"seed": 7, "faults": [{"kind": "drop", "at": 12}, {"kind": "delay", "probability": 0.01, "ms": 50}]}. Keys that
  // are not known, or not of the kind, are refused.
  // Errors: kInvalidArgument names the field, its value and what is allowed.
  static Result<FaultScript> FromJson(std::string_view json);
  std::string ToJson() const;

  // Whether all values are in their ranges; FromJson's scripts are. Errors: as FromJson.
  Status Check() const;
  // Refuses kinds that are carried out elsewhere. `who` begins the message: "play".
  Status CheckPlaces(std::span<const FaultPlace> allowed, std::string_view who) const;
};

// A block by all bytes of its hash, 32 of SHA-256 or 16 of XXH3-128, or by their last 64 bits, as the wire's integers
// and KVState have it: 64, 32 or 16 hexadecimal digits, of which a hash of half as many bytes is made.
// Errors: kInvalidArgument, `field` first.
Result<BlockHash> ParseBlockName(std::string_view text, std::string_view field);

}  // namespace kvwire::engine
