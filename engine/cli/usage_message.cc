// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/usage_message.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

std::string Commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  std::sort(names.begin(), names.end());
  return fmt::format("commands: {}", fmt::join(names, ", "));
}

// The keys that the dotted option `flag.key` of the chosen command has, when `unknown` is such an option.
std::string KnownKeys(const CLI::App& app, const std::string& unknown) {
  const std::size_t dot = unknown.find('.');
  if (!unknown.starts_with("--") || dot == std::string::npos) return {};
  const std::string prefix = unknown.substr(0, dot + 1);
  std::string keys;
  for (const CLI::App* command : app.get_subcommands()) {
    for (const CLI::Option* option : command->get_options()) {
      const std::string name = option->get_name();
      if (name.starts_with(prefix)) keys += (keys.empty() ? "" : ", ") + name.substr(prefix.size());
    }
  }
  return keys.empty() ? keys : fmt::format("; known keys: {}", keys);
}

std::string Explain(const CLI::App& app, const CLI::Error& error) {
  const std::vector<std::string> rest = app.remaining(true);
  if (app.get_subcommands().empty()) {
    if (rest.empty()) return fmt::format("a command is missing; {}", Commands(app));
    return fmt::format("\"{}\" is not known; {}", ShortText(rest.front()), Commands(app));
  }
  const auto* const extras = dynamic_cast<const CLI::ExtrasError*>(&error);
  if (extras == nullptr || rest.empty()) return EscapeText(error.what());
  const auto option = std::find_if(rest.begin(), rest.end(), [](const auto& text) { return text.starts_with("-"); });
  const std::string& unknown = option == rest.end() ? rest.front() : *option;
  return fmt::format("\"{}\" is not known{}", ShortText(unknown), KnownKeys(app, unknown.substr(0, unknown.find('='))));
}

}  // namespace

std::string UsageMessage(const CLI::App* app, const CLI::Error& error) {
  return fmt::format("kvwire: {}\nRun with --help for more information.\n", Explain(*app, error));
}

}  // namespace kvwire::engine
