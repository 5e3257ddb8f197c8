// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/http/api_error.h"
#include "engine/http/chat_prompt.h"
#include "engine/http/completion_request.h"
#include "engine/http/completion_response.h"
#include "engine/http/text_stream.h"
#include "engine/http/tokenizer.h"
#include "engine/serve/instance.h"
#include "engine/serve/server_counters.h"

namespace kvwire::engine {

// What tokenizer or engine refused, as an answer to the client: 503 for kUnavailable, else 400.
ApiError ToApiError(const Error& error);

// The refusal of a prompt that leaves no room for output.
std::optional<ApiError> TooLong(std::size_t num_prompt_tokens, std::uint32_t max_model_len);

// One request for completions at work: a request of the engine for each choice.
//
// Threads: one thread at a time. Ownership: the pointers outlive it. Its end aborts what is unfinished.
class CompletionJob {
 public:
  struct Host {
    Instance* instance = nullptr;
    const Tokenizer* tokenizer = nullptr;
    ServerCounters* counters = nullptr;
    std::uint32_t default_max_tokens = 128;      // of a chat; a completion has 16
    std::optional<scheduler::LoraAdapter> lora;  // of the model that was asked for
  };

  // Tokenizes, checks lengths and queues every choice, or none.
  // Errors: 400 for a transfer of blocks that the instance's configuration does not allow, for prompts that are too
  // long, more choices than the queues have places, and what the tokenizer refuses; 429 when a queue is full; 503 when
  // the engine is stopping or the tokenizer does not answer. 429 and 503 are counted.
  static ApiResult<std::unique_ptr<CompletionJob>> Start(const Host& host, const CompletionRequest& request,
                                                         std::optional<std::uint32_t> rank);
  ~CompletionJob();
  CompletionJob(const CompletionJob&) = delete;
  CompletionJob& operator=(const CompletionJob&) = delete;

  // What is new in each choice that has news; waits for it, at most this long. A choice that ends says so once.
  // Errors: 400 for a request that the engine refuses, 503 when it stopped, 500; then the job is over.
  ApiResult<std::vector<Choice>> Poll(std::chrono::milliseconds timeout);

  // Every choice has ended.
  bool done() const noexcept { return unfinished_ == 0; }

  // Complete once it is done.
  Usage usage() const noexcept { return usage_; }
  // Where another engine finds the prompt's blocks, if it was asked for and they are held.
  const std::optional<KVTransferParams>& held() const noexcept { return held_; }
  std::uint32_t num_choices() const noexcept { return static_cast<std::uint32_t>(choices_.size()); }

 private:
  struct Running {
    Admission admission;
    TextStream text;
    std::string before;        // of the text: what was not told yet when the first token comes
    bool counts_cache = true;  // the first choice of its prompt
    bool over = false;
  };

  explicit CompletionJob(const Host& host) : host_(host) {}

  // The first prompt's fault, if there is one: nothing was queued yet.
  ApiResult<std::vector<scheduler::NewRequest>> Prepare(const CompletionRequest& request,
                                                        std::vector<std::string>* before);
  ApiResult<EncodedPrompt> Encode(const CompletionRequest& request, const Prompt& prompt) const;
  ApiResult<std::uint32_t> MaxTokens(const CompletionRequest& request, std::size_t num_prompt_tokens) const;
  // Nothing when the choice has no news.
  ApiResult<std::optional<Choice>> Advance(std::uint32_t index, std::chrono::milliseconds timeout);
  KVTransferParams HeldAs(const Admission& admission, const scheduler::KeptBlocks& kept) const;
  void End(Running* running, FinishedCount how);
  void TakeBack();
  void CountStopped();

  const Host host_;
  bool can_stop_ = false;  // there are stop strings
  std::vector<Running> choices_;
  std::size_t unfinished_ = 0;
  Usage usage_;
  bool holds_ = false;  // what it finishes with
  std::optional<KVTransferParams> held_;
};

}  // namespace kvwire::engine
