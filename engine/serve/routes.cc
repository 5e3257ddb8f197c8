// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/routes.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/http/completion_response.h"
#include "engine/http/request_body.h"
#include "engine/http/tokenize_request.h"
#include "engine/serve/completion_job.h"
#include "engine/serve/kv_transfer_routes.h"
#include "engine/serve/server_metrics.h"
#include "engine/unique_text.h"
#include "kv_events/clock.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kSlice(100);  // between two looks at whether the client is still there
constexpr const char* kRankHeader = "x-data-parallel-rank";
constexpr const char* kRequestIdHeader = "x-request-id";
constexpr std::size_t kMaxRequestIdBytes = 256;

std::int64_t UnixSeconds() { return static_cast<std::int64_t>(SystemClock::Get().WallSeconds()); }

HttpResponse JsonResponse(const Json& json) {
  HttpResponse response;
  response.body = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return response;
}

HttpResponse BodyResponse(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

// The client's name for its request, if it can stand in a header and an id.
std::optional<std::string> RequestIdOf(const HttpRequest& request) {
  std::optional<std::string> id = request.Header(kRequestIdHeader);
  const auto is_plain = [](unsigned char c) { return c > 0x20 && c < 0x7f; };
  if (!id || id->empty() || id->size() > kMaxRequestIdBytes || !std::all_of(id->begin(), id->end(), is_plain)) {
    return std::nullopt;
  }
  return id;
}

// Equal, in a time that does not tell how much of it is.
bool SameSecret(const std::string& a, const std::string& b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ b[b.empty() ? 0 : i % b.size()]);
  return difference == 0;
}

// A query parameter that is true or false.
ApiResult<bool> FlagOf(const HttpRequest& request, const char* name) {
  const std::optional<std::string> value = request.Query(name);
  if (!value) return false;
  for (const char* yes : {"true", "True", "1"}) {
    if (*value == yes) return true;
  }
  for (const char* no : {"false", "False", "0"}) {
    if (*value == no) return false;
  }
  return tl::unexpected(BadRequest(name, fmt::format("{} is \"{}\", expected true or false", name, ShortText(*value))));
}

// A stream of completions as it is written.
class CompletionStream {
 public:
  CompletionStream(std::unique_ptr<CompletionJob> job, ResponseHead head, bool include_usage)
      : job_(std::move(job)), head_(std::move(head)), include_usage_(include_usage) {
    if (head_.kind != CompletionKind::kChat) return;
    for (std::uint32_t index = 0; index < job_->num_choices(); ++index) pending_ += StreamStart(head_, index);
  }

  void Add(const std::vector<Choice>& choices) {
    for (const Choice& choice : choices) {
      if (!choice.text.empty() || choice.end) pending_ += StreamChunk(head_, choice);
    }
    if (!job_->done()) return;
    if (include_usage_) pending_ += StreamUsage(head_, job_->usage());
    End();
  }

  // The next piece; nothing at the end.
  std::optional<std::string> Next() {
    if (!pending_.empty()) return std::exchange(pending_, {});
    if (ended_) return std::nullopt;
    const ApiResult<std::vector<Choice>> choices = job_->Poll(kSlice);
    if (choices) {
      Add(*choices);
    } else {
      pending_ += StreamError(choices.error());
      End();
    }
    return std::exchange(pending_, {});
  }

 private:
  void End() {
    pending_ += kStreamDone;
    ended_ = true;
  }

  const std::unique_ptr<CompletionJob> job_;
  const ResponseHead head_;
  const bool include_usage_;
  std::string pending_;
  bool ended_ = false;
};

}  // namespace

Routes::Routes(RoutesConfig config, Instance* instance, const Tokenizer* tokenizer)
    : config_(std::move(config)),
      instance_(instance),
      tokenizer_(tokenizer),
      created_(UnixSeconds()),
      counters_(instance->num_ranks()) {}

void Routes::Install(HttpServer* server) {
  Add(server, "POST", "/v1/completions", &Routes::Completions);
  Add(server, "POST", "/v1/chat/completions", &Routes::ChatCompletions);
  Add(server, "GET", "/v1/models", &Routes::Models);
  Add(server, "POST", "/tokenize", &Routes::Tokenize);
  Add(server, "POST", "/detokenize", &Routes::Detokenize);
  Add(server, "GET", "/health", &Routes::Health);
  Add(server, "GET", "/ping", &Routes::Ping);
  Add(server, "POST", "/ping", &Routes::Ping);
  Add(server, "GET", "/version", &Routes::Version);
  Add(server, "GET", "/load", &Routes::Load);
  Add(server, "GET", "/kv_event_sources", &Routes::EventSources);
  Add(server, "POST", "/reset_prefix_cache", &Routes::ResetPrefixCache);
  Add(server, "POST", "/sleep", &Routes::Sleep);
  Add(server, "POST", "/wake_up", &Routes::WakeUp);
  Add(server, "GET", "/is_sleeping", &Routes::IsSleeping);
  Add(server, "GET", "/metrics", &Routes::Metrics);
  if (instance_->config().kv_transfer) InstallKVTransferRoutes(server, instance_);
}

