// SPDX-License-Identifier: Apache-2.0
#include "engine/model_config.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "kv_events/escape_text.h"
#include "kv_events/text_file.h"

namespace kvwire::engine {

namespace {

using OrderedJson = nlohmann::ordered_json;
using scheduler::KVCacheGroup;
using scheduler::KVCacheKind;

constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr int kMaxDepth = 8;
constexpr std::uint32_t kMaxTokens = 1u << 30;

constexpr std::array kKinds = {KVCacheKind::kFullAttention, KVCacheKind::kSlidingWindow, KVCacheKind::kMamba};
constexpr std::array<std::string_view, 3> kKeys = {"hash_block_size", "groups", "partial_blocks"};
constexpr std::array<std::string_view, 3> kGroupKeys = {"kind", "block_size", "sliding_window"};

tl::unexpected<Error> Refuse(std::string_view field, std::string_view value, std::string_view allowed) {
  return MakeError(ErrorCode::kInvalidArgument, fmt::format("{} is {}; allowed: {}", field, value, allowed));
}

// A value as it goes into a message.
std::string Show(const OrderedJson& value) {
  return ShortText(value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
}

Status CheckKeys(const OrderedJson& object, const std::string& where, std::span<const std::string_view> known) {
  if (!object.is_object()) return Refuse(where, Show(object), "an object");
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    return Refuse(where, fmt::format("an object with the key \"{}\"", ShortText(key)),
                  fmt::format("the keys {}", fmt::join(known, ", ")));
  }
  return {};
}

// Nothing when the key is missing.
Result<std::optional<std::uint32_t>> ReadTokens(const OrderedJson& object, std::string_view key,
                                                const std::string& field) {
  const auto found = object.find(key);
  if (found == object.end()) return std::nullopt;
  const bool fits = found->is_number_unsigned() && *found >= 1u && *found <= kMaxTokens;
  if (!fits) return Refuse(field, Show(*found), fmt::format("1 to {} tokens", kMaxTokens));
  return found->get<std::uint32_t>();
}

Result<KVCacheKind> ReadKind(const OrderedJson& object, const std::string& field) {
  const auto found = object.find("kind");
  const std::string allowed = "\"full_attention\", \"sliding_window\" or \"mamba\"";
  if (found == object.end()) return Refuse(field, "missing", allowed);
  if (found->is_string()) {
    for (const KVCacheKind kind : kKinds) {
      if (*found == std::string(KindName(kind))) return kind;
    }
  }
  return Refuse(field, Show(*found), allowed);
}

Result<KVCacheGroup> ReadGroup(const OrderedJson& object, const std::string& where) {
  if (Status keys = CheckKeys(object, where, kGroupKeys); !keys) return tl::unexpected<Error>(keys.error());
  KVCacheGroup group;
  const Result<KVCacheKind> kind = ReadKind(object, where + ".kind");
  if (!kind) return tl::unexpected<Error>(kind.error());
  group.kind = *kind;
  const auto block_size = ReadTokens(object, "block_size", where + ".block_size");
  if (!block_size) return tl::unexpected<Error>(block_size.error());
  if (!*block_size) return Refuse(where + ".block_size", "missing", fmt::format("1 to {} tokens", kMaxTokens));
  group.block_size = **block_size;
  const auto window = ReadTokens(object, "sliding_window", where + ".sliding_window");
  if (!window) return tl::unexpected<Error>(window.error());
  if (group.kind == KVCacheKind::kSlidingWindow && !*window) {
    return Refuse(where + ".sliding_window", "missing", fmt::format("2 to {} tokens", kMaxTokens));
  }
  group.sliding_window = window->value_or(0);
  return group;
}

Result<OrderedJson> ParseText(std::string_view text) {
  bool too_deep = false;
  std::optional<std::string> twice;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const OrderedJson::parser_callback_t watch = [&](int depth, OrderedJson::parse_event_t event, OrderedJson& parsed) {
    too_deep = too_deep || depth > kMaxDepth;
    if (too_deep || twice) return false;
    if (event == OrderedJson::parse_event_t::object_start) keys.emplace_back();
    if (event == OrderedJson::parse_event_t::object_end) keys.pop_back();
    if (event == OrderedJson::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      twice = parsed.get<std::string>();
    }
    return true;
  };
  try {
    OrderedJson parsed = OrderedJson::parse(text, watch);
    if (!too_deep && !twice) return parsed;
  } catch (const OrderedJson::parse_error& error) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("not JSON at byte {}; allowed: one object with \"groups\"", error.byte));
  }
  if (twice) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("the key \"{}\" is there twice in one object; allowed: once", ShortText(*twice)));
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("more than {} objects and lists inside each other", kMaxDepth));
}

}  // namespace

Result<ModelConfig> ParseModelConfig(std::string_view json) {
  const Result<OrderedJson> parsed = ParseText(json);
  if (!parsed) return tl::unexpected<Error>(parsed.error());
  if (Status keys = CheckKeys(*parsed, "the model configuration", kKeys); !keys) {
    return tl::unexpected<Error>(keys.error());
  }
  const auto groups = parsed->find("groups");
  if (groups == parsed->end()) return Refuse("groups", "missing", "a list of at least one group");
  if (!groups->is_array()) return Refuse("groups", Show(*groups), "a list of at least one group");
  ModelConfig config;
  std::uint32_t divisor = 0;
  for (std::size_t i = 0; i < groups->size(); ++i) {
    const Result<KVCacheGroup> group = ReadGroup((*groups)[i], fmt::format("groups[{}]", i));
    if (!group) return tl::unexpected<Error>(group.error());
    config.groups.push_back(*group);
    divisor = std::gcd(divisor, group->block_size);
  }
  const auto hash_block_size = ReadTokens(*parsed, "hash_block_size", "hash_block_size");
  if (!hash_block_size) return tl::unexpected<Error>(hash_block_size.error());
  config.hash_block_size = hash_block_size->value_or(divisor);
  if (const auto partial = parsed->find("partial_blocks"); partial != parsed->end()) {
    if (!partial->is_boolean()) return Refuse("partial_blocks", Show(*partial), "true or false");
    config.partial_blocks = partial->get<bool>();
  }
  if (Status sound = scheduler::CheckGroups(config.groups, config.hash_block_size); !sound) {
    return tl::unexpected<Error>(sound.error());
  }
  return config;
}

Result<ModelConfig> LoadModelConfig(const std::string& path) {
  const Result<std::string> text = ReadTextFile(path, kMaxFileBytes);
  if (!text) return tl::unexpected<Error>(text.error());
  Result<ModelConfig> config = ParseModelConfig(*text);
  if (config) return config;
  return MakeError(config.error().code, fmt::format("\"{}\": {}", ShortText(path), config.error().message));
}

}  // namespace kvwire::engine
