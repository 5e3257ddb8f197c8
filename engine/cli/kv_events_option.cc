// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/kv_events_option.h"

#include <string_view>

#include <nlohmann/json.hpp>

namespace kvwire::engine {

namespace {

constexpr const char* kFlag = "--kv-events-config";
constexpr const char* kGroup = "KV events, one key at a time";

}  // namespace

void KVEventsOption::AddTo(CLI::App& command) {
  command.add_option(kFlag, json_, "What is published and where, as JSON in vLLM's spelling");
  // The keys are those that the configuration itself prints, so that this list cannot fall behind. Keys it does not
  // print because they are unset by default are added by name.
  const nlohmann::json defaults = nlohmann::json::parse(KVEventsConfig{}.ToJson(), nullptr, false);
  AddDotted(command, "publisher", "");
  AddDottedKeys(command, "", defaults);
}

// A key of each value and of each object, to any depth.
void KVEventsOption::AddDottedKeys(CLI::App& command, const std::string& prefix, const nlohmann::json& object) {
  for (const auto& [name, value] : object.items()) {
    const std::string key = prefix + name;
    AddDotted(command, key, value.is_object() || value.is_null() ? "" : "default " + value.dump());
    if (value.is_object()) AddDottedKeys(command, key + ".", value);
  }
}

void KVEventsOption::AddDotted(CLI::App& command, const std::string& key, const std::string& description) {
  command
      .add_option_function<std::string>(
          std::string(kFlag) + "." + key,
          [this, key](const std::string& value) {
            dotted_.push_back({key, value});
          },
          description)
      ->group(kGroup);
}

Result<KVEventsConfig> KVEventsOption::Config() const {
  Result<KVEventsConfig> config = KVEventsConfig::FromArguments(json_, dotted_, ProcessEnvironment);
  if (config) return config;
  // The library calls the configuration by its name in Python.
  constexpr std::string_view kName = "kv-events-config: ";
  std::string_view message = config.error().message;
  if (message.starts_with(kName)) message.remove_prefix(kName.size());
  return MakeError(config.error().code, std::string(kFlag) + ": " + std::string(message));
}

}  // namespace kvwire::engine