void Routes::Add(HttpServer* server, const char* method, const char* path, Answer answer) {
  server->Handle(method, path, [this, answer](const HttpRequest& request) { return Respond(request, answer); });
}

void Routes::Close() {
  closed_ = true;
  instance_->Close();
}

HttpResponse Routes::Respond(const HttpRequest& request, Answer answer) {
  const std::optional<ApiError> unauthorized = Unauthorized(request);
  HttpResponse response = unauthorized ? ErrorResponse(*unauthorized) : (this->*answer)(request);
  if (auto id = RequestIdOf(request)) response.headers.emplace_back("X-Request-Id", *std::move(id));
  return response;
}

std::optional<ApiError> Routes::Unauthorized(const HttpRequest& request) const {
  if (config_.api_keys.empty() || !request.path.starts_with("/v1")) return std::nullopt;
  constexpr std::string_view kScheme = "bearer ";  // in any case
  const std::string header = request.Header("authorization").value_or("");
  const auto same_letter = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; };
  const bool has_scheme =
      header.size() > kScheme.size() &&
      std::equal(kScheme.begin(), kScheme.end(), header.begin(), [&](char b, char a) { return same_letter(a, b); });
  bool known = false;
  for (const std::string& key : config_.api_keys) {
    known = (has_scheme && SameSecret(header.substr(kScheme.size()), key)) || known;
  }
  if (known) return std::nullopt;
  return ApiError{401, "the header Authorization does not carry a known key; expected: Bearer KEY",
                  "AuthenticationError", std::nullopt};
}

HttpResponse Routes::Models(const HttpRequest&) {
  Json list = Json::array();
  const auto add = [&](const std::string& name) -> Json& {
    Json one = Json::parse(ModelsResponse(name, created_, instance_->config().scheduler.max_model_len));
    list.push_back(std::move(one["data"][0]));
    return list.back();
  };
  for (const std::string& model : config_.models) add(model);
  for (const LoraModule& module : config_.lora_modules) {
    Json& card = add(module.name);
    card["root"] = module.path;
    card["parent"] = module.parent;
  }
  return JsonResponse({{"object", "list"}, {"data", std::move(list)}});
}

ApiResult<Routes::NamedModel> Routes::ModelOf(const std::string& named) const {
  if (named.empty()) return NamedModel{config_.models.front(), std::nullopt};
  if (std::ranges::find(config_.models, named) != config_.models.end()) return NamedModel{named, std::nullopt};
  for (std::size_t i = 0; i < config_.lora_modules.size(); ++i) {
    if (config_.lora_modules[i].name != named) continue;
    return NamedModel{named, scheduler::LoraAdapter{static_cast<std::int64_t>(i + 1), named}};
  }
  return tl::unexpected(NotFound("model", fmt::format("the model \"{}\" does not exist; GET /v1/models lists those "
                                                      "that do",
                                                      ShortText(named))));
}

HttpResponse Routes::Tokenize(const HttpRequest& request) {
  const auto body = ParseBody(request.body);
  if (!body) return ErrorResponse(body.error());
  const auto parsed = ParseTokenizeRequest(*body);
  if (!parsed) return ErrorResponse(parsed.error());
  const auto model = ModelOf(parsed->model);
  if (!model) return ErrorResponse(model.error());
  const auto encoded = EncodePrompt(*tokenizer_, parsed->prompt);
  if (!encoded) return ErrorResponse(ToApiError(encoded.error()));
  return BodyResponse(TokenizeResponse(encoded->tokens, instance_->config().scheduler.max_model_len));
}

HttpResponse Routes::Detokenize(const HttpRequest& request) {
  const auto body = ParseBody(request.body);
  if (!body) return ErrorResponse(body.error());
  const auto parsed = ParseDetokenizeRequest(*body);
  if (!parsed) return ErrorResponse(parsed.error());
  const auto model = ModelOf(parsed->model);
  if (!model) return ErrorResponse(model.error());
  const auto text = tokenizer_->Decode(parsed->tokens);
  if (!text) return ErrorResponse(ToApiError(text.error()));
  return BodyResponse(DetokenizeResponse(*text));
}

HttpResponse Routes::Health(const HttpRequest&) {
  if (closed_) return ErrorResponse(Unavailable("the engine is stopping"));
  return {};
}

HttpResponse Routes::Ping(const HttpRequest& request) { return Health(request); }

HttpResponse Routes::Version(const HttpRequest&) { return JsonResponse({{"version", config_.version}}); }

HttpResponse Routes::Load(const HttpRequest&) { return JsonResponse({{"server_load", instance_->num_requests()}}); }

