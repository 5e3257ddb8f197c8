// SPDX-License-Identifier: Apache-2.0
#include "engine/http/completion_response.h"

#include <utility>

#include <nlohmann/json.hpp>

namespace kvwire::engine {

namespace {

using OrderedJson = nlohmann::ordered_json;

std::string Dump(const OrderedJson& json) { return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace); }

std::string Event(const OrderedJson& json) { return "data: " + Dump(json) + "\n\n"; }

OrderedJson Reason(const std::optional<ChoiceEnd>& end) {
  if (!end.has_value()) return nullptr;
  return *end == ChoiceEnd::kStop ? "stop" : "length";
}

OrderedJson UsageJson(const Usage& usage) {
  return OrderedJson::object(
      {{"prompt_tokens", usage.prompt_tokens},
       {"completion_tokens", usage.completion_tokens},
       {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
       {"prompt_tokens_details", OrderedJson::object({{"cached_tokens", usage.cached_tokens}})}});
}

// `chat_object`: the name of the object in a chat.
OrderedJson Head(const ResponseHead& head, std::string_view chat_object) {
  return OrderedJson::object({{"id", head.id},
                              {"object", head.kind == CompletionKind::kChat ? chat_object : "text_completion"},
                              {"created", head.created},
                              {"model", head.model}});
}

// `content`: the pair that carries the text.
OrderedJson ChoiceJson(std::uint32_t index, std::string content_key, OrderedJson content,
                       const std::optional<ChoiceEnd>& end) {
  OrderedJson json = OrderedJson::object({{"index", index}});
  json[std::move(content_key)] = std::move(content);
  json["logprobs"] = nullptr;
  json["finish_reason"] = Reason(end);
  return json;
}

constexpr std::string_view kChatChunk = "chat.completion.chunk";

std::string ChunkEvent(const ResponseHead& head, OrderedJson choice) {
  OrderedJson chunk = Head(head, kChatChunk);
  chunk["choices"] = OrderedJson::array({std::move(choice)});
  return Event(chunk);
}

}  // namespace

std::string ResponseId(CompletionKind kind, std::string_view unique) {
  return std::string(kind == CompletionKind::kChat ? "chatcmpl-" : "cmpl-").append(unique);
}

std::string CompletionResponse(const ResponseHead& head, std::span<const Choice> choices, const Usage& usage,
                               const std::optional<KVTransferParams>& kv_transfer) {
  OrderedJson response = Head(head, "chat.completion");
  response["choices"] = OrderedJson::array();
  for (const Choice& choice : choices) {
    response["choices"].push_back(
        head.kind == CompletionKind::kChat
            ? ChoiceJson(choice.index, "message",
                         OrderedJson::object({{"role", "assistant"}, {"content", choice.text}}), choice.end)
            : ChoiceJson(choice.index, "text", choice.text, choice.end));
  }
  response["usage"] = UsageJson(usage);
  if (kv_transfer) response["kv_transfer_params"] = ToJson(*kv_transfer);
  return Dump(response);
}

std::string StreamStart(const ResponseHead& head, std::uint32_t index) {
  return ChunkEvent(head,
                    ChoiceJson(index, "delta", OrderedJson::object({{"role", "assistant"}, {"content", ""}}), {}));
}

std::string StreamChunk(const ResponseHead& head, const Choice& choice) {
  if (head.kind == CompletionKind::kText) {
    return ChunkEvent(head, ChoiceJson(choice.index, "text", choice.text, choice.end));
  }
  OrderedJson delta = OrderedJson::object();
  if (!choice.text.empty()) delta["content"] = choice.text;
  return ChunkEvent(head, ChoiceJson(choice.index, "delta", std::move(delta), choice.end));
}

std::string StreamUsage(const ResponseHead& head, const Usage& usage) {
  OrderedJson chunk = Head(head, kChatChunk);
  chunk["choices"] = OrderedJson::array();
  chunk["usage"] = UsageJson(usage);
  return Event(chunk);
}

std::string StreamError(const ApiError& error) { return "data: " + ToJson(error) + "\n\n"; }

std::string ModelsResponse(std::string_view model, std::int64_t created, std::uint32_t max_model_len) {
  const OrderedJson card = OrderedJson::object({{"id", model},
                                                {"object", "model"},
                                                {"created", created},
                                                {"owned_by", "kvwire"},
                                                {"root", model},
                                                {"parent", nullptr},
                                                {"max_model_len", max_model_len}});
  return Dump(OrderedJson::object({{"object", "list"}, {"data", OrderedJson::array({card})}}));
}

std::string TokenizeResponse(std::span<const TokenId> tokens, std::uint32_t max_model_len) {
  return Dump(OrderedJson::object(
      {{"count", tokens.size()}, {"max_model_len", max_model_len}, {"tokens", tokens}, {"token_strs", nullptr}}));
}

std::string DetokenizeResponse(std::string_view text) { return Dump(OrderedJson::object({{"prompt", text}})); }

}  // namespace kvwire::engine
