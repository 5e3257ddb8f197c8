// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/completion_job.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine/serve/kv_transfer.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

constexpr std::uint32_t kCompletionMaxTokens = 16;

ApiError ToApiError(SubmitResult result) {
  return result == SubmitResult::kFull
             ? TooManyRequests("the engine's queue is full; try again later or see --max-queued-requests")
             : Unavailable("the engine is stopping");
}

// A request with more choices than there are places would be told to try again for ever.
std::optional<ApiError> TooManyChoices(const Instance& instance, const CompletionRequest& request,
                                       std::optional<std::uint32_t> rank) {
  const std::size_t choices = request.prompts.size() * request.n;
  const std::size_t ranks = rank ? 1 : instance.num_ranks();
  const std::size_t places = instance.config().max_requests;
  if (choices <= places * ranks) return std::nullopt;
  return BadRequest(
      request.n > 1 ? "n" : "prompt",
      fmt::format("{} prompts with n {} are {} choices; --max-queued-requests is {} for each of {} ranks, "
                  "expected at most {} choices",
                  request.prompts.size(), request.n, choices, places, ranks, places * ranks));
}

// Of the prompt's leading tokens, those whose blocks the source names in every group.
std::uint32_t ReceivableTokens(const KVTransferParams& source, std::span<const scheduler::KVCacheGroup> groups,
                               std::uint32_t block_size) {
  std::size_t tokens = SIZE_MAX;
  for (std::size_t group = 0; group < source.remote_block_ids.size(); ++group) {
    const std::uint32_t size = groups.empty() ? block_size : groups[group].block_size;
    tokens = std::min(tokens, source.remote_block_ids[group].size() * size);
  }
  return static_cast<std::uint32_t>(std::min<std::size_t>(tokens, kMaxOutputTokens));
}

ApiError RefuseTransfer(const std::string& name, std::string_view value, std::string_view expected) {
  return BadRequest("kv_transfer_params",
                    fmt::format("kv_transfer_params.{} is {}, expected {}", name, value, expected));
}

// Whether this engine takes part in the transfer that a request asks for.
std::optional<ApiError> CheckTransfer(const InstanceConfig& instance, const KVTransferParams& asked) {
  if (!instance.kv_transfer) {
    return BadRequest(
        "kv_transfer_params",
        "kv_transfer_params is given, expected null, as this engine has no --kv-transfer-config of NixlConnector");
  }
  const KVTransferConfig& config = *instance.kv_transfer;
  const std::string role = fmt::format("false, as --kv-transfer-config has kv_role \"{}\"", ToString(config.role));
  if (asked.do_remote_decode && config.role == KVRole::kConsumer)
    return RefuseTransfer("do_remote_decode", "true", role);
  if (!asked.do_remote_prefill) return std::nullopt;
  if (config.role == KVRole::kProducer) return RefuseTransfer("do_remote_prefill", "true", role);
  const std::size_t groups = std::max<std::size_t>(1, instance.scheduler.groups.size());
  if (asked.remote_block_ids.size() != groups) {
    return RefuseTransfer("remote_block_ids", fmt::format("a list of {}", asked.remote_block_ids.size()),
                          fmt::format("{}, one for each KV-cache group", groups));
  }
  if (config.Allows(asked.remote_host, asked.remote_port)) return std::nullopt;
  return RefuseTransfer("remote_host",
                        fmt::format("\"{}\" with port {}", ShortText(asked.remote_host), asked.remote_port),
                        config.AllowedText());
}

// A list names the blocks of the prompt's leading tokens, so it cannot be longer than the prompt.
std::optional<ApiError> TooManyBlockIds(const KVTransferParams& source, std::span<const scheduler::KVCacheGroup> groups,
                                        std::uint32_t block_size, std::size_t num_tokens) {
  for (std::size_t group = 0; group < source.remote_block_ids.size(); ++group) {
    const std::uint32_t size = groups.empty() ? block_size : groups[group].block_size;
    const std::size_t most = (num_tokens + size - 1) / size;
    const std::size_t given = source.remote_block_ids[group].size();
    if (given <= most) continue;
    return RefuseTransfer(
        groups.empty() ? "remote_block_ids" : fmt::format("remote_block_ids[{}]", group),
        fmt::format("a list of {} ids", given),
        fmt::format("at most {}, as the prompt has {} tokens and a block {}", most, num_tokens, size));
  }
  return std::nullopt;
}

}  // namespace