HttpResponse Routes::EventSources(const HttpRequest&) {
  Json sources = Json::array();
  for (const EventSourceInfo& source : instance_->sources()) {
    sources.push_back({{"data_parallel_rank", source.data_parallel_rank},
                       {"endpoint", source.endpoint},
                       {"replay_endpoint", source.replay_endpoint ? Json(*source.replay_endpoint) : Json(nullptr)},
                       {"topic", source.topic}});
  }
  const HashIdentity& identity = instance_->hasher().identity();
  return JsonResponse({{"sources", std::move(sources)},
                       {"hash",
                        {{"algorithm", ToString(identity.algorithm)},
                         {"seed_source", ToString(identity.seed.source)},
                         {"seed", identity.seed.text ? Json(*identity.seed.text) : Json(nullptr)},
                         {"root", identity.root.ToHex()}}}});
}

HttpResponse Routes::ResetPrefixCache(const HttpRequest& request) {
  const ApiResult<bool> running = FlagOf(request, "reset_running_requests");
  if (!running) return ErrorResponse(running.error());
  if (instance_->ResetPrefixCache(*running ? scheduler::ResetMode::kPreemptRunning
                                           : scheduler::ResetMode::kFailWhileRunning)) {
    return {};
  }
  if (closed_) return ErrorResponse(Unavailable("the engine is stopping"));
  return ErrorResponse({409,
                        "the prefix cache was not reset: requests hold blocks; reset_running_requests=true preempts "
                        "them",
                        "ConflictError", std::nullopt});
}

HttpResponse Routes::Sleep(const HttpRequest& request) {
  const std::string level = request.Query("level").value_or("1");
  if (level != "1" && level != "2") {
    return ErrorResponse(BadRequest("level", fmt::format("level is \"{}\", expected 1 or 2", ShortText(level))));
  }
  if (instance_->Sleep()) return {};
  return ErrorResponse(Unavailable("the engine is stopping"));
}

HttpResponse Routes::WakeUp(const HttpRequest&) {
  if (instance_->WakeUp()) return {};
  return ErrorResponse(Unavailable("the engine is stopping"));
}

HttpResponse Routes::IsSleeping(const HttpRequest&) { return JsonResponse({{"is_sleeping", instance_->asleep()}}); }

HttpResponse Routes::Metrics(const HttpRequest&) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = MetricsText(*instance_, counters_, config_.models.front());
  return response;
}

ApiResult<std::optional<std::uint32_t>> Routes::RankOf(const HttpRequest& request) const {
  const std::optional<std::string> text = request.Header(kRankHeader);
  if (!text) return std::optional<std::uint32_t>();
  std::uint32_t rank = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), rank);
  if (error == std::errc() && end == text->data() + text->size() && rank < instance_->num_ranks()) {
    return std::optional(rank);
  }
  return tl::unexpected(BadRequest("X-data-parallel-rank",
                                   fmt::format("the header X-data-parallel-rank is \"{}\", expected a rank from 0 to "
                                               "{}",
                                               ShortText(*text), instance_->num_ranks() - 1)));
}

HttpResponse Routes::Complete(CompletionKind kind, const HttpRequest& request) {
  const auto body = ParseBody(request.body);
  if (!body) return ErrorResponse(body.error());
  const auto parsed = ParseCompletionRequest(kind, *body);
  if (!parsed) return ErrorResponse(parsed.error());
  auto model = ModelOf(parsed->model);
  if (!model) return ErrorResponse(model.error());
  const auto rank = RankOf(request);
  if (!rank) return ErrorResponse(rank.error());
  auto started = CompletionJob::Start(
      {instance_, tokenizer_, &counters_, config_.default_max_tokens, std::move(model->lora)}, *parsed, *rank);
  if (!started) return ErrorResponse(started.error());
  std::unique_ptr<CompletionJob> job = *std::move(started);
  ResponseHead head{kind, ResponseId(kind, RequestIdOf(request).value_or(UniqueText())), UnixSeconds(),
                    std::move(model->name)};

  // A refusal is a status of its own as long as nothing was written: until the first news also of a stream.
  std::vector<Choice> choices(job->num_choices());
  for (std::uint32_t index = 0; index < choices.size(); ++index) choices[index].index = index;
  while (!job->done()) {
    ApiResult<std::vector<Choice>> news = job->Poll(kSlice);
    if (!news) return ErrorResponse(news.error());
    if (parsed->stream && !news->empty()) {
      auto stream = std::make_shared<CompletionStream>(std::move(job), std::move(head), parsed->include_usage);
      stream->Add(*news);
      HttpResponse response;
      response.content_type = "text/event-stream; charset=utf-8";
      response.headers.emplace_back("Cache-Control", "no-cache");
      response.source = [stream] { return stream->Next(); };
      return response;
    }
    for (Choice& piece : *news) {
      choices[piece.index].text += piece.text;
      choices[piece.index].end = piece.end;
    }
    // Its destructor aborts.
    if (request.abandoned()) return ErrorResponse(Unavailable("nobody waits for the answer"));
  }
  return BodyResponse(CompletionResponse(head, choices, job->usage(), job->held()));
}

}  // namespace kvwire::engine
