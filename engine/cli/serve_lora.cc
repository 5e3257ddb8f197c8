// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/serve_lora.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

using Json = nlohmann::json;

tl::unexpected<Error> Refuse(const std::string& value, std::string_view allowed) {
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("--lora-modules: \"{}\"; allowed: {}", ShortText(value), allowed));
}

Result<LoraModule> ParseOne(const std::string& value) {
  constexpr std::string_view kForms =
      "NAME=PATH, or a JSON object of the texts name, path and, if wanted, base_model_name";
  LoraModule module;
  if (!value.starts_with('{')) {
    const std::size_t equals = value.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == value.size()) return Refuse(value, kForms);
    module.name = value.substr(0, equals);
    module.path = value.substr(equals + 1);
    return module;
  }
  const Json json = Json::parse(value, nullptr, false);
  if (!json.is_object()) return Refuse(value, kForms);
  for (const auto& [key, text] : json.items()) {
    std::string* const member = key == "name"              ? &module.name
                                : key == "path"            ? &module.path
                                : key == "base_model_name" ? &module.parent
                                                           : nullptr;
    if (key == "base_model_name" && text.is_null()) continue;
    if (member == nullptr || !text.is_string()) return Refuse(value, kForms);
    *member = text.get<std::string>();
  }
  if (module.name.empty() || module.path.empty()) return Refuse(value, kForms);
  return module;
}

}  // namespace

Result<std::vector<LoraModule>> ParseLoraModules(std::span<const std::string> values,
                                                 std::span<const std::string> models) {
  std::vector<LoraModule> modules;
  for (const std::string& value : values) {
    Result<LoraModule> module = ParseOne(value);
    if (!module) return tl::unexpected<Error>(std::move(module).error());
    const bool taken = std::ranges::find(models, module->name) != models.end() ||
                       std::ranges::find(modules, module->name, &LoraModule::name) != modules.end();
    if (taken) return Refuse(value, "a name that no model and no other adapter has");
    if (module->parent.empty()) module->parent = models.front();
    modules.push_back(*std::move(module));
  }
  return modules;
}

}  // namespace kvwire::engine
