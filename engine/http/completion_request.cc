// SPDX-License-Identifier: Apache-2.0
#include "engine/http/completion_request.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "engine/http/json_fields.h"
#include "engine/http/tokenizer.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

using Json = nlohmann::json;

enum class Applies : std::uint8_t { kText, kChat, kBoth };

bool AppliesTo(Applies applies, CompletionKind kind) {
  return applies == Applies::kBoth || (applies == Applies::kText) == (kind == CompletionKind::kText);
}

// Fields whose type and range are checked and whose value has no effect.
struct IgnoredField {
  const char* name;
  bool (*is_allowed)(const Json& value);
  const char* expected;
};

bool IsNumber(const Json& value) { return value.is_number(); }
bool IsPositive(const Json& value) { return IsNumber(value) && value.get<double>() > 0; }
bool IsNotNegative(const Json& value) { return IsNumber(value) && value.get<double>() >= 0; }
bool IsShare(const Json& value) { return IsNotNegative(value) && value.get<double>() <= 1; }
bool IsPositiveShare(const Json& value) { return IsPositive(value) && value.get<double>() <= 1; }
bool IsPenalty(const Json& value) { return IsNumber(value) && std::abs(value.get<double>()) <= 2; }
// One that 64 bits hold.
bool IsInteger(const Json& value) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  return value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::uint64_t>() <= kMost);
}
bool IsTopK(const Json& value) { return IsInteger(value) && value.get<std::int64_t>() >= -1; }
bool IsText(const Json& value) { return value.is_string(); }
bool IsObject(const Json& value) { return value.is_object(); }
bool IsList(const Json& value) { return value.is_array(); }
bool IsFlag(const Json& value) { return value.is_boolean(); }

constexpr IgnoredField kIgnored[] = {
    {"temperature", IsNotNegative, "a number of 0 or more"},
    {"top_p", IsPositiveShare, "a number above 0, at most 1"},
    {"top_k", IsTopK, "an integer from -1 to 9223372036854775807"},
    {"min_p", IsShare, "a number from 0 to 1"},
    {"presence_penalty", IsPenalty, "a number from -2 to 2"},
    {"frequency_penalty", IsPenalty, "a number from -2 to 2"},
    {"repetition_penalty", IsPositive, "a number above 0"},
    {"length_penalty", IsNumber, "a number"},
    {"seed", IsInteger, "an integer from -9223372036854775808 to 9223372036854775807"},
    {"logit_bias", IsObject, "an object of token ids and numbers"},
    {"user", IsText, "a text"},
    {"ignore_eos", IsFlag, "true or false"},
    {"skip_special_tokens", IsFlag, "true or false"},
    {"spaces_between_special_tokens", IsFlag, "true or false"},
    {"add_special_tokens", IsFlag, "true or false"},
    {"parallel_tool_calls", IsFlag, "true or false"},
    {"tools", IsList, "a list"},
};

// Fields that are refused unless they have one of the values that change nothing.
struct RefusedField {
  const char* name;
  Applies applies;
  const char* allowed;  // JSON: the list of values besides null
};

constexpr RefusedField kRefused[] = {
    {"logprobs", Applies::kBoth, "[false, 0]"},
    {"top_logprobs", Applies::kBoth, "[0]"},
    {"prompt_logprobs", Applies::kBoth, "[false, 0]"},
    {"best_of", Applies::kBoth, "[1]"},
    {"suffix", Applies::kText, R"([""])"},
    {"echo", Applies::kChat, "[false]"},
    {"tool_choice", Applies::kBoth, R"(["none", "auto"])"},
    {"function_call", Applies::kBoth, R"(["none", "auto"])"},
    {"response_format", Applies::kBoth, R"([{"type": "text"}])"},
    {"structured_outputs", Applies::kBoth, "[]"},
    {"guided_json", Applies::kBoth, "[]"},
    {"guided_regex", Applies::kBoth, "[]"},
    {"guided_choice", Applies::kBoth, "[]"},
    {"guided_grammar", Applies::kBoth, "[]"},
    {"modalities", Applies::kChat, R"([["text"]])"},
    {"audio", Applies::kChat, "[]"},
    {"prompt_embeds", Applies::kBoth, "[]"},
    {"truncate_prompt_tokens", Applies::kBoth, "[]"},
    {"use_beam_search", Applies::kBoth, "[false]"},
    {"stop_token_ids", Applies::kBoth, "[[]]"},
    {"include_stop_str_in_output", Applies::kBoth, "[false]"},
    {"return_token_ids", Applies::kBoth, "[false]"},
    {"add_generation_prompt", Applies::kChat, "[true]"},
    {"continue_final_message", Applies::kChat, "[false]"},
    {"chat_template", Applies::kChat, "[]"},
    {"ec_transfer_params", Applies::kBoth, "[]"},
};

