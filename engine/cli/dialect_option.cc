// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/dialect_option.h"

#include <vector>

#include "kv_events/subscribe/dialect.h"

namespace kvwire::engine {

void AddDialectOption(CLI::App& command, std::string* name) {
  std::vector<std::string> dialects;
  dialects.reserve(kDialects.size());
  for (const DialectTraits& traits : kDialects) dialects.emplace_back(traits.name);
  command.add_option("--dialect", *name, "Whose stream it is")->check(CLI::IsMember(dialects))->capture_default_str();
}

}  // namespace kvwire::engine
