// SPDX-License-Identifier: Apache-2.0
#include "engine/http/completion_request.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "engine/http/request_body.h"

namespace kvwire::engine {
namespace {

using Tokens = std::vector<TokenId>;
using scheduler::ExtraArgs;

constexpr const char* kMessages = R"("messages": [{"role": "user", "content": "hi"}])";

ApiResult<CompletionRequest> Parse(CompletionKind kind, const std::string& body) {
  const auto json = ParseBody(body);
  REQUIRE(json.has_value());
  return ParseCompletionRequest(kind, *json);
}

// A request of the kind with the fields besides its prompt.
ApiResult<CompletionRequest> ParseFields(CompletionKind kind, const std::string& fields) {
  const std::string prompt = kind == CompletionKind::kText ? R"("prompt": "hi")" : kMessages;
  return Parse(kind, "{" + prompt + (fields.empty() ? "" : ", ") + fields + "}");
}

CompletionRequest Accepted(CompletionKind kind, const std::string& fields) {
  const auto request = ParseFields(kind, fields);
  INFO(fields);
  if (!request.has_value()) FAIL(request.error().message);
  return *request;
}

std::string MessageOf(const ApiResult<CompletionRequest>& request, const std::string& param) {
  REQUIRE_FALSE(request.has_value());
  CHECK(request.error().status == 400);
  CHECK(request.error().param == param);
  return request.error().message;
}

std::string TextError(const std::string& fields, const std::string& param) {
  return MessageOf(ParseFields(CompletionKind::kText, fields), param);
}

std::string ChatError(const std::string& fields, const std::string& param) {
  return MessageOf(ParseFields(CompletionKind::kChat, fields), param);
}

std::string PromptError(const std::string& prompt, const std::string& param) {
  return MessageOf(Parse(CompletionKind::kText, R"({"prompt": )" + prompt + "}"), param);
}

std::string MessagesError(const std::string& messages, const std::string& param) {
  return MessageOf(Parse(CompletionKind::kChat, R"({"messages": )" + messages + "}"), param);
}

TEST_CASE("a request without options has the defaults") {
  const CompletionRequest request = Accepted(CompletionKind::kText, "");
  CHECK(request.kind == CompletionKind::kText);
  CHECK(request.model.empty());
  CHECK(request.prompts == std::vector<Prompt>{"hi"});
  CHECK_FALSE(request.max_tokens.has_value());
  CHECK(request.n == 1);
  CHECK_FALSE(request.stream);
  CHECK_FALSE(request.include_usage);
  CHECK_FALSE(request.echo);
  CHECK(request.stop.empty());
  CHECK(request.cache_salt.empty());
  CHECK(request.extra_args.empty());
}

TEST_CASE("every option is read") {
  const CompletionRequest request = Accepted(CompletionKind::kText, R"("model": "m", "max_tokens": 7, "n": 3,
      "stream": true, "stream_options": {"include_usage": true}, "stop": ["a", "bc"], "echo": true,
      "cache_salt": "s", "session_id": "x", "vllm_xargs": {"kv_cache_report_mode": "full"})");
  CHECK(request.model == "m");
  CHECK(request.max_tokens == 7);
  CHECK(request.n == 3);
  CHECK(request.stream);
  CHECK(request.include_usage);
  CHECK(request.echo);
  CHECK(request.stop == std::vector<std::string>{"a", "bc"});
  CHECK(request.cache_salt == "s");
  CHECK(scheduler::ReportModeOf(request.extra_args) == scheduler::ReportMode::kFull);
}

TEST_CASE("null counts as not given, unknown fields are ignored") {
  for (const CompletionKind kind : {CompletionKind::kText, CompletionKind::kChat}) {
    const CompletionRequest request =
        Accepted(kind, R"("model": null, "max_tokens": null, "max_completion_tokens": null,
        "n": null, "stream": null, "stream_options": null, "stop": null, "echo": null, "cache_salt": null,
        "session_id": null, "vllm_xargs": null, "temperature": null, "logprobs": null, "kv_transfer_params": null,
        "suffix": null, "response_format": null, "brand_new": {"x": [1]}, "metadata": {"a": "b"}, "store": true)");
    CHECK_FALSE(request.max_tokens.has_value());
    CHECK(request.n == 1);
    CHECK(request.prompts.size() == 1);
  }
}

TEST_CASE("a prompt is a text, tokens, or a list of either") {
  const auto prompts = [](const std::string& prompt) {
    return Parse(CompletionKind::kText, R"({"prompt": )" + prompt + "}").value().prompts;
  };
  CHECK(prompts(R"("a\u0000b")") == std::vector<Prompt>{std::string("a\0b", 3)});
  CHECK(prompts(R"(["a", "b"])") == std::vector<Prompt>{"a", "b"});
  CHECK(prompts("[1, 2147483647]") == std::vector<Prompt>{Tokens{1, 2147483647}});
  CHECK(prompts("[[1, 2], [3]]") == std::vector<Prompt>{Tokens{1, 2}, Tokens{3}});
}

TEST_CASE("what is no prompt is refused with its place") {
  const std::string forms = "a text, a list of texts, a list of token ids or a list of such lists";
  CHECK(MessageOf(Parse(CompletionKind::kText, "{}"), "prompt") == "prompt is missing, expected " + forms);
  CHECK(PromptError("null", "prompt") == "prompt is missing, expected " + forms);
  CHECK(PromptError("5", "prompt") == "prompt is 5, expected " + forms);
  CHECK(PromptError("[]", "prompt") == "prompt is [], expected " + forms);
  CHECK(PromptError("{}", "prompt") == "prompt is {}, expected " + forms);
  CHECK(PromptError(R"("")", "prompt") == R"(prompt is "", expected a text or a list of token ids that is not empty)");
  CHECK(PromptError(R"(["a", ""])", "prompt[1]") ==
        R"(prompt[1] is "", expected a text or a list of token ids that is not empty)");
  CHECK(PromptError("[[1], []]", "prompt[1]") ==
        "prompt[1] is [], expected a text or a list of token ids that is not empty");
  CHECK(PromptError("[[1], [2, -3]]", "prompt[1][1]") ==
        "prompt[1][1] is -3, expected a token id from 0 to 2147483647");
  CHECK(PromptError("[1, 2147483648]", "prompt[1]") ==
        "prompt[1] is 2147483648, expected a token id from 0 to 2147483647");
  CHECK(PromptError("[1, 1.5]", "prompt[1]") == "prompt[1] is 1.5, expected a token id from 0 to 2147483647");
  CHECK(PromptError(R"([1, "a"])", "prompt[1]") == R"(prompt[1] is "a", expected a token id from 0 to 2147483647)");
  CHECK(PromptError(R"(["a", 1])", "prompt[1]") == "prompt[1] is 1, expected prompts of one form: " + forms);
  CHECK(PromptError("[null]", "prompt[0]") ==
        "prompt[0] is null, expected a text or a list of token ids that is not empty");
}

TEST_CASE("a request may ask for so many choices and not more") {
  const auto many = [](std::size_t prompts, int n) {
    std::string list = R"("a")";
    for (std::size_t i = 1; i < prompts; ++i) list += R"(,"a")";
    return Parse(CompletionKind::kText, R"({"prompt": [)" + list + R"(], "n": )" + std::to_string(n) + "}");
  };
  CHECK(many(256, 1).has_value());
  CHECK(many(16, 16).has_value());
  CHECK(MessageOf(many(257, 1), "prompt") == "prompt has 257 prompts, expected at most 256");
  CHECK(MessageOf(many(17, 16), "n") == "n is 16 for 17 prompts, expected at most 256 choices in all");
}

TEST_CASE("a chat is rendered; text parts are joined by line feeds") {
  const auto request = Parse(CompletionKind::kChat, R"({"messages": [{"role": "system", "content": "s"},
      {"role": "user", "name": "n", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": ""}]})");
  CHECK(request.value().kind == CompletionKind::kChat);
  CHECK(request.value().prompts ==
        std::vector<Prompt>{"<|system|>\ns\n<|user|>\na\nb\n<|assistant|>\n\n<|assistant|>\n"});
}

TEST_CASE("what is no message is refused with its place") {
  const std::string roles = "one of developer, system, user, assistant, tool, function";
  CHECK(MessageOf(Parse(CompletionKind::kChat, "{}"), "messages") ==
        "messages is missing, expected a list of at least one message");
  CHECK(MessagesError("[]", "messages") == "messages is [], expected a list of at least one message");
  CHECK(MessagesError(R"("hi")", "messages") == R"(messages is "hi", expected a list of at least one message)");
  CHECK(MessagesError("[7]", "messages[0]") == "messages[0] is 7, expected an object with role and content");
  CHECK(MessagesError(R"([{"content": "x"}])", "messages[0].role") == "messages[0].role is missing, expected " + roles);
  CHECK(MessagesError(R"([{"role": "god", "content": "x"}])", "messages[0].role") ==
        R"(messages[0].role is "god", expected )" + roles);
  CHECK(MessagesError(R"([{"role": "user"}])", "messages[0].content") ==
        "messages[0].content is missing, expected a text or a list of parts");
  CHECK(MessagesError(R"([{"role": "user", "content": null}])", "messages[0].content") ==
        "messages[0].content is null, expected a text or a list of parts");
  CHECK(MessagesError(R"([{"role": "user", "content": [{"type": "input_audio"}]}])", "messages[0].content[0].type") ==
        R"(messages[0].content[0].type is "input_audio", which is not supported; expected "text" or "image_url")");
  const std::string part = R"(, expected an object with type "text" and text, or with type "image_url" and image_url)";
  CHECK(MessagesError(R"([{"role": "user", "content": [{"type": "text"}]}])", "messages[0].content[0]") ==
        R"(messages[0].content[0] is {"type":"text"})" + part);
  CHECK(MessagesError(R"([{"role": "user", "content": ["x"]}])", "messages[0].content[0]") ==
        R"(messages[0].content[0] is "x")" + part);
}

TEST_CASE("a conversation with tools is rendered with each call's name and arguments; ids are not part of it") {
  const auto prompt = [](const std::string& messages) {
    const auto request = Parse(CompletionKind::kChat, R"({"messages": [)" + messages + "]}");
    REQUIRE_MESSAGE(request.has_value(), request.error().message);
    return std::get<std::string>(request->prompts.front());
  };
  const std::string call = R"({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}})";
  const std::string one = "<|assistant|>\n<|tool_call|>f\n{\"a\": 1}\n<|assistant|>\n";
  CHECK(prompt(R"({"role": "assistant", "content": null, "tool_calls": [)" + call + "]}") == one);
  CHECK(prompt(R"({"role": "assistant", "tool_calls": [)" + call + "]}") == one);
  CHECK(prompt(R"({"role": "assistant", "function_call": {"name": "f", "arguments": "{\"a\": 1}"}})") == one);
  CHECK(prompt(R"({"role": "assistant", "content": "I look.", "tool_calls": [)" + call +
               R"(, {"function": {"name": "g", "arguments": {"b": [2]}}}, {"function": {"name": "h"}}]},)" +
               R"({"role": "tool", "tool_call_id": "c1", "content": "7"})") ==
        "<|assistant|>\nI look.\n<|tool_call|>f\n{\"a\": 1}\n<|tool_call|>g\n{\"b\":[2]}\n<|tool_call|>h\n\n"
        "<|tool|>\n7\n<|assistant|>\n");
  CHECK(prompt(R"({"role": "assistant", "content": "x", "tool_calls": []})") == "<|assistant|>\nx\n<|assistant|>\n");
  // Who has nothing to say must call something, and only an assistant calls.
  const std::string place = "expected a text or a list of parts, or tool_calls in its place";
  CHECK(MessagesError(R"([{"role": "assistant", "content": null}])", "messages[0].content") ==
        "messages[0].content is null, " + place);
  CHECK(MessagesError(R"([{"role": "assistant", "tool_calls": []}])", "messages[0].content") ==
        "messages[0].content is missing, " + place);
  CHECK(MessagesError(R"([{"role": "user", "tool_calls": [)" + call + "]}]", "messages[0].content") ==
        "messages[0].content is missing, expected a text or a list of parts");
  CHECK(MessagesError(R"([{"role": "assistant", "tool_calls": 5}])", "messages[0].tool_calls") ==
        "messages[0].tool_calls is 5, expected a list of calls");
  CHECK(MessagesError(R"([{"role": "assistant", "tool_calls": [{}]}])", "messages[0].tool_calls[0]") ==
        "messages[0].tool_calls[0] is {}, expected an object with the object function");
  CHECK(MessagesError(R"([{"role": "assistant", "tool_calls": [{"function": {"arguments": ""}}]}])",
                      "messages[0].tool_calls[0].function") ==
        R"(messages[0].tool_calls[0].function is {"arguments":""}, )"
        "expected an object with the text name, and arguments that are a text or an object");
  CHECK(MessagesError(R"([{"role": "tool", "tool_call_id": 5, "content": ""}])", "messages[0].tool_call_id") ==
        "messages[0].tool_call_id is 5, expected a text");
}

TEST_CASE("a tool call's id is a text and its type is function, where they are given") {
  const auto error = [](const std::string& members, const std::string& field) {
    return MessagesError(
        R"([{"role": "assistant", "tool_calls": [{)" + members + R"(, "function": {"name": "f", "arguments": ""}}]}])",
        "messages[0].tool_calls[0]." + field);
  };
  CHECK(error(R"("id": 5)", "id") == "messages[0].tool_calls[0].id is 5, expected a text");
  CHECK(error(R"("id": ["c"])", "id") == R"(messages[0].tool_calls[0].id is ["c"], expected a text)");
  CHECK(error(R"("id": "c", "type": 5)", "type") == R"(messages[0].tool_calls[0].type is 5, expected "function")");
  CHECK(error(R"("type": "custom")", "type") ==
        R"(messages[0].tool_calls[0].type is "custom", which is not supported; expected "function")");
  for (const char* members : {R"("id": null, "type": null)", R"("id": "c", "type": "function")"}) {
    const auto request = Parse(CompletionKind::kChat, R"({"messages": [{"role": "assistant", "tool_calls": [{)" +
                                                          std::string(members) + R"(, "function": {"name": "f"}}]}]})");
    CHECK_MESSAGE(request.has_value(), members);
  }
}

TEST_CASE("a chat has no places of items: it gives images as parts") {
  const auto parse = [](const std::string& items) {
    return Parse(CompletionKind::kChat,
                 R"({"messages": [{"role": "user", "content": "x"}], "kvwire_multimodal": )" + items + "}");
  };
  const auto request = parse(R"([{"identifier": "cat", "offset": 0, "length": 1}])");
  REQUIRE_FALSE(request.has_value());
  CHECK(request.error().status == 400);
  CHECK(request.error().param == "kvwire_multimodal");
  CHECK(
      request.error().message ==
      R"(kvwire_multimodal is [{"identifier":"cat","length":1,"offset":0}], expected it only with one prompt that is a )"
      R"(list of token ids; a chat has images as parts of type "image_url")");
  CHECK_FALSE(parse("[]").has_value());
  CHECK(parse("null").has_value());
}

TEST_CASE("an image part of a message has a uuid, or the address that names it") {
  const auto images = [](const std::string& parts) {
    const auto request =
        Parse(CompletionKind::kChat, R"({"messages": [{"role": "user", "content": [)" + parts + "]}]}");
    REQUIRE_MESSAGE(request.has_value(), request.error().message);
    CHECK(std::get<std::string>(request->prompts.front()) == "<|user|>\na\n\n<|assistant|>\n");
    return request->images;
  };
  const std::string text = R"({"type": "text", "text": "a"}, )";
  const std::size_t place = std::string("<|user|>\na\n").size();
  using Images = std::vector<ImageInText>;
  const std::string url = R"({"type": "image_url", "image_url": {"url": "http://x/y.png", "detail": "low"})";
  CHECK(images(text + url + "}") == Images{{place, ImageIdentifier("http://x/y.png")}});
  CHECK(images(text + url + R"(, "uuid": null})") == Images{{place, ImageIdentifier("http://x/y.png")}});
  CHECK(images(text + url + R"(, "uuid": "u"})") == Images{{place, "u"}});
  CHECK(images(text + R"({"type": "image_url", "image_url": null, "uuid": "u"})") == Images{{place, "u"}});
  CHECK(images(text + R"({"type": "image_url", "image_url": "http://x"})") ==
        Images{{place, ImageIdentifier("http://x")}});
  const auto error = [](const std::string& part, const std::string& param) {
    return MessagesError(R"([{"role": "user", "content": [{"type": "image_url")" + part + "}]}]",
                         "messages[0].content[0]" + param);
  };
  const std::string form = ", expected an object with the text url, or null beside a uuid";
  CHECK(error("", ".image_url") == "messages[0].content[0].image_url is null" + form);
  CHECK(error(R"(, "image_url": {})", ".image_url") == "messages[0].content[0].image_url is {}" + form);
  CHECK(error(R"(, "image_url": {"url": 5})", ".image_url") ==
        R"(messages[0].content[0].image_url is {"url":5})" + form);
  CHECK(error(R"(, "uuid": "")", ".uuid") ==
        R"(messages[0].content[0].uuid is "", expected a text of 1 to 1024 bytes)");
  std::string many;
  for (int i = 0; i < 257; ++i) many += std::string(i > 0 ? "," : "") + R"({"type": "image_url", "uuid": "u"})";
  CHECK(MessagesError(R"([{"role": "user", "content": [)" + many + "]}]", "messages") ==
        "messages has 257 images, expected at most 256");
}

TEST_CASE("items of a prompt of tokens lie in it one behind the other") {
  const auto parse = [](const std::string& prompt, const std::string& items) {
    return Parse(CompletionKind::kText, R"({"prompt": )" + prompt + R"(, "kvwire_multimodal": )" + items + "}");
  };
  const std::string prompt = "[1, 2, 3, 4, 5]";
  const auto read = parse(prompt, R"([{"identifier": "x", "offset": 0, "length": 2},
                                      {"identifier": "y", "offset": 2, "length": 3}])");
  CHECK(read.value().multimodal == std::vector<MultimodalItem>{{"x", 0, 2}, {"y", 2, 3}});
  CHECK(parse(prompt, "null").value().multimodal.empty());
  CHECK(parse("\"text\"", "null").value().multimodal.empty());
  const std::string field = "kvwire_multimodal";
  for (const char* const other : {"\"text\"", "[[1], [2]]"}) {
    CHECK(MessageOf(parse(other, "[]"), field) ==
          field + " is [], expected it only with one prompt that is a list of token ids");
  }
  CHECK(MessageOf(parse(prompt, "{}"), field) == field + " is {}, expected a list of at most 256 items");
  const std::string form =
      ", expected an object with identifier, a text of 1 to 1024 bytes, and the numbers offset and length";
  for (const char* const item :
       {R"({})", R"(5)", R"({"identifier":"","length":1,"offset":0})", R"({"identifier":"x","length":1,"offset":-1})",
        R"({"identifier":"x","length":1,"more":2,"offset":0})"}) {
    CHECK(MessageOf(parse(prompt, std::string("[") + item + "]"), field + "[0]") == field + "[0] is " + item + form);
  }
  const auto range = [&](const std::string& items, const std::string& place, const std::string& first) {
    const std::string message = MessageOf(parse(prompt, items), place);
    CHECK_MESSAGE(message.ends_with("at least one token between " + first + " and 5, by offset and without overlap"),
                  message);
  };
  range(R"([{"identifier": "x", "offset": 3, "length": 3}])", field + "[0]", "0");
  range(R"([{"identifier": "x", "offset": 6, "length": 1}])", field + "[0]", "0");
  range(R"([{"identifier": "x", "offset": 3, "length": 0}])", field + "[0]", "0");
  range(R"([{"identifier": "x", "offset": 3, "length": 18446744073709551615}])", field + "[0]", "0");
  range(R"([{"identifier": "x", "offset": 1, "length": 2}, {"identifier": "y", "offset": 2, "length": 1}])",
        field + "[1]", "3");
}

TEST_CASE("embeddings in place of a prompt are refused by name, as those beside one") {
  const auto only = Parse(CompletionKind::kText, R"({"prompt_embeds": "AAAA"})");
  const std::string message = R"(prompt_embeds is "AAAA", which is not supported; expected null)";
  CHECK(MessageOf(only, "prompt_embeds") == message);
  CHECK(TextError(R"("prompt_embeds": "AAAA")", "prompt_embeds") == message);
}

TEST_CASE("of a chat's two names for the length the newer one counts") {
  CHECK(Accepted(CompletionKind::kChat, R"("max_tokens": 5)").max_tokens == 5);
  CHECK(Accepted(CompletionKind::kChat, R"("max_completion_tokens": 6)").max_tokens == 6);
  CHECK(Accepted(CompletionKind::kChat, R"("max_tokens": 5, "max_completion_tokens": 6)").max_tokens == 6);
  CHECK(ChatError(R"("max_completion_tokens": 0)", "max_completion_tokens") ==
        "max_completion_tokens is 0, expected an integer from 1 to 2147483647");
}

TEST_CASE("wrong values are refused with field, value and what is allowed") {
  CHECK(TextError(R"("model": 5)", "model") == "model is 5, expected a text");
  CHECK(TextError(R"("max_tokens": 0)", "max_tokens") == "max_tokens is 0, expected an integer from 1 to 2147483647");
  CHECK(TextError(R"("max_tokens": -1)", "max_tokens") == "max_tokens is -1, expected an integer from 1 to 2147483647");
  CHECK(TextError(R"("max_tokens": 4294967297)", "max_tokens") ==
        "max_tokens is 4294967297, expected an integer from 1 to 2147483647");
  CHECK(TextError(R"("max_tokens": "5")", "max_tokens") ==
        R"(max_tokens is "5", expected an integer from 1 to 2147483647)");
  CHECK(TextError(R"("n": 17)", "n") == "n is 17, expected an integer from 1 to 16");
  CHECK(TextError(R"("n": true)", "n") == "n is true, expected an integer from 1 to 16");
  CHECK(TextError(R"("stream": 1)", "stream") == "stream is 1, expected true or false");
  CHECK(TextError(R"("echo": "yes")", "echo") == R"(echo is "yes", expected true or false)");
  CHECK(TextError(R"("stream_options": {"include_usage": true})", "stream_options") ==
        R"(stream_options is {"include_usage":true}, expected it only with stream true)");
  CHECK(TextError(R"("stream": true, "stream_options": 3)", "stream_options") ==
        "stream_options is 3, expected an object");
  CHECK(TextError(R"("stream": true, "stream_options": {"include_usage": 1})", "stream_options.include_usage") ==
        "stream_options.include_usage is 1, expected true or false");
  CHECK(TextError(R"("stream": true, "stream_options": {"continuous_usage_stats": true})",
                  "stream_options.continuous_usage_stats") ==
        "stream_options.continuous_usage_stats is true, which is not supported; expected null or false");
  CHECK(TextError(R"("cache_salt": "")", "cache_salt") == R"(cache_salt is "", expected a text of 1 to 1024 bytes)");
  CHECK(TextError(R"("cache_salt": 5)", "cache_salt") == "cache_salt is 5, expected a text");
  CHECK(TextError(R"("session_id": [])", "session_id") == "session_id is [], expected a text");
  CHECK(TextError(R"("cache_salt": ")" + std::string(1025, 'x') + "\"", "cache_salt").size() < 140);
}

TEST_CASE("at most four stop strings, none empty") {
  CHECK(Accepted(CompletionKind::kText, R"("stop": "x")").stop == std::vector<std::string>{"x"});
  CHECK(Accepted(CompletionKind::kText, R"("stop": [])").stop.empty());
  CHECK(Accepted(CompletionKind::kChat, R"("stop": ["1", "2", "3", "4"])").stop.size() == 4);
  const std::string expected = ", expected a text of 1 to 1024 bytes, or a list of at most 4 of them";
  CHECK(TextError(R"("stop": ["1", "2", "3", "4", "5"])", "stop") == R"(stop is ["1","2","3","4","5"])" + expected);
  CHECK(TextError(R"("stop": "")", "stop") == R"(stop is "")" + expected);
  CHECK(TextError(R"("stop": ["a", ""])", "stop[1]") == R"(stop[1] is "")" + expected);
  CHECK(TextError(R"("stop": ["a", 3])", "stop[1]") == "stop[1] is 3" + expected);
  CHECK(TextError(R"("stop": 3)", "stop") == "stop is 3" + expected);
}

TEST_CASE("what only concerns the choice of tokens is checked for its type and range, and ignored") {
  struct Row {
    const char* field;
    std::vector<const char*> good;
    std::vector<const char*> bad;
    const char* expected;
  };
  const Row rows[] = {
      {"temperature", {"0", "0.7", "2.5", "1e9"}, {"\"hot\"", "true", "-0.1", "-1"}, "a number of 0 or more"},
      {"top_p", {"1", "0.001", "1.0"}, {"[]", "0", "0.0", "1.01", "-1"}, "a number above 0, at most 1"},
      {"top_k", {"-1", "0", "1", "100000"}, {"1.5", "-2", "\"1\""}, "an integer from -1 to 9223372036854775807"},
      {"min_p", {"0", "0.1", "1"}, {"\"\"", "-0.1", "1.1"}, "a number from 0 to 1"},
      {"presence_penalty", {"-2", "0", "2"}, {"{}", "-2.1", "2.1"}, "a number from -2 to 2"},
      {"frequency_penalty", {"-2.0", "2.0"}, {"false", "-3", "2.5"}, "a number from -2 to 2"},
      {"repetition_penalty", {"1.1", "0.01", "5"}, {"\"1\"", "0", "-1.5"}, "a number above 0"},
      {"length_penalty", {"1.0", "-3"}, {"\"1\""}, "a number"},
      {"seed",
       {"42", "-1", "9223372036854775807", "-9223372036854775808"},
       {"4.2", "9223372036854775808", "\"1\""},
       "an integer from -9223372036854775808 to 9223372036854775807"},
      {"min_tokens", {"0", "3"}, {"\"3\"", "-1", "2147483648"}, "an integer from 0 to 2147483647"},
      {"logit_bias", {R"({"5": -100})", "{}"}, {"[5]"}, "an object of token ids and numbers"},
      {"user", {"\"me\""}, {"5"}, "a text"},
      {"ignore_eos", {"true"}, {"1"}, "true or false"},
      {"add_special_tokens", {"false"}, {"0"}, "true or false"},
      {"tools", {R"([{"type": "function"}])"}, {"{}"}, "a list"},
  };
  for (const CompletionKind kind : {CompletionKind::kText, CompletionKind::kChat}) {
    for (const Row& row : rows) {
      const std::string field = row.field;
      for (const char* good : row.good) Accepted(kind, "\"" + field + "\": " + good);
      for (const char* bad : row.bad) {
        CHECK(MessageOf(ParseFields(kind, "\"" + field + "\": " + bad), field) ==
              field + " is " + bad + ", expected " + row.expected);
      }
    }
  }
}

TEST_CASE("the keys of logit_bias are token ids, its values numbers") {
  const auto error = [](const std::string& value, const std::string& param) {
    return TextError(R"("logit_bias": )" + value, param);
  };
  Accepted(CompletionKind::kText, R"("logit_bias": {"0": 1, "2147483647": -0.5})");
  CHECK(error(R"({"a": 1})", "logit_bias") ==
        R"(logit_bias has the key "a", expected a token id from 0 to 2147483647)");
  CHECK(error(R"({"-1": 1})", "logit_bias") ==
        R"(logit_bias has the key "-1", expected a token id from 0 to 2147483647)");
  CHECK(error(R"({"2147483648": 1})", "logit_bias") ==
        R"(logit_bias has the key "2147483648", expected a token id from 0 to 2147483647)");
  CHECK(error(R"({"": 1})", "logit_bias") == R"(logit_bias has the key "", expected a token id from 0 to 2147483647)");
  CHECK(error(R"({"7": "1"})", "logit_bias.7") == R"(logit_bias.7 is "1", expected a number)");
}

TEST_CASE("min_tokens is at most max_tokens") {
  Accepted(CompletionKind::kText, R"("min_tokens": 5, "max_tokens": 5)");
  CHECK(TextError(R"("min_tokens": 6, "max_tokens": 5)", "min_tokens") ==
        "min_tokens is 6, expected at most max_tokens, which is 5");
  CHECK(ChatError(R"("min_tokens": 6, "max_completion_tokens": 5)", "min_tokens") ==
        "min_tokens is 6, expected at most max_tokens, which is 5");
}

TEST_CASE("what would change the answer and is not offered is refused by name") {
  struct Row {
    const char* field;
    std::vector<const char*> good;
    const char* bad;
    const char* expected;
  };
  const auto check = [](CompletionKind kind, const Row& row) {
    const std::string field = row.field;
    for (const char* good : row.good) Accepted(kind, "\"" + field + "\": " + good);
    CHECK(MessageOf(ParseFields(kind, "\"" + field + "\": " + row.bad), field) ==
          field + " is " + row.bad + ", which is not supported; expected " + row.expected);
  };
  const Row both[] = {
      {"logprobs", {"false", "0"}, "true", "null or false or 0"},
      {"logprobs", {}, "5", "null or false or 0"},
      {"logprobs", {}, "-1", "null or false or 0"},
      {"top_logprobs", {"0"}, "2", "null or 0"},
      {"prompt_logprobs", {"0"}, "1", "null or false or 0"},
      {"best_of", {"1"}, "2", "null or 1"},
      {"best_of", {}, "true", "null or 1"},
      {"tool_choice", {"\"none\"", "\"auto\""}, "\"required\"", R"(null or "none" or "auto")"},
      {"tool_choice", {}, R"({"type":"function"})", R"(null or "none" or "auto")"},
      {"response_format", {R"({"type": "text"})"}, R"({"type":"json_schema"})", R"(null or {"type":"text"})"},
      {"response_format", {}, R"({"type":"json_object"})", R"(null or {"type":"text"})"},
      {"prompt_embeds", {}, "\"AA==\"", "null"},
      {"ec_transfer_params", {}, "{}", "null"},
      {"guided_json", {}, "{}", "null"},
      {"use_beam_search", {"false"}, "true", "null or false"},
      {"stop_token_ids", {"[]"}, "[2]", "null or []"},
      {"include_stop_str_in_output", {"false"}, "true", "null or false"},
      {"return_token_ids", {"false"}, "true", "null or false"},
  };
  for (const Row& row : both) {
    check(CompletionKind::kText, row);
    check(CompletionKind::kChat, row);
  }
  check(CompletionKind::kText, {"suffix", {"\"\""}, "\"end\"", R"(null or "")"});
  check(CompletionKind::kChat, {"echo", {"false"}, "true", "null or false"});
  check(CompletionKind::kChat, {"modalities", {R"(["text"])"}, R"(["audio"])", R"(null or ["text"])"});
  check(CompletionKind::kChat, {"add_generation_prompt", {"true"}, "false", "null or true"});
}

TEST_CASE("vllm_xargs become extra arguments; lists are carried as their JSON text") {
  const CompletionRequest request = Accepted(CompletionKind::kChat, R"("vllm_xargs": {"s": "x", "i": -3, "f": 1.5,
      "b": true, "max": 9223372036854775807, "l": ["full", 1, 0.5], "e": []})");
  CHECK(request.extra_args == ExtraArgs{{"s", std::string("x")},
                                        {"i", std::int64_t{-3}},
                                        {"f", 1.5},
                                        {"b", true},
                                        {"max", std::int64_t{9223372036854775807}},
                                        {"l", std::string(R"(["full",1,0.5])")},
                                        {"e", std::string("[]")}});
}

TEST_CASE("vllm_xargs of other types, or too many, are refused by name") {
  const std::string expected =
      ", expected a text of at most 4096 bytes, a 64-bit integer, a number, true, false or a list of those";
  const auto error = [](const std::string& value, const std::string& param) {
    return TextError(R"("vllm_xargs": )" + value, param);
  };
  CHECK(error("[]", "vllm_xargs") == "vllm_xargs is [], expected an object of at most 64 values");
  CHECK(error(R"({"a": null})", "vllm_xargs.a") == "vllm_xargs.a is null" + expected);
  CHECK(error(R"({"a": {}})", "vllm_xargs.a") == "vllm_xargs.a is {}" + expected);
  CHECK(error(R"({"a": [[1]]})", "vllm_xargs.a") == "vllm_xargs.a is [[1]]" + expected);
  CHECK(error(R"({"a": [null]})", "vllm_xargs.a") == "vllm_xargs.a is [null]" + expected);
  CHECK(error(R"({"a": 9223372036854775808})", "vllm_xargs.a") == "vllm_xargs.a is 9223372036854775808" + expected);
  CHECK(error(R"({"\u001b[2J": null})", "vllm_xargs.\\x1b[2J") == "vllm_xargs.\\x1b[2J is null" + expected);
  CHECK(error(R"({"a": ")" + std::string(4097, 'x') + "\"}", "vllm_xargs.a").ends_with(expected));
  CHECK(error("{\"" + std::string(4097, 'k') + "\": 1}", "vllm_xargs").ends_with(", expected at most 4096 bytes"));
  std::string many = R"({"0": 0)";
  for (int i = 1; i < 64; ++i) many += ",\"" + std::to_string(i) + "\": 0";
  CHECK(Accepted(CompletionKind::kText, R"("vllm_xargs": )" + many + "}").extra_args.size() == 64);
  CHECK(error(many + R"(, "64": 0})", "vllm_xargs").ends_with("expected an object of at most 64 values"));
}

TEST_CASE("a session's name is a text, in the body as in vllm_xargs, and is not kept") {
  for (const CompletionKind kind : {CompletionKind::kText, CompletionKind::kChat}) {
    Accepted(kind, R"("session_id": "body", "vllm_xargs": {"session_id": "xargs"})");
    Accepted(kind, R"("session_id": "", "vllm_xargs": {"session_id": ""})");
    for (const std::string bad : {"5", "[]", "true", "{}"}) {
      CHECK(MessageOf(ParseFields(kind, R"("session_id": )" + bad), "session_id") ==
            "session_id is " + bad + ", expected a text");
    }
    for (const std::string bad : {"5", "[]", "true"}) {
      CHECK(MessageOf(ParseFields(kind, R"("vllm_xargs": {"session_id": )" + bad + "}"), "vllm_xargs.session_id") ==
            "vllm_xargs.session_id is " + bad + ", expected a text");
    }
  }
}

TEST_CASE("of several errors one is told") {
  CHECK(TextError(R"("n": 0, "max_tokens": 0, "stop": 3)", "max_tokens").starts_with("max_tokens is 0"));
}

}  // namespace
}  // namespace kvwire::engine