void CheckRefused(CompletionKind kind, FieldReader* fields) {
  for (const RefusedField& field : kRefused) {
    if (!AppliesTo(field.applies, kind) || fields->Given(field.name) == nullptr) continue;
    fields->RefuseUnless(field.name, Json::parse(field.allowed));
  }
}

void CheckIgnored(FieldReader* fields) {
  for (const IgnoredField& field : kIgnored) {
    const Json* value = fields->Given(field.name);
    if (value != nullptr && !field.is_allowed(*value)) fields->Refuse(field.name, *value, field.expected);
  }
}

void CheckLogitBias(FieldReader* fields) {
  const std::string field = "logit_bias";
  const Json* bias = fields->Given(field);
  if (bias == nullptr || !bias->is_object()) return;
  for (const auto& [key, value] : bias->items()) {
    TokenId token = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token > kMaxTokenId) {
      return fields->Refuse(BadRequest(field, fmt::format("{} has the key \"{}\", expected a token id from 0 to {}",
                                                          field, ShortText(key), kMaxTokenId)));
    }
    if (!value.is_number()) return fields->Refuse(fmt::format("{}.{}", field, token), value, "a number");
  }
}

// A session has a name, which nothing here uses.
void CheckSession(FieldReader* fields) {
  fields->Text("session_id");
  const Json* args = fields->Given("vllm_xargs");
  if (args == nullptr || !args->is_object()) return;
  const auto named = args->find("session_id");
  if (named != args->end() && !named->is_string()) fields->Refuse("vllm_xargs.session_id", *named, "a text");
}

constexpr std::string_view kPromptForms = "a text, a list of texts, a list of token ids or a list of such lists";

// One prompt: a text or a list of tokens.
std::optional<Prompt> ReadPrompt(const std::string& field, const Json& value, FieldReader* fields) {
  if (value.is_array() && !value.empty()) return fields->TokenIds(field, value);
  if (value.is_string() && !value.get_ref<const std::string&>().empty()) return value.get<std::string>();
  fields->Refuse(field, value, "a text or a list of token ids that is not empty");
  return std::nullopt;
}

std::vector<Prompt> ReadPrompts(FieldReader* fields) {
  const std::string field = "prompt";
  std::vector<Prompt> prompts;
  const Json* value = fields->Given(field);
  if (value == nullptr) {
    // Who gives embeddings gives no prompt.
    fields->RefuseUnless("prompt_embeds", Json::array());
    fields->RefuseMissing(field, kPromptForms);
    return prompts;
  }
  const bool is_list = value->is_array() && !value->empty();
  if (!value->is_string() && !is_list) {
    fields->Refuse(field, *value, kPromptForms);
    return prompts;
  }
  if (!is_list || value->front().is_number()) {
    if (std::optional<Prompt> prompt = ReadPrompt(field, *value, fields)) prompts.push_back(*std::move(prompt));
    return prompts;
  }
  if (value->size() > kMaxChoices) {
    fields->Refuse(
        BadRequest(field, fmt::format("prompt has {} prompts, expected at most {}", value->size(), kMaxChoices)));
    return prompts;
  }
  for (const Json& element : *value) {
    const std::string name = fmt::format("{}[{}]", field, prompts.size());
    if (element.type() != value->front().type()) {
      fields->Refuse(name, element, fmt::format("prompts of one form: {}", kPromptForms));
      return prompts;
    }
    std::optional<Prompt> prompt = ReadPrompt(name, element, fields);
    if (!prompt.has_value()) return prompts;
    prompts.push_back(*std::move(prompt));
  }
  return prompts;
}

