// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/http/completion_request.h"
#include "engine/http/tokenizer.h"
#include "engine/serve/http_server.h"
#include "engine/serve/instance.h"
#include "engine/serve/server_counters.h"

namespace kvwire::engine {

// An adapter that a request may name in place of a model.
struct LoraModule {
  std::string name;
  std::string path;    // nothing is loaded from there
  std::string parent;  // the model that it adapts
};

struct RoutesConfig {
  std::vector<std::string> models;         // names that a request may give; at least one, the first is the answer's
  std::vector<LoraModule> lora_modules;    // their ids count from 1 in this order; no name is a model's or another's
  std::vector<std::string> api_keys;       // not empty: paths under /v1 need one of them
  std::uint32_t default_max_tokens = 128;  // of a chat that names none
  std::string version;
};

// What an instance answers over HTTP: the OpenAI API, and what vLLM's server offers besides. docs/serve.md has the
// list.
//
// Threads: Install by the owner; the handlers run on the server's threads.
// Ownership: instance and tokenizer outlive it; it outlives the server's Stop.
class Routes {
 public:
  Routes(RoutesConfig config, Instance* instance, const Tokenizer* tokenizer);
  Routes(const Routes&) = delete;
  Routes& operator=(const Routes&) = delete;

  // REQUIRES: before the server's Start.
  void Install(HttpServer* server);

  // From now on /health says 503, and whoever asks for completions too.
  void Close();

 private:
  using Answer = HttpResponse (Routes::*)(const HttpRequest&);
  struct NamedModel {
    std::string name;
    std::optional<scheduler::LoraAdapter> lora;
  };

  void Add(HttpServer* server, const char* method, const char* path, Answer answer);
  HttpResponse Respond(const HttpRequest& request, Answer answer);
  std::optional<ApiError> Unauthorized(const HttpRequest& request) const;

  HttpResponse Completions(const HttpRequest& request) { return Complete(CompletionKind::kText, request); }
  HttpResponse ChatCompletions(const HttpRequest& request) { return Complete(CompletionKind::kChat, request); }
  HttpResponse Models(const HttpRequest& request);
  HttpResponse Tokenize(const HttpRequest& request);
  HttpResponse Detokenize(const HttpRequest& request);
  HttpResponse Health(const HttpRequest& request);
  HttpResponse Ping(const HttpRequest& request);
  HttpResponse Version(const HttpRequest& request);
  HttpResponse Load(const HttpRequest& request);
  HttpResponse EventSources(const HttpRequest& request);
  HttpResponse ResetPrefixCache(const HttpRequest& request);
  HttpResponse Sleep(const HttpRequest& request);
  HttpResponse WakeUp(const HttpRequest& request);
  HttpResponse IsSleeping(const HttpRequest& request);
  HttpResponse Metrics(const HttpRequest& request);

  HttpResponse Complete(CompletionKind kind, const HttpRequest& request);
  ApiResult<std::optional<std::uint32_t>> RankOf(const HttpRequest& request) const;
  ApiResult<NamedModel> ModelOf(const std::string& named) const;

  const RoutesConfig config_;
  Instance* const instance_;
  const Tokenizer* const tokenizer_;
  const std::int64_t created_;  // Unix seconds
  ServerCounters counters_;
  std::atomic<bool> closed_{false};
};

}  // namespace kvwire::engine
