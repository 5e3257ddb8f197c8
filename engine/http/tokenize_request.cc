// SPDX-License-Identifier: Apache-2.0
#include "engine/http/tokenize_request.h"

#include <utility>

#include "engine/http/json_fields.h"

namespace kvwire::engine {

using Json = nlohmann::json;

ApiResult<TokenizeRequest> ParseTokenizeRequest(const Json& body) {
  FieldReader fields(body);
  TokenizeRequest request;
  request.model = fields.Text("model").value_or("");
  const Json* messages = fields.Given("messages");
  const Json* prompt = fields.Given("prompt");
  if (messages != nullptr && prompt != nullptr) {
    fields.Refuse("messages", *messages, "only one of prompt and messages");
  } else if (messages != nullptr) {
    request.prompt = RenderChat(fields.Messages("messages"));
  } else if (prompt != nullptr) {
    request.prompt.text = fields.Text("prompt").value_or("");
  } else {
    fields.RefuseMissing("prompt", "a text, or messages in its place");
  }
  fields.Flag("add_special_tokens");
  fields.RefuseUnless("return_token_strs", {false});
  fields.RefuseUnless("add_generation_prompt", {true});
  fields.RefuseUnless("continue_final_message", {false});
  fields.RefuseUnless("chat_template", Json::array());
  if (fields.error().has_value()) return tl::unexpected<ApiError>(*fields.error());
  return request;
}

ApiResult<DetokenizeRequest> ParseDetokenizeRequest(const Json& body) {
  FieldReader fields(body);
  DetokenizeRequest request;
  request.model = fields.Text("model").value_or("");
  const Json* tokens = fields.Given("tokens");
  if (tokens == nullptr) {
    fields.RefuseMissing("tokens", "a list of token ids");
  } else {
    request.tokens = fields.TokenIds("tokens", *tokens).value_or(std::vector<TokenId>());
  }
  if (fields.error().has_value()) return tl::unexpected<ApiError>(*fields.error());
  return request;
}

}  // namespace kvwire::engine
