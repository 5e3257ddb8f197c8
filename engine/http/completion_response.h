// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/http/api_error.h"
#include "engine/http/completion_request.h"
#include "engine/http/kv_transfer_params.h"
#include "kv_events/events.h"

namespace kvwire::engine {

// The texts of responses. Keys are in the order of the OpenAI reference; bytes that are no UTF-8 become U+FFFD.
// Threads: any.

// What a response and all chunks of its stream begin with.
struct ResponseHead {
  CompletionKind kind = CompletionKind::kText;
  std::string id;            // made by ResponseId
  std::int64_t created = 0;  // Unix seconds
  std::string model;
};

enum class ChoiceEnd : std::uint8_t {
  kStop,    // a stop string was found
  kLength,  // max_tokens were produced
};

struct Choice {
  std::uint32_t index = 0;       // prompt number times n, and the number of the choice
  std::string text;              // all of it, or what is new
  std::optional<ChoiceEnd> end;  // none: more follows
};

struct Usage {
  std::uint64_t prompt_tokens = 0;      // of all prompts
  std::uint64_t completion_tokens = 0;  // of all choices
  std::uint64_t cached_tokens = 0;      // of the prompts, found in the cache
};

// "cmpl-" or "chatcmpl-" and `unique`.
std::string ResponseId(CompletionKind kind, std::string_view unique);

// The body of a response that is not streamed; with kv_transfer_params if there are any.
std::string CompletionResponse(const ResponseHead& head, std::span<const Choice> choices, const Usage& usage,
                               const std::optional<KVTransferParams>& kv_transfer = std::nullopt);

// The events of a stream, each complete with its empty line. A stream is: of a chat, StreamStart for each choice;
// StreamChunk any number of times, the last of a choice with its end; StreamUsage if include_usage was asked for;
// kStreamDone. Or StreamError in place of what is left, then kStreamDone.
std::string StreamStart(const ResponseHead& head, std::uint32_t index);  // the role that speaks; REQUIRES: a chat
std::string StreamChunk(const ResponseHead& head, const Choice& choice);
std::string StreamUsage(const ResponseHead& head, const Usage& usage);
std::string StreamError(const ApiError& error);
inline constexpr std::string_view kStreamDone = "data: [DONE]\n\n";

// The body of /v1/models: one model. `created` in Unix seconds.
std::string ModelsResponse(std::string_view model, std::int64_t created, std::uint32_t max_model_len);

// The bodies of /tokenize and /detokenize.
std::string TokenizeResponse(std::span<const TokenId> tokens, std::uint32_t max_model_len);
std::string DetokenizeResponse(std::string_view text);

}  // namespace kvwire::engine
