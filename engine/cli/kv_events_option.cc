// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/kv_events_option.h"

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
  std::vector<std::string> keys{"publisher", "replay_endpoint", "kvwire"};
  for (const auto& item : defaults.items()) {
    if (item.key() != "publisher" && item.key() != "replay_endpoint" && item.key() != "kvwire") {
      keys.push_back(item.key());
    }
    if (!item.value().is_object()) continue;
    for (const auto& inner : item.value().items()) keys.push_back(item.key() + "." + inner.key());
  }
  for (const std::string& key : keys) {
    const bool nested = key.find('.') != std::string::npos;
    const std::string top = nested ? key.substr(0, key.find('.')) : key;
    const auto value = defaults.find(top);
    std::string text;
    if (value != defaults.end() && nested) text = value->at(key.substr(top.size() + 1)).dump();
    if (value != defaults.end() && !nested && !value->is_object() && !value->is_null()) text = value->dump();
    AddDotted(command, key, text.empty() ? "" : "default " + text);
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
  return KVEventsConfig::FromArguments(json_, dotted_, ProcessEnvironment);
}

}  // namespace kvwire::engine
