// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kv_events/clock.h"
#include "kv_events/wire/decoder.h"
#include "kv_events/wire/frames.h"

namespace kvwire {

// Whose stream it is, as its owner says; never guessed.
enum class Dialect : std::uint8_t { kVllm, kSglang, kXllm, kTrtllm };
inline constexpr std::size_t kNumDialects = 4;

// What the ROUTER answers to a number.
enum class ReplayForm : std::uint8_t {
  kHistory,  // what was sent from that number on
  kState,    // one message, the whole state as of its number, whatever was asked
};

// How a batch is read.
enum class DecodeRule : std::uint8_t {
  kLenient,  // an event that cannot be read is left out; what is held is in doubt
  kStrict,   // it fails its message, and what is held is void
};

struct DialectTraits {
  std::string_view name;
  ReplayForm replay = ReplayForm::kHistory;
  DecodeRule decode = DecodeRule::kLenient;
  HashBits hash_bits = HashBits::kLow64;
  SequenceNumber first_sequence = 0;
  bool extensions = true;                         // whether a hello may be asked: it does no harm where it is not known
  MonotonicNanos check_interval = 5'000'000'000;  // between two looks whether anything was lost
};

inline constexpr std::array<DialectTraits, kNumDialects> kDialects{{
    {"vllm", ReplayForm::kHistory, DecodeRule::kLenient, HashBits::kLow64, 0, true},
    {"sglang", ReplayForm::kHistory, DecodeRule::kLenient, HashBits::kFirst64, 0, true},
    {"xllm", ReplayForm::kState, DecodeRule::kStrict, HashBits::kLow64, 0, false, 30'000'000'000},
    {"trtllm", ReplayForm::kHistory, DecodeRule::kLenient, HashBits::kLow64, 0, true},
}};

constexpr const DialectTraits& TraitsOf(Dialect dialect) noexcept {
  return kDialects[static_cast<std::size_t>(dialect)];
}

constexpr std::optional<Dialect> DialectByName(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kNumDialects; ++i) {
    if (kDialects[i].name == name) return static_cast<Dialect>(i);
  }
  return std::nullopt;
}

}  // namespace kvwire
