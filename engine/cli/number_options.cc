// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/number_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

// Half of what MonotonicNanos holds: 146 years.
constexpr double kMostNanos = 4.6e18;

template <class T>
std::optional<T> Parse(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

[[noreturn]] void Refuse(const std::string& flag, std::string_view text, const std::string& allowed) {
  throw CLI::ValidationError(flag, fmt::format("\"{}\" is not allowed; allowed: {}", ShortText(text), allowed));
}

CLI::Option* Add(CLI::App& command, const std::string& flag, double* value, const std::string& description,
                 const std::string& what) {
  const auto take = [flag, value, what](const std::string& text) {
    const std::optional<double> given = Parse<double>(text);
    if (!given || !(*given >= 0 && *given <= kLargestNumber)) {
      Refuse(flag, text, fmt::format("{} from 0 to {:.0f}", what, kLargestNumber));
    }
    *value = *given;
  };
  return command.add_option_function<std::string>(flag, take, description)
      ->type_name("NUMBER")
      ->default_str(fmt::format("{}", *value));
}

}  // namespace

CLI::Option* AddCountFunction(CLI::App& command, const std::string& flag, std::uint64_t value, CountRange range,
                              std::function<void(std::uint64_t)> set, const std::string& description) {
  const auto take = [flag, range, set = std::move(set)](const std::string& text) {
    const std::optional<std::uint64_t> given = Parse<std::uint64_t>(text);
    if (!given || *given < range.least || *given > range.most) {
      Refuse(flag, text, fmt::format("a whole number from {} to {}", range.least, range.most));
    }
    set(*given);
  };
  return command.add_option_function<std::string>(flag, take, description)
      ->type_name("COUNT")
      ->default_str(fmt::format("{}", value));
}

CLI::Option* AddNumber(CLI::App& command, const std::string& flag, double* value, const std::string& description) {
  return Add(command, flag, value, description, "a number");
}

CLI::Option* AddSeconds(CLI::App& command, const std::string& flag, double* value, const std::string& description) {
  return Add(command, flag, value, description, "seconds");
}

MonotonicNanos NanosOf(double seconds) noexcept {
  if (std::isnan(seconds)) return 0;
  return static_cast<MonotonicNanos>(std::clamp(seconds * 1e9, -kMostNanos, kMostNanos));
}

}  // namespace kvwire::engine
