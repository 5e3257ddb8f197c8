// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include <CLI/CLI.hpp>

#include "kv_events/clock.h"

namespace kvwire::engine {

// Options that take a number. `value` holds the default, outlives the parsing, and changes only to an allowed number.
// Errors: CLI::ValidationError names the flag, the value and the allowed range.

// Bound of all numbers that are no counts: a billion seconds are 31 years, and their nanoseconds fit.
inline constexpr double kLargestNumber = 1e9;

// A whole number, written with decimal digits only.
struct CountRange {
  std::uint64_t least = 0;
  std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
};

// AddCount without the type. REQUIRES: `set` takes every number of the range.
CLI::Option* AddCountFunction(CLI::App& command, const std::string& flag, std::uint64_t value, CountRange range,
                              std::function<void(std::uint64_t)> set, const std::string& description);

// The range ends at the type's largest value at the latest.
template <std::unsigned_integral T>
CLI::Option* AddCount(CLI::App& command, const std::string& flag, T* value, CountRange range,
                      const std::string& description) {
  range.most = std::min<std::uint64_t>(range.most, std::numeric_limits<T>::max());
  return AddCountFunction(
      command, flag, *value, range, [value](std::uint64_t given) { *value = static_cast<T>(given); }, description);
}

// A finite number from 0 to kLargestNumber.
CLI::Option* AddNumber(CLI::App& command, const std::string& flag, double* value, const std::string& description);

// The same in seconds.
CLI::Option* AddSeconds(CLI::App& command, const std::string& flag, double* value, const std::string& description);

// What does not fit becomes the nearest time that can be added to any Clock's Now(); NaN becomes 0.
MonotonicNanos NanosOf(double seconds) noexcept;

}  // namespace kvwire::engine