std::vector<std::string> ReadStop(FieldReader* fields) {
  const std::string field = "stop";
  std::vector<std::string> stop;
  const Json* value = fields->Given(field);
  if (value == nullptr) return stop;
  const std::string expected =
      fmt::format("a text of 1 to {} bytes, or a list of at most {} of them", kMaxStopBytes, kMaxStopStrings);
  if (!value->is_string() && !value->is_array()) {
    fields->Refuse(field, *value, expected);
    return stop;
  }
  const std::span<const Json> list =
      value->is_string() ? std::span(value, 1) : std::span<const Json>(value->get_ref<const Json::array_t&>());
  if (list.size() > kMaxStopStrings) {
    fields->Refuse(field, *value, expected);
    return stop;
  }
  for (const Json& text : list) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty() ||
        text.get_ref<const std::string&>().size() > kMaxStopBytes) {
      fields->Refuse(value->is_string() ? field : fmt::format("{}[{}]", field, stop.size()), text, expected);
      return stop;
    }
    stop.push_back(text.get<std::string>());
  }
  return stop;
}

// A value of vllm_xargs that is no list; nothing when it is of no allowed type.
std::optional<scheduler::ExtraArg> ReadExtraArg(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_string() && value.get_ref<const std::string&>().size() <= kMaxExtraArgBytes) {
    return value.get<std::string>();
  }
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > kMax) return std::nullopt;
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) return value.get<double>();
  return std::nullopt;
}

scheduler::ExtraArgs ReadExtraArgs(FieldReader* fields) {
  const std::string field = "vllm_xargs";
  const std::string expected = fmt::format(
      "a text of at most {} bytes, a 64-bit integer, a number, true, false or a list of those", kMaxExtraArgBytes);
  scheduler::ExtraArgs args;
  const Json* value = fields->Given(field);
  if (value == nullptr) return args;
  if (!value->is_object() || value->size() > kMaxExtraArgs) {
    fields->Refuse(field, *value, fmt::format("an object of at most {} values", kMaxExtraArgs));
    return args;
  }
  for (const auto& [name, given] : value->items()) {
    if (name.size() > kMaxExtraArgBytes) {
      fields->Refuse(BadRequest(field, fmt::format("vllm_xargs has the name \"{}\", expected at most {} bytes",
                                                   ShortText(name), kMaxExtraArgBytes)));
      return args;
    }
    std::optional<scheduler::ExtraArg> arg = ReadExtraArg(given);
    if (given.is_array()) {
      std::string text = given.dump(-1, ' ', false, Json::error_handler_t::replace);
      bool allowed = text.size() <= kMaxExtraArgBytes;
      for (const Json& element : given) allowed = allowed && ReadExtraArg(element).has_value();
      if (allowed) arg = std::move(text);
    }
    if (!arg.has_value()) {
      fields->Refuse(fmt::format("{}.{}", field, ShortText(name)), given, expected);
      return args;
    }
    args.emplace(name, *std::move(arg));
  }
  return args;
}

void ReadStreaming(FieldReader* fields, CompletionRequest* request) {
  request->stream = fields->Flag("stream").value_or(false);
  const Json* options = fields->Given("stream_options");
  if (options == nullptr) return;
  if (!request->stream) return fields->Refuse("stream_options", *options, "it only with stream true");
  if (!options->is_object()) return fields->Refuse("stream_options", *options, "an object");
  const auto read = [&](const char* name) {
    const auto found = options->find(name);
    if (found == options->end() || found->is_null()) return false;
    if (found->is_boolean()) return found->get<bool>();
    fields->Refuse(fmt::format("stream_options.{}", name), *found, "true or false");
    return false;
  };
  request->include_usage = read("include_usage");
  if (read("continuous_usage_stats")) {
    fields->RefuseUnsupported("stream_options.continuous_usage_stats", true, "null or false");
  }
}

constexpr std::string_view kMultimodalPlace = "it only with one prompt that is a list of token ids";

