// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/faults_option.h"

#include <utility>

#include <fmt/format.h>

#include "kv_events/text_file.h"

namespace kvwire::engine {

namespace {

constexpr std::size_t kMaxFaultBytes = 1 << 20;

// The argument of --faults is the script itself if it looks like one.
Result<std::string> ReadFaults(const std::string& argument) {
  const std::size_t first = argument.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && argument[first] == '{') return argument;
  Result<std::string> text = ReadTextFile(argument, kMaxFaultBytes);
  if (text) return text;
  const bool unreadable = text.error().code == ErrorCode::kUnavailable;
  return MakeError(text.error().code,
                   fmt::format("--faults: {}{}", text.error().message,
                               unreadable ? "; allowed: a JSON object, or the path of a file of one" : ""));
}

}  // namespace

Result<std::shared_ptr<const FaultScript>> ReadFaultScript(const std::string& argument) {
  if (argument.empty()) return nullptr;
  const Result<std::string> text = ReadFaults(argument);
  if (!text) return tl::unexpected<Error>(text.error());
  Result<FaultScript> script = FaultScript::FromJson(*text);
  if (!script) return MakeError(script.error().code, "--faults: " + script.error().message);
  return std::make_shared<const FaultScript>(*std::move(script));
}

}  // namespace kvwire::engine
