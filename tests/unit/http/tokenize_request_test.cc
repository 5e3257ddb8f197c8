// SPDX-License-Identifier: Apache-2.0
#include "engine/http/tokenize_request.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "engine/http/request_body.h"

namespace kvwire::engine {
namespace {

ApiResult<TokenizeRequest> Tokenize(const std::string& body) { return ParseTokenizeRequest(ParseBody(body).value()); }
ApiResult<DetokenizeRequest> Detokenize(const std::string& body) {
  return ParseDetokenizeRequest(ParseBody(body).value());
}

template <class T>
std::string MessageOf(const ApiResult<T>& request, const std::string& param) {
  REQUIRE_FALSE(request.has_value());
  CHECK(request.error().status == 400);
  CHECK(request.error().param == param);
  return request.error().message;
}

TEST_CASE("a prompt or messages are tokenized, messages as a chat renders them") {
  const auto prompt =
      Tokenize(R"({"model": "m", "prompt": "hi", "add_special_tokens": false, "return_token_strs": false, "x": 1})");
  CHECK(prompt.value().model == "m");
  CHECK(prompt.value().prompt.text == "hi");
  CHECK(Tokenize(R"({"prompt": ""})").value().prompt.text.empty());
  const auto chat = Tokenize(R"({"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": true})");
  CHECK(chat.value().prompt.text == "<|user|>\nhi\n<|assistant|>\n");
}

TEST_CASE("what is wrong with a request to tokenize is named") {
  CHECK(MessageOf(Tokenize("{}"), "prompt") == "prompt is missing, expected a text, or messages in its place");
  CHECK(MessageOf(Tokenize(R"({"prompt": ["a"]})"), "prompt") == R"(prompt is ["a"], expected a text)");
  CHECK(MessageOf(Tokenize(R"({"prompt": "a", "messages": []})"), "messages") ==
        "messages is [], expected only one of prompt and messages");
  CHECK(MessageOf(Tokenize(R"({"messages": []})"), "messages") ==
        "messages is [], expected a list of at least one message");
  CHECK(MessageOf(Tokenize(R"({"prompt": "a", "add_special_tokens": 1})"), "add_special_tokens") ==
        "add_special_tokens is 1, expected true or false");
  CHECK(MessageOf(Tokenize(R"({"prompt": "a", "return_token_strs": true})"), "return_token_strs") ==
        "return_token_strs is true, which is not supported; expected null or false");
  CHECK(MessageOf(Tokenize(R"({"prompt": "a", "chat_template": "x"})"), "chat_template") ==
        R"(chat_template is "x", which is not supported; expected null)");
}

TEST_CASE("tokens are detokenized") {
  CHECK(Detokenize(R"({"model": "m", "tokens": [1, 2]})").value().tokens == std::vector<TokenId>{1, 2});
  CHECK(Detokenize(R"({"tokens": []})").value().tokens.empty());
  CHECK(MessageOf(Detokenize("{}"), "tokens") == "tokens is missing, expected a list of token ids");
  CHECK(MessageOf(Detokenize(R"({"tokens": "a"})"), "tokens") == R"(tokens is "a", expected a list of token ids)");
  CHECK(MessageOf(Detokenize(R"({"tokens": [1, -1]})"), "tokens[1]") ==
        "tokens[1] is -1, expected a token id from 0 to 2147483647");
}

}  // namespace
}  // namespace kvwire::engine
