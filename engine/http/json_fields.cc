// SPDX-License-Identifier: Apache-2.0
#include "engine/http/json_fields.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

using Json = nlohmann::json;

constexpr std::string_view kRoles[] = {"developer", "system", "user", "assistant", "tool", "function"};

// A value as it goes into a message: on one line, shortened.
std::string Show(const Json& value) { return ShortText(value.dump(-1, ' ', false, Json::error_handler_t::replace)); }

}  // namespace

void FieldReader::Refuse(ApiError error) {
  if (!error_.has_value()) error_ = std::move(error);
}

void FieldReader::Refuse(const std::string& field, const Json& value, std::string_view expected) {
  if (error_.has_value()) return;
  error_ = BadRequest(field, fmt::format("{} is {}, expected {}", field, Show(value), expected));
}

void FieldReader::RefuseMissing(const std::string& field, std::string_view expected) {
  Refuse(BadRequest(field, fmt::format("{} is missing, expected {}", field, expected)));
}

void FieldReader::RefuseUnsupported(const std::string& field, const Json& value, std::string_view expected) {
  if (error_.has_value()) return;
  error_ =
      BadRequest(field, fmt::format("{} is {}, which is not supported; expected {}", field, Show(value), expected));
}

void FieldReader::RefuseUnless(const std::string& field, const Json& allowed) {
  const Json* value = Given(field);
  if (value == nullptr) return;
  std::string expected = "null";
  for (const Json& choice : allowed) {
    if (choice == *value) return;
    expected += " or " + choice.dump();
  }
  RefuseUnsupported(field, *value, expected);
}

void FieldReader::RefuseOthers(std::span<const std::string_view> known) {
  for (const auto& [key, value] : object_.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    const std::string_view last = known.back();
    const auto others = known.first(known.size() - 1);
    Refuse(BadRequest(ShortText(key), fmt::format("{} is {}, which is no known key; expected {} or {}", ShortText(key),
                                                  Show(value), fmt::join(others, ", "), last)));
  }
}

std::optional<std::vector<TokenId>> FieldReader::TokenIds(const std::string& field, const Json& value) {
  if (!value.is_array()) {
    Refuse(field, value, "a list of token ids");
    return std::nullopt;
  }
  std::vector<TokenId> tokens;
  tokens.reserve(value.size());
  for (const Json& token : value) {
    if (!token.is_number_unsigned() || token.get<std::uint64_t>() > kMaxTokenId) {
      Refuse(fmt::format("{}[{}]", field, tokens.size()), token, fmt::format("a token id from 0 to {}", kMaxTokenId));
      return std::nullopt;
    }
    tokens.push_back(token.get<TokenId>());
  }
  return tokens;
}

const Json* FieldReader::Given(const std::string& field) const {
  const auto found = object_.find(field);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> FieldReader::Flag(const std::string& field) {
  const Json* value = Given(field);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  Refuse(field, *value, "true or false");
  return std::nullopt;
}

std::optional<std::uint32_t> FieldReader::Integer(const std::string& field, std::uint32_t min, std::uint32_t max) {
  const Json* value = Given(field);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned() && value->get<std::uint64_t>() >= min && value->get<std::uint64_t>() <= max) {
    return value->get<std::uint32_t>();
  }
  Refuse(field, *value, fmt::format("an integer from {} to {}", min, max));
  return std::nullopt;
}

std::optional<std::string> FieldReader::Text(const std::string& field) {
  const Json* value = Given(field);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  Refuse(field, *value, "a text");
  return std::nullopt;
}

std::vector<ChatMessage> FieldReader::Messages(const std::string& field) {
  constexpr std::string_view kExpected = "a list of at least one message";
  std::vector<ChatMessage> messages;
  const Json* value = Given(field);
  if (value == nullptr) {
    RefuseMissing(field, kExpected);
  } else if (!value->is_array() || value->empty()) {
    Refuse(field, *value, kExpected);
  } else {
    for (std::size_t i = 0; i < value->size() && !error_.has_value(); ++i) {
      ReadMessage(fmt::format("{}[{}]", field, i), (*value)[i], &messages);
    }
  }
  return messages;
}

void FieldReader::ReadMessage(const std::string& field, const Json& message, std::vector<ChatMessage>* messages) {
  if (!message.is_object()) return Refuse(field, message, "an object with role and content");
  const auto role = message.find("role");
  const std::string roles = fmt::format("one of {}", fmt::join(kRoles, ", "));
  if (role == message.end()) return RefuseMissing(field + ".role", roles);
  if (!role->is_string() || std::ranges::find(kRoles, role->get_ref<const std::string&>()) == std::end(kRoles)) {
    return Refuse(field + ".role", *role, roles);
  }
  const auto content = message.find("content");
  if (content == message.end()) return RefuseMissing(field + ".content", "a text or a list of text parts");
  const std::optional<std::string> text = ReadContent(field + ".content", *content);
  if (text.has_value()) messages->push_back({role->get<std::string>(), *text});
}

std::optional<std::string> FieldReader::ReadContent(const std::string& field, const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    Refuse(field, content, "a text or a list of text parts");
    return std::nullopt;
  }
  std::string joined;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string name = fmt::format("{}[{}]", field, i);
    const auto type = part.is_object() ? part.find("type") : part.end();
    if (!part.is_object() || type == part.end() || !type->is_string()) {
      Refuse(name, part, "an object with type \"text\" and text");
      return std::nullopt;
    }
    if (*type != "text") {
      RefuseUnsupported(name + ".type", *type, "\"text\"");
      return std::nullopt;
    }
    const auto text = part.find("text");
    if (text == part.end() || !text->is_string()) {
      Refuse(name, part, "an object with type \"text\" and text");
      return std::nullopt;
    }
    if (i > 0) joined += "\n";
    joined += text->get_ref<const std::string&>();
  }
  return joined;
}

}  // namespace kvwire::engine
