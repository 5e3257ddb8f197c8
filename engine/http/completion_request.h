// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/http/api_error.h"
#include "engine/http/chat_prompt.h"
#include "engine/http/kv_transfer_params.h"
#include "kv_events/events.h"
#include "kv_events/hash/extra_keys.h"
#include "scheduler/request.h"

namespace kvwire::engine {

// Which of the two ways to ask: /v1/completions or /v1/chat/completions.
enum class CompletionKind : std::uint8_t { kText, kChat };

// A text to be tokenized, or tokens; neither is empty. Images are beside it.
using Prompt = std::variant<std::string, std::vector<TokenId>>;

// Bounds of a request, on top of those of its body.
inline constexpr std::uint32_t kMaxChoicesPerPrompt = 16;
inline constexpr std::size_t kMaxChoices = 256;  // prompts times n
inline constexpr std::uint32_t kMaxOutputTokens = 0x7fffffff;
inline constexpr std::size_t kMaxStopStrings = 4;
inline constexpr std::size_t kMaxStopBytes = 1024;  // of one
inline constexpr std::size_t kMaxCacheSaltBytes = 1024;
inline constexpr std::size_t kMaxExtraArgs = 64;
inline constexpr std::size_t kMaxExtraArgBytes = 4096;  // of a name or a text

// A request for completions. A value.
struct CompletionRequest {
  CompletionKind kind = CompletionKind::kText;
  std::string model;                        // empty: none was named
  std::vector<Prompt> prompts;              // at least one; of a chat one, rendered by RenderChat
  std::vector<ImageInText> images;          // of a chat's prompt
  std::vector<MultimodalItem> multimodal;   // kvwire_multimodal, of the one prompt of tokens
  std::optional<std::uint32_t> max_tokens;  // none: as many as the server likes
  std::uint32_t n = 1;                      // choices for each prompt
  bool stream = false;
  bool include_usage = false;  // only with stream
  bool echo = false;           // the text begins with the prompt
  std::vector<std::string> stop;
  std::string cache_salt;                       // empty: none
  scheduler::ExtraArgs extra_args;              // vllm_xargs; a list is carried as its JSON text
  std::optional<KVTransferParams> kv_transfer;  // with one prompt and one choice only
};

// Reads what ParseBody returned. A field that is null counts as not given, and unknown ones are ignored. What only
// concerns the choice of tokens (temperature, top_p, seed, logit_bias and the like) is checked for its type and range,
// and ignored; so is the name of a session, which has no effect. What would change the answer and is not offered
// (logprobs, best_of, suffix, forced tools, structured output and the like) is refused by name. Errors: status 400; the
// message names the field, its value and what is allowed. Source: docs/protocol.md, "Report mode", for vllm_xargs.
ApiResult<CompletionRequest> ParseCompletionRequest(CompletionKind kind, const nlohmann::json& body);

}  // namespace kvwire::engine