// Places are counted in tokens, so they need a prompt of tokens, and one only.
void ReadMultimodal(FieldReader* fields, CompletionRequest* request) {
  const std::string field = "kvwire_multimodal";
  const Json* given = fields->Given(field);
  if (given == nullptr) return;
  const auto* tokens =
      request->prompts.size() == 1 ? std::get_if<std::vector<TokenId>>(&request->prompts.front()) : nullptr;
  if (tokens == nullptr) return fields->Refuse(field, *given, kMultimodalPlace);
  request->multimodal = fields->MultimodalItems(field, tokens->size());
}

void ReadCacheSalt(FieldReader* fields, CompletionRequest* request) {
  const Json* salt = fields->Given("cache_salt");
  if (salt == nullptr) return;
  request->cache_salt = fields->Text("cache_salt").value_or("");
  if (request->cache_salt.empty() || request->cache_salt.size() > kMaxCacheSaltBytes) {
    fields->Refuse("cache_salt", *salt, fmt::format("a text of 1 to {} bytes", kMaxCacheSaltBytes));
  }
}

void ReadLengths(FieldReader* fields, CompletionRequest* request) {
  request->max_tokens = fields->Integer("max_tokens", 1, kMaxOutputTokens);
  if (request->kind == CompletionKind::kChat) {
    // The newer name of the same.
    const std::optional<std::uint32_t> newer = fields->Integer("max_completion_tokens", 1, kMaxOutputTokens);
    if (newer.has_value()) request->max_tokens = newer;
  }
  const std::optional<std::uint32_t> min_tokens = fields->Integer("min_tokens", 0, kMaxOutputTokens);
  if (min_tokens && request->max_tokens && *min_tokens > *request->max_tokens) {
    fields->Refuse(BadRequest("min_tokens", fmt::format("min_tokens is {}, expected at most max_tokens, which is {}",
                                                        *min_tokens, *request->max_tokens)));
  }
  request->n = fields->Integer("n", 1, kMaxChoicesPerPrompt).value_or(1);
  if (request->prompts.size() * request->n > kMaxChoices) {
    fields->Refuse(BadRequest("n", fmt::format("n is {} for {} prompts, expected at most {} choices in all", request->n,
                                               request->prompts.size(), kMaxChoices)));
  }
}

// An answer has room for the parameters of one request of the engine.
void ReadTransfer(FieldReader* fields, CompletionRequest* request) {
  const std::string field = "kv_transfer_params";
  request->kv_transfer = ReadKVTransferParams(fields);
  if (!request->kv_transfer) return;
  if (request->prompts.size() * request->n != 1) {
    fields->Refuse(field, *fields->Given(field), "it only with one prompt and n 1");
  }
  if (request->kv_transfer->do_remote_decode && request->stream) {
    fields->Refuse("stream", true, "false, as kv_transfer_params.do_remote_decode is true");
  }
}

}  // namespace

ApiResult<CompletionRequest> ParseCompletionRequest(CompletionKind kind, const Json& body) {
  FieldReader fields(body);
  CompletionRequest request;
  request.kind = kind;
  request.model = fields.Text("model").value_or("");
  if (kind == CompletionKind::kText) {
    request.prompts = ReadPrompts(&fields);
    ReadMultimodal(&fields, &request);
    request.echo = fields.Flag("echo").value_or(false);
  } else {
    ChatPrompt chat = RenderChat(fields.Messages("messages"));
    request.prompts.emplace_back(std::move(chat.text));
    request.images = std::move(chat.images);
    if (const Json* items = fields.Given("kvwire_multimodal")) {
      fields.Refuse("kvwire_multimodal", *items,
                    fmt::format("{}; a chat has images as parts of type \"image_url\"", kMultimodalPlace));
    }
  }
  ReadLengths(&fields, &request);
  ReadStreaming(&fields, &request);
  request.stop = ReadStop(&fields);
  ReadCacheSalt(&fields, &request);
  CheckSession(&fields);
  request.extra_args = ReadExtraArgs(&fields);
  ReadTransfer(&fields, &request);
  CheckIgnored(&fields);
  CheckLogitBias(&fields);
  CheckRefused(kind, &fields);
  if (fields.error().has_value()) return tl::unexpected<ApiError>(*fields.error());
  return request;
}

}  // namespace kvwire::engine