ApiError ToApiError(const Error& error) {
  return error.code == ErrorCode::kUnavailable ? Unavailable(error.message) : BadRequest(error.message);
}

std::optional<ApiError> TooLong(std::size_t num_prompt_tokens, std::uint32_t max_model_len) {
  if (num_prompt_tokens < max_model_len) return std::nullopt;
  return BadRequest("prompt",
                    fmt::format("the prompt has {} tokens; max_model_len is {}, for prompt and output together",
                                num_prompt_tokens, max_model_len));
}

ApiResult<EncodedPrompt> CompletionJob::Encode(const CompletionRequest& request, const Prompt& prompt) const {
  if (const auto* tokens = std::get_if<std::vector<TokenId>>(&prompt))
    return EncodedPrompt{*tokens, request.multimodal};
  Result<EncodedPrompt> encoded = EncodePrompt(*host_.tokenizer, {std::get<std::string>(prompt), request.images});
  if (!encoded) return tl::unexpected(ToApiError(encoded.error()));
  if (encoded->tokens.empty()) {
    return tl::unexpected(BadRequest("prompt", "prompt has no tokens, expected at least one"));
  }
  return *std::move(encoded);
}

ApiResult<std::uint32_t> CompletionJob::MaxTokens(const CompletionRequest& request,
                                                  std::size_t num_prompt_tokens) const {
  const std::uint32_t max_model_len = host_.instance->config().scheduler.max_model_len;
  if (auto too_long = TooLong(num_prompt_tokens, max_model_len)) return tl::unexpected(*std::move(too_long));
  const auto room = static_cast<std::uint32_t>(max_model_len - num_prompt_tokens);
  if (!request.max_tokens) {
    return std::min(room, request.kind == CompletionKind::kText ? kCompletionMaxTokens : host_.default_max_tokens);
  }
  if (*request.max_tokens <= room) return *request.max_tokens;
  return tl::unexpected(BadRequest(
      "max_tokens", fmt::format("the prompt has {} tokens and max_tokens is {}; max_model_len is {}, for both together",
                                num_prompt_tokens, *request.max_tokens, max_model_len)));
}

ApiResult<std::vector<scheduler::NewRequest>> CompletionJob::Prepare(const CompletionRequest& request,
                                                                     std::vector<std::string>* before) {
  std::vector<scheduler::NewRequest> prepared;
  for (const Prompt& prompt : request.prompts) {
    ApiResult<EncodedPrompt> encoded = Encode(request, prompt);
    if (!encoded) return tl::unexpected(std::move(encoded).error());
    const ApiResult<std::uint32_t> max_tokens = MaxTokens(request, encoded->tokens.size());
    if (!max_tokens) return tl::unexpected(max_tokens.error());
    std::string& echoed = before->emplace_back();
    if (request.echo) {
      if (const auto* text = std::get_if<std::string>(&prompt)) {
        echoed = *text;
      } else {
        Result<std::string> decoded = host_.tokenizer->Decode(encoded->tokens);
        if (!decoded) return tl::unexpected(ToApiError(decoded.error()));
        echoed = *std::move(decoded);
      }
    }
    scheduler::NewRequest next;
    next.prompt = std::move(encoded->tokens);
    next.multimodal = std::move(encoded->images);
    next.lora = host_.lora;
    next.max_tokens = *max_tokens;
    next.cache_salt = request.cache_salt;
    next.extra_args = request.extra_args;
    if (request.kv_transfer) {
      const scheduler::SchedulerConfig& config = host_.instance->config().scheduler;
      next.keep_blocks = request.kv_transfer->do_remote_decode;
      if (request.kv_transfer->do_remote_prefill) {
        if (auto refused =
                TooManyBlockIds(*request.kv_transfer, config.groups, config.block_size, next.prompt.size())) {
          return tl::unexpected(*std::move(refused));
        }
        next.num_receivable_tokens = ReceivableTokens(*request.kv_transfer, config.groups, config.block_size);
      }
    }
    usage_.prompt_tokens += next.prompt.size();
    prepared.push_back(std::move(next));
  }
  return prepared;
}

