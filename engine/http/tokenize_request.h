// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/http/api_error.h"
#include "engine/http/chat_prompt.h"
#include "kv_events/events.h"

namespace kvwire::engine {

// A request to /tokenize. A value.
struct TokenizeRequest {
  std::string model;  // empty: none was named
  ChatPrompt prompt;  // the text, or the messages as RenderChat renders them
};

// A request to /detokenize. A value.
struct DetokenizeRequest {
  std::string model;  // empty: none was named
  std::vector<TokenId> tokens;
};

// Both read what ParseBody returned; null counts as not given, unknown fields are ignored.
// Errors: status 400; the message names the field, its value and what is allowed.

// Exactly one of prompt and messages. The tokens are those that a completion of the same prompt or messages has, so
// add_special_tokens is checked and ignored; return_token_strs and the options of a template are refused.
ApiResult<TokenizeRequest> ParseTokenizeRequest(const nlohmann::json& body);
ApiResult<DetokenizeRequest> ParseDetokenizeRequest(const nlohmann::json& body);

}  // namespace kvwire::engine
