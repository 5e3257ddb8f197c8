// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include "kv_events/config.h"
#include "kv_events/error.h"

namespace kvwire::engine {

// --kv-events-config JSON and its dotted form, --kv-events-config.topic x, of the commands that publish. Dotted
// settings win over the JSON, wherever they stand. Ownership: outlives the parsing of the command it was added to.
class KVEventsOption {
 public:
  KVEventsOption() = default;
  KVEventsOption(const KVEventsOption&) = delete;
  KVEventsOption& operator=(const KVEventsOption&) = delete;

  void AddTo(CLI::App& command);

  // After parsing. The environment is the process's.
  Result<KVEventsConfig> Config() const;

 private:
  void AddDottedKeys(CLI::App& command, const std::string& prefix, const nlohmann::json& object);
  void AddDotted(CLI::App& command, const std::string& key, const std::string& description);

  std::string json_;
  std::vector<KVEventsConfig::DottedSetting> dotted_;
};

}  // namespace kvwire::engine
