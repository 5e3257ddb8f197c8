// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/http/api_error.h"
#include "engine/http/chat_prompt.h"
#include "kv_events/events.h"
#include "kv_events/hash/extra_keys.h"

namespace kvwire::engine {

// Bounds of what is no text in a prompt.
inline constexpr std::size_t kMaxMultimodalItems = 256;
inline constexpr std::size_t kMaxIdentifierBytes = 1024;

// Reads the fields of a request's object. A field that is null counts as not given. Keeps the first error and goes on,
// so that a reader asks once, at its end.
//
// Threads: one thread at a time. Ownership: the object outlives the reader.
// Errors: the first one names the field, its value and what is allowed.
class FieldReader {
 public:
  // `object`: what ParseBody returned.
  explicit FieldReader(const nlohmann::json& object) : object_(object) {}

  // The field's value; null when it is not given.
  const nlohmann::json* Given(const std::string& field) const;

  // Nothing when not given or wrong.
  std::optional<bool> Flag(const std::string& field);
  std::optional<std::uint32_t> Integer(const std::string& field, std::uint32_t min, std::uint32_t max);
  std::optional<std::string> Text(const std::string& field);

  // Of a "messages" field. A content is a text, or a list of text and image parts, joined by line feeds; an assistant
  // that calls tools may have none. Each call is a part "<|tool_call|>", name, line feed, arguments.
  std::vector<ChatMessage> Messages(const std::string& field);

  // Of a list of objects with identifier, offset and length: items that do not overlap, by offset, inside of so many
  // tokens. None when not given.
  std::vector<MultimodalItem> MultimodalItems(const std::string& field, std::size_t num_tokens);

  // Of a value: a list of token ids, which may be empty.
  std::optional<std::vector<TokenId>> TokenIds(const std::string& field, const nlohmann::json& value);

  // Refuses a field as not supported unless it is not given or has one of the values in the list `allowed`. true is
  // not 1.
  void RefuseUnless(const std::string& field, const nlohmann::json& allowed);

  // Refuses every key that is not one of these.
  void RefuseOthers(std::span<const std::string_view> known);

  void Refuse(ApiError error);
  void Refuse(const std::string& field, const nlohmann::json& value, std::string_view expected);
  void RefuseMissing(const std::string& field, std::string_view expected);
  // The value has a meaning, but not here.
  void RefuseUnsupported(const std::string& field, const nlohmann::json& value, std::string_view expected);

  const std::optional<ApiError>& error() const noexcept { return error_; }

 private:
  void ReadMessage(const std::string& field, const nlohmann::json& message, std::vector<ChatMessage>* messages);
  void ReadContent(const std::string& field, const nlohmann::json& content, ChatPrompt* prompt);
  void ReadPart(const std::string& field, const nlohmann::json& part, ChatPrompt* prompt);
  void ReadImage(const std::string& field, const nlohmann::json& part, ChatPrompt* prompt);
  void ReadToolCalls(const std::string& field, const nlohmann::json& calls, ChatPrompt* prompt);
  void ReadFunction(const std::string& field, const nlohmann::json& function, ChatPrompt* prompt);

  const nlohmann::json& object_;
  std::optional<ApiError> error_;
};

}  // namespace kvwire::engine
