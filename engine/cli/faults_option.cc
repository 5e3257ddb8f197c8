// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/faults_option.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

constexpr std::size_t kMaxFaultBytes = 1 << 20;

// The argument of --faults is the script itself if it looks like one.
Result<std::string> ReadFaults(const std::string& argument) {
  const std::size_t first = argument.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && argument[first] == '{') return argument;
  errno = 0;
  std::ifstream file(argument, std::ios::binary);
  std::string text(kMaxFaultBytes + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    return MakeError(ErrorCode::kUnavailable,
                     fmt::format("--faults: \"{}\": {}; allowed: a JSON object, or the path of a file of one",
                                 ShortText(argument), std::strerror(errno != 0 ? errno : EIO)));
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxFaultBytes) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("--faults: \"{}\" has more than {} bytes", ShortText(argument), kMaxFaultBytes));
  }
  return text;
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
