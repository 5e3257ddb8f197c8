// SPDX-License-Identifier: Apache-2.0
#include "engine/http/completion_response.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace kvwire::engine {
namespace {

const ResponseHead kText = {CompletionKind::kText, "cmpl-1", 1700000000, "m"};
const ResponseHead kChat = {CompletionKind::kChat, "chatcmpl-1", 1700000000, "m"};
const Usage kUsage = {10, 4, 8};

TEST_CASE("ids tell the kind of response") {
  CHECK(ResponseId(CompletionKind::kText, "7") == "cmpl-7");
  CHECK(ResponseId(CompletionKind::kChat, "7") == "chatcmpl-7");
}

TEST_CASE("the response to a completion") {
  const std::vector<Choice> choices = {{0, "a\"\n", ChoiceEnd::kStop}, {1, "b", ChoiceEnd::kLength}};
  CHECK(CompletionResponse(kText, choices, kUsage) ==
        R"({"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[)"
        R"({"index":0,"text":"a\"\n","logprobs":null,"finish_reason":"stop"},)"
        R"({"index":1,"text":"b","logprobs":null,"finish_reason":"length"}],)"
        R"("usage":{"prompt_tokens":10,"completion_tokens":4,"total_tokens":14,)"
        R"("prompt_tokens_details":{"cached_tokens":8}}})");
}

TEST_CASE("the response to a chat") {
  const std::vector<Choice> choices = {{0, "hi", ChoiceEnd::kLength}};
  CHECK(CompletionResponse(kChat, choices, kUsage) ==
        R"({"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"m","choices":[)"
        R"({"index":0,"message":{"role":"assistant","content":"hi"},"logprobs":null,"finish_reason":"length"}],)"
        R"("usage":{"prompt_tokens":10,"completion_tokens":4,"total_tokens":14,)"
        R"("prompt_tokens_details":{"cached_tokens":8}}})");
}

TEST_CASE("the stream of a completion") {
  CHECK(StreamChunk(kText, {0, "a\nb", {}}) ==
        R"(data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[)"
        R"({"index":0,"text":"a\nb","logprobs":null,"finish_reason":null}]})"
        "\n\n");
  CHECK(StreamChunk(kText, {2, "", ChoiceEnd::kLength}) ==
        R"(data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[)"
        R"({"index":2,"text":"","logprobs":null,"finish_reason":"length"}]})"
        "\n\n");
  CHECK(StreamUsage(kText, kUsage) ==
        R"(data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[],)"
        R"("usage":{"prompt_tokens":10,"completion_tokens":4,"total_tokens":14,)"
        R"("prompt_tokens_details":{"cached_tokens":8}}})"
        "\n\n");
  CHECK(kStreamDone == "data: [DONE]\n\n");
}

TEST_CASE("the stream of a chat: the role, the text, the end, the usage") {
  const std::string head =
      R"(data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[)";
  CHECK(StreamStart(kChat, 1) ==
        head + R"({"index":1,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]})" +
            "\n\n");
  CHECK(StreamChunk(kChat, {0, "hi", {}}) ==
        head + R"({"index":0,"delta":{"content":"hi"},"logprobs":null,"finish_reason":null}]})" + "\n\n");
  CHECK(StreamChunk(kChat, {0, "x", ChoiceEnd::kLength}) ==
        head + R"({"index":0,"delta":{"content":"x"},"logprobs":null,"finish_reason":"length"}]})" + "\n\n");
  CHECK(StreamChunk(kChat, {0, "", ChoiceEnd::kStop}) ==
        head + R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]})" + "\n\n");
  CHECK(StreamUsage(kChat, kUsage) == head +
                                          R"(],"usage":{"prompt_tokens":10,"completion_tokens":4,"total_tokens":14,)" +
                                          R"("prompt_tokens_details":{"cached_tokens":8}}})" + "\n\n");
}

TEST_CASE("an error in a stream is an event") {
  CHECK(StreamError(InternalError("the runner failed")) ==
        R"(data: {"error":{"message":"the runner failed","type":"InternalServerError","param":null,"code":500}})"
        "\n\n");
}

TEST_CASE("the list of models") {
  CHECK(ModelsResponse("m", 1700000000, 4096) ==
        R"({"object":"list","data":[{"id":"m","object":"model","created":1700000000,"owned_by":"kvwire",)"
        R"("root":"m","parent":null,"max_model_len":4096}]})");
}

TEST_CASE("the responses of the tokenizer") {
  CHECK(TokenizeResponse(std::vector<TokenId>{1, 2}, 4096) ==
        R"({"count":2,"max_model_len":4096,"tokens":[1,2],"token_strs":null})");
  CHECK(TokenizeResponse({}, 1) == R"({"count":0,"max_model_len":1,"tokens":[],"token_strs":null})");
  CHECK(DetokenizeResponse("a\"b") == R"({"prompt":"a\"b"})");
}

TEST_CASE("text that is no UTF-8 becomes text") {
  CHECK(DetokenizeResponse("a\xff") == "{\"prompt\":\"a\xef\xbf\xbd\"}");
}

}  // namespace
}  // namespace kvwire::engine
