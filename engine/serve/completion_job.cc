// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/completion_job.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace kvwire::engine {

namespace {

constexpr std::uint32_t kCompletionMaxTokens = 16;

ApiError ToApiError(SubmitResult result) {
  return result == SubmitResult::kFull
             ? TooManyRequests("the engine's queue is full; try again later or see --max-queued-requests")
             : Unavailable("the engine is stopping");
}

}  // namespace

ApiError ToApiError(const Error& error) {
  return error.code == ErrorCode::kUnavailable ? Unavailable(error.message) : BadRequest(error.message);
}

ApiResult<std::vector<TokenId>> CompletionJob::Tokenize(const Prompt& prompt) const {
  if (const auto* tokens = std::get_if<std::vector<TokenId>>(&prompt)) return *tokens;
  Result<std::vector<TokenId>> tokens = host_.tokenizer->Encode(std::get<std::string>(prompt));
  if (!tokens) return tl::unexpected(ToApiError(tokens.error()));
  if (tokens->empty()) return tl::unexpected(BadRequest("prompt", "prompt has no tokens, expected at least one"));
  return *std::move(tokens);
}

ApiResult<std::uint32_t> CompletionJob::MaxTokens(const CompletionRequest& request,
                                                  std::size_t num_prompt_tokens) const {
  const std::uint32_t max_model_len = host_.instance->config().scheduler.max_model_len;
  if (num_prompt_tokens >= max_model_len) {
    return tl::unexpected(BadRequest(
        "prompt", fmt::format("the prompt has {} tokens; max_model_len is {}, for prompt and output together",
                              num_prompt_tokens, max_model_len)));
  }
  const auto room = static_cast<std::uint32_t>(max_model_len - num_prompt_tokens);
  if (!request.max_tokens) {
    return std::min(room, request.kind == CompletionKind::kText ? kCompletionMaxTokens : host_.default_max_tokens);
  }
  if (*request.max_tokens <= room) return *request.max_tokens;
  return tl::unexpected(BadRequest(
      "max_tokens", fmt::format("the prompt has {} tokens and max_tokens is {}; max_model_len is {}, for both together",
                                num_prompt_tokens, *request.max_tokens, max_model_len)));
}

ApiResult<std::unique_ptr<CompletionJob>> CompletionJob::Start(const Host& host, const CompletionRequest& request,
                                                               std::optional<std::uint32_t> rank) {
  std::unique_ptr<CompletionJob> job(new CompletionJob(host));
  // Every prompt is checked before the engine sees the first.
  std::vector<scheduler::NewRequest> prepared;
  std::vector<std::string> before(request.prompts.size());
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    ApiResult<std::vector<TokenId>> tokens = job->Tokenize(request.prompts[i]);
    if (!tokens) return tl::unexpected(std::move(tokens).error());
    const ApiResult<std::uint32_t> max_tokens = job->MaxTokens(request, tokens->size());
    if (!max_tokens) return tl::unexpected(max_tokens.error());
    if (request.echo) {
      if (const auto* text = std::get_if<std::string>(&request.prompts[i])) {
        before[i] = *text;
      } else {
        Result<std::string> decoded = host.tokenizer->Decode(*tokens);
        if (!decoded) return tl::unexpected(ToApiError(decoded.error()));
        before[i] = *std::move(decoded);
      }
    }
    scheduler::NewRequest prompt;
    prompt.prompt = *std::move(tokens);
    prompt.max_tokens = *max_tokens;
    prompt.cache_salt = request.cache_salt;
    prompt.extra_args = request.extra_args;
    job->usage_.prompt_tokens += prompt.prompt.size();
    prepared.push_back(std::move(prompt));
  }
  job->can_stop_ = !request.stop.empty();
  job->choices_.reserve(prepared.size() * request.n);
  for (std::size_t i = 0; i < prepared.size(); ++i) {
    for (std::uint32_t choice = 0; choice < request.n; ++choice) {
      auto admission = host.instance->Submit(prepared[i], rank);
      if (!admission) return tl::unexpected(ToApiError(admission.error()));
      job->choices_.push_back(
          {*std::move(admission), TextStream(host.tokenizer, request.stop), before[i], choice == 0, false});
      ++job->unfinished_;
    }
  }
  return job;
}

CompletionJob::~CompletionJob() {
  for (Running& running : choices_) {
    if (running.over) continue;
    host_.instance->Abort(running.admission);
    End(&running, FinishedCount::kAbort);
  }
}

void CompletionJob::End(Running* running, FinishedCount how) {
  running->over = true;
  --unfinished_;
  host_.counters->CountFinished(running->admission.rank, how);
}

ApiResult<std::vector<Choice>> CompletionJob::Poll(std::chrono::milliseconds timeout) {
  // Several choices are looked at in turn, since nothing tells of all at once.
  constexpr std::chrono::milliseconds kTurn(5);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::vector<Choice> news;
  while (true) {
    bool waited = false;
    for (std::uint32_t index = 0; index < choices_.size(); ++index) {
      if (choices_[index].over) continue;
      std::chrono::milliseconds wait(0);
      if (!waited && news.empty()) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
        wait = std::max(wait, unfinished_ == 1 ? left : std::min(left, kTurn));
        waited = true;
      }
      ApiResult<std::optional<Choice>> choice = Advance(index, wait);
      if (!choice) return tl::unexpected(std::move(choice).error());
      if (*choice) news.push_back(**std::move(choice));
    }
    if (!news.empty() || done() || std::chrono::steady_clock::now() >= deadline) return news;
  }
}

ApiResult<std::optional<Choice>> CompletionJob::Advance(std::uint32_t index, std::chrono::milliseconds timeout) {
  Running& running = choices_[index];
  const OutputChunk chunk = running.admission.output->Take(timeout);
  if (chunk.empty()) return std::optional<Choice>();
  if (chunk.refused) {
    End(&running, FinishedCount::kError);
    return tl::unexpected(ToApiError(*chunk.refused));
  }
  if (chunk.finished && chunk.finished->reason == scheduler::FinishReason::kError) {
    End(&running, FinishedCount::kError);
    return tl::unexpected(InternalError("the model gave no token for the request"));
  }
  Choice choice;
  choice.index = index;
  choice.text = std::exchange(running.before, {});
  // What comes after a stop string is not part of the answer, so the tokens are counted one by one.
  const std::size_t step = can_stop_ ? 1 : std::max<std::size_t>(chunk.tokens.size(), 1);
  for (std::size_t i = 0; i < chunk.tokens.size() && !running.text.stopped(); i += step) {
    Result<std::string> text = running.text.Append(std::span(chunk.tokens).subspan(i, step));
    if (!text) return tl::unexpected(ToApiError(text.error()));
    choice.text += *text;
    usage_.completion_tokens += step;
  }
  if (running.text.stopped()) {
    choice.end = ChoiceEnd::kStop;
    if (!chunk.finished) host_.instance->Abort(running.admission);
    End(&running, FinishedCount::kStop);
  } else if (chunk.finished) {
    Result<std::string> rest = running.text.Finish();
    if (!rest) return tl::unexpected(ToApiError(rest.error()));
    choice.text += *rest;
    choice.end = ChoiceEnd::kLength;
    End(&running, FinishedCount::kLength);
  }
  if (chunk.finished && running.counts_cache) usage_.cached_tokens += chunk.finished->num_cached_tokens;
  return std::optional<Choice>(std::move(choice));
}

}  // namespace kvwire::engine