ApiResult<std::unique_ptr<CompletionJob>> CompletionJob::Start(const Host& host, const CompletionRequest& request,
                                                               std::optional<std::uint32_t> rank) {
  if (auto too_many = TooManyChoices(*host.instance, request, rank)) return tl::unexpected(*std::move(too_many));
  if (request.kv_transfer) {
    if (auto refused = CheckTransfer(host.instance->config(), *request.kv_transfer)) {
      return tl::unexpected(*std::move(refused));
    }
  }
  const std::size_t num_choices = request.prompts.size() * request.n;
  std::unique_ptr<CompletionJob> job(new CompletionJob(host));
  std::vector<std::string> before;
  // Every prompt is checked before the engine sees the first.
  const auto prepared = job->Prepare(request, &before);
  if (!prepared) {
    if (prepared.error().status == 503) {
      host.counters->CountRefused(rank.value_or(0), RefusalCount::kTokenizer, num_choices);
    }
    return tl::unexpected(prepared.error());
  }
  job->can_stop_ = !request.stop.empty();
  job->holds_ = request.kv_transfer && request.kv_transfer->do_remote_decode;
  const auto source =
      request.kv_transfer && request.kv_transfer->do_remote_prefill ? request.kv_transfer : std::nullopt;
  job->choices_.reserve(num_choices);
  for (std::size_t i = 0; i < prepared->size(); ++i) {
    for (std::uint32_t choice = 0; choice < request.n; ++choice) {
      auto admission = host.instance->Submit((*prepared)[i], rank, source);
      if (!admission) {
        const auto [reason, refusing] = admission.error();
        host.counters->CountRefused(
            refusing, reason == SubmitResult::kFull ? RefusalCount::kQueueFull : RefusalCount::kStopping, num_choices);
        job->TakeBack();
        return tl::unexpected(ToApiError(reason));
      }
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

// Of a request that is refused as a whole: what was queued already is counted with the rest.
void CompletionJob::TakeBack() {
  for (const Running& running : choices_) host_.instance->Abort(running.admission);
  choices_.clear();
  unfinished_ = 0;
}

KVTransferParams CompletionJob::HeldAs(const Admission& admission, const scheduler::KeptBlocks& kept) const {
  const InstanceConfig& config = host_.instance->config();
  KVTransferParams params;
  params.do_remote_prefill = true;
  params.remote_block_ids = kept.block_tables;
  // A prompt without a full block.
  params.remote_block_ids.resize(std::max<std::size_t>(1, config.scheduler.groups.size()));
  params.remote_engine_id = config.kv_transfer->engine_id;
  params.remote_request_id = NameOf({admission.rank, admission.id}, config.kv_transfer->life);
  params.remote_host = config.kv_transfer->host;
  params.remote_port = config.kv_transfer->port;
  return params;
}

void CompletionJob::End(Running* running, FinishedCount how) {
  running->over = true;
  --unfinished_;
  host_.counters->CountFinished(running->admission.rank, how);
}

// The engine ended under all that is unfinished.
void CompletionJob::CountStopped() {
  for (const Running& running : choices_) {
    if (!running.over) host_.counters->CountRefused(running.admission.rank, RefusalCount::kStopping, 1);
  }
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
    if (chunk.refused->code == ErrorCode::kUnavailable) CountStopped();
    End(&running, FinishedCount::kError);
    return tl::unexpected(ToApiError(*chunk.refused));
  }
  if (chunk.finished && chunk.finished->reason == scheduler::FinishReason::kError) {
    End(&running, FinishedCount::kError);
    return tl::unexpected(InternalError("the model gave no token for the request"));
  }
  if (chunk.finished && holds_) held_ = HeldAs(running.admission, chunk.finished->kept);
  if (chunk.cached_tokens && running.counts_cache) usage_.cached_tokens += *chunk.cached_tokens;
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
  return std::optional<Choice>(std::move(choice));
}

}  // namespace kvwire::engine
