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

// A key's value; null when it is not there, or null itself.
const Json* Find(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

bool IsIdentifier(const Json& value) {
  return value.is_string() && !value.get_ref<const std::string&>().empty() &&
         value.get_ref<const std::string&>().size() <= kMaxIdentifierBytes;
}
constexpr std::string_view kIdentifierForm = "a text of 1 to 1024 bytes";
static_assert(kMaxIdentifierBytes == 1024);

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
  std::size_t images = 0;
  for (const ChatMessage& message : messages) images += message.content.images.size();
  if (images > kMaxMultimodalItems) {
    Refuse(BadRequest(field, fmt::format("{} has {} images, expected at most {}", field, images, kMaxMultimodalItems)));
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
  ChatMessage& read = messages->emplace_back();
  read.role = role->get<std::string>();
  const Json* content = Find(message, "content");
  const bool speaks = read.role == "assistant";
  const Json* calls = speaks ? Find(message, "tool_calls") : nullptr;
  const Json* function = speaks ? Find(message, "function_call") : nullptr;
  if (const Json* id = Find(message, "tool_call_id"); id != nullptr && !id->is_string()) {
    return Refuse(field + ".tool_call_id", *id, "a text");
  }
  const bool has_calls = function != nullptr || (calls != nullptr && *calls != Json::array());
  if (content != nullptr) {
    ReadContent(field + ".content", *content, &read.content);
  } else if (!has_calls) {
    const std::string expected =
        fmt::format("a text or a list of parts{}", speaks ? ", or tool_calls in its place" : "");
    if (!message.contains("content")) return RefuseMissing(field + ".content", expected);
    return Refuse(field + ".content", nullptr, expected);
  }
  if (calls != nullptr) ReadToolCalls(field + ".tool_calls", *calls, &read.content);
  if (function != nullptr) ReadFunction(field + ".function_call", *function, &read.content);
}

void FieldReader::ReadContent(const std::string& field, const Json& content, ChatPrompt* prompt) {
  if (content.is_string()) {
    prompt->text = content.get<std::string>();
    return;
  }
  if (!content.is_array()) return Refuse(field, content, "a text or a list of parts");
  for (std::size_t i = 0; i < content.size() && !error_.has_value(); ++i) {
    if (i > 0) prompt->text += "\n";
    ReadPart(fmt::format("{}[{}]", field, i), content[i], prompt);
  }
}

void FieldReader::ReadPart(const std::string& field, const Json& part, ChatPrompt* prompt) {
  constexpr std::string_view kExpected =
      "an object with type \"text\" and text, or with type \"image_url\" and image_url";
  const Json* type = part.is_object() ? Find(part, "type") : nullptr;
  if (type == nullptr || !type->is_string()) return Refuse(field, part, kExpected);
  if (*type == "image_url") return ReadImage(field, part, prompt);
  if (*type != "text") return RefuseUnsupported(field + ".type", *type, "\"text\" or \"image_url\"");
  const Json* text = Find(part, "text");
  if (text == nullptr || !text->is_string()) return Refuse(field, part, kExpected);
  prompt->text += text->get_ref<const std::string&>();
}

// What it shows is known by its uuid, or else by its address, which nobody looks at.
void FieldReader::ReadImage(const std::string& field, const Json& part, ChatPrompt* prompt) {
  const Json* uuid = Find(part, "uuid");
  const Json* image = Find(part, "image_url");
  const Json* url = image != nullptr && image->is_object() ? Find(*image, "url") : image;
  if (uuid != nullptr && !IsIdentifier(*uuid)) return Refuse(field + ".uuid", *uuid, kIdentifierForm);
  if (image != nullptr ? url == nullptr || !url->is_string() : uuid == nullptr) {
    return Refuse(field + ".image_url", image != nullptr ? *image : Json(),
                  "an object with the text url, or null beside a uuid");
  }
  prompt->images.push_back({prompt->text.size(), uuid != nullptr
                                                     ? uuid->get<std::string>()
                                                     : ImageIdentifier(url->get_ref<const std::string&>())});
}

void FieldReader::ReadToolCalls(const std::string& field, const Json& calls, ChatPrompt* prompt) {
  if (!calls.is_array()) return Refuse(field, calls, "a list of calls");
  for (std::size_t i = 0; i < calls.size() && !error_.has_value(); ++i) {
    const std::string name = fmt::format("{}[{}]", field, i);
    const Json* function = calls[i].is_object() ? Find(calls[i], "function") : nullptr;
    if (function == nullptr) return Refuse(name, calls[i], "an object with the object function");
    if (const Json* id = Find(calls[i], "id"); id != nullptr && !id->is_string()) {
      return Refuse(name + ".id", *id, "a text");
    }
    if (const Json* type = Find(calls[i], "type"); type != nullptr && *type != "function") {
      constexpr std::string_view kExpected = "\"function\"";
      if (type->is_string()) return RefuseUnsupported(name + ".type", *type, kExpected);
      return Refuse(name + ".type", *type, kExpected);
    }
    ReadFunction(name + ".function", *function, prompt);
  }
}

void FieldReader::ReadFunction(const std::string& field, const Json& function, ChatPrompt* prompt) {
  const Json* name = function.is_object() ? Find(function, "name") : nullptr;
  const Json* arguments = function.is_object() ? Find(function, "arguments") : nullptr;
  if (name == nullptr || !name->is_string() ||
      (arguments != nullptr && !arguments->is_string() && !arguments->is_object())) {
    return Refuse(field, function, "an object with the text name, and arguments that are a text or an object");
  }
  if (!prompt->text.empty() || !prompt->images.empty()) prompt->text += "\n";
  prompt->text.append("<|tool_call|>").append(name->get_ref<const std::string&>()).append("\n");
  if (arguments == nullptr) return;
  prompt->text += arguments->is_string() ? arguments->get<std::string>() : arguments->dump();
}

std::vector<MultimodalItem> FieldReader::MultimodalItems(const std::string& field, std::size_t num_tokens) {
  std::vector<MultimodalItem> items;
  const Json* list = Given(field);
  if (list == nullptr) return items;
  if (!list->is_array() || list->size() > kMaxMultimodalItems) {
    Refuse(field, *list, fmt::format("a list of at most {} items", kMaxMultimodalItems));
    return items;
  }
  std::uint64_t first = 0;  // token that the next item may begin with
  for (const Json& value : *list) {
    const std::string name = fmt::format("{}[{}]", field, items.size());
    const Json* identifier = value.is_object() ? Find(value, "identifier") : nullptr;
    const auto number = [&](const char* key) -> std::optional<std::uint64_t> {
      const Json* found = value.is_object() ? Find(value, key) : nullptr;
      if (found == nullptr || !found->is_number_unsigned()) return std::nullopt;
      return found->get<std::uint64_t>();
    };
    const std::optional<std::uint64_t> offset = number("offset");
    const std::optional<std::uint64_t> length = number("length");
    if (identifier == nullptr || !IsIdentifier(*identifier) || !offset || !length || value.size() != 3) {
      Refuse(name, value,
             fmt::format("an object with identifier, {}, and the numbers offset and length", kIdentifierForm));
      return {};
    }
    if (*offset < first || *length == 0 || *offset > num_tokens || *length > num_tokens - *offset) {
      Refuse(name, value,
             fmt::format("at least one token between {} and {}, by offset and without overlap", first, num_tokens));
      return {};
    }
    first = *offset + *length;
    items.push_back(
        {identifier->get<std::string>(), static_cast<std::uint32_t>(*offset), static_cast<std::uint32_t>(*length)});
  }
  return items;
}

}  // namespace kvwire::engine
