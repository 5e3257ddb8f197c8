// SPDX-License-Identifier: Apache-2.0
#include "engine/http/remote_tokenizer.h"

#include <algorithm>
#include <charconv>
#include <csignal>
#include <ctime>
#include <utility>

#include <fmt/format.h>
#include <httplib.h>
#include <nlohmann/json.hpp>

#include "engine/http/utf8_text.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

constexpr std::string_view kScheme = "http://";
constexpr milliseconds kMaxTimeout = std::chrono::hours(1);

// Keeps SIGPIPE from this thread. The client looks before each write whether the server is there, which may be a moment
// too early; then the write is to be an error, not the end of the process.
class SigpipeGuard {
 public:
  SigpipeGuard() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  }
  ~SigpipeGuard() {
    constexpr timespec kAtOnce{};
    if (!was_pending_) sigtimedwait(&signals_, nullptr, &kAtOnce);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;

 private:
  sigset_t signals_;
  sigset_t before_;
  bool was_pending_ = false;
};

Status CheckTimeout(std::string_view field, milliseconds value) {
  if (value >= milliseconds(1) && value <= kMaxTimeout) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("tokenizer: {} is {} ms, expected 1 to {}", field, value.count(), kMaxTimeout.count()));
}

}  // namespace

Result<RemoteTokenizer::Address> RemoteTokenizer::ParseUrl(std::string_view url) {
  const auto invalid = [url] {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("tokenizer: url is \"{}\", expected http://host[:port][/path]", ShortText(url, 200)));
  };
  if (!url.starts_with(kScheme)) return invalid();
  if (!std::ranges::all_of(url, [](char c) { return c > ' ' && c < '\x7f'; })) return invalid();
  const std::string_view rest = url.substr(kScheme.size());
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash);
  const std::string_view path = rest.substr(slash);
  if (url.find_first_of("?#@") != std::string_view::npos) return invalid();

  Address address;
  address.path = path;
  if (authority.starts_with('[')) {
    const std::size_t end = authority.find(']');
    if (end == std::string_view::npos) return invalid();
    address.host = authority.substr(1, end - 1);
    authority.remove_prefix(end + 1);
  } else {
    const std::size_t colon = std::min(authority.find(':'), authority.size());
    address.host = authority.substr(0, colon);
    authority.remove_prefix(colon);
  }
  if (address.host.empty()) return invalid();
  if (!authority.empty()) {
    if (!authority.starts_with(':')) return invalid();
    const char* end = authority.data() + authority.size();
    const auto [stop, error] = std::from_chars(authority.data() + 1, end, address.port);
    if (error != std::errc() || stop != end || address.port == 0) return invalid();
  }
  return address;
}

Result<std::unique_ptr<RemoteTokenizer>> RemoteTokenizer::Create(RemoteTokenizerConfig config) {
  while (config.url.ends_with('/')) config.url.pop_back();
  Result<Address> address = ParseUrl(config.url);
  if (!address) return tl::unexpected<Error>(std::move(address).error());
  if (WellFormedUtf8(config.model) != config.model.size()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("tokenizer: model is \"{}\", expected UTF-8", ShortText(config.model)));
  }
  for (const auto& [field, value] :
       {std::pair("connect_timeout", config.connect_timeout), std::pair("reply_timeout", config.reply_timeout)}) {
    Status timeout = CheckTimeout(field, value);
    if (!timeout) return tl::unexpected<Error>(std::move(timeout).error());
  }
  return std::unique_ptr<RemoteTokenizer>(new RemoteTokenizer(std::move(config), *std::move(address)));
}

tl::unexpected<Error> RemoteTokenizer::Failure(std::string_view resource, std::string_view what) const {
  return MakeError(ErrorCode::kUnavailable, fmt::format("tokenizer {}{}: {}", config_.url, resource, what));
}

Result<std::string> RemoteTokenizer::Post(std::string_view resource, std::string body) const {
  const SigpipeGuard guard;
  const auto deadline = std::chrono::steady_clock::now() + config_.connect_timeout + config_.reply_timeout;
  httplib::Client client(address_.host, address_.port);
  client.set_connection_timeout(config_.connect_timeout);
  client.set_read_timeout(config_.reply_timeout);
  client.set_write_timeout(config_.reply_timeout);
  client.set_tcp_nodelay(true);

  std::string reply;
  std::string_view cut;
  httplib::Request request;
  request.method = "POST";
  request.path = address_.path + std::string(resource);
  request.headers = {{"Content-Type", "application/json"}};
  request.body = std::move(body);
  request.content_receiver = [&](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
    if (size > kMaxReplyBytes - reply.size()) cut = "the reply is too large";
    if (std::chrono::steady_clock::now() > deadline) cut = "the reply takes too long";
    if (cut.empty()) reply.append(data, size);
    return cut.empty();
  };
  const httplib::Result result = client.send(request);
  if (!cut.empty()) return Failure(resource, cut);
  if (!result) return Failure(resource, fmt::format("no reply ({} failed)", httplib::to_string(result.error())));
  if (result->status != 200) {
    return Failure(resource, fmt::format("status {}: {}", result->status, ShortText(reply, 200)));
  }
  return reply;
}

Result<std::vector<TokenId>> RemoteTokenizer::Encode(std::string_view text) const {
  if (WellFormedUtf8(text) != text.size()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("the text \"{}\" is no UTF-8 at byte {}", ShortText(text), WellFormedUtf8(text)));
  }
  Json request = {{"prompt", text}, {"add_special_tokens", true}};
  if (!config_.model.empty()) request["model"] = config_.model;
  const Result<std::string> body = Post("/tokenize", request.dump());
  if (!body) return tl::unexpected<Error>(body.error());
  const Json reply = Json::parse(*body, nullptr, false);
  const auto invalid = [&] {
    return Failure("/tokenize", fmt::format("the reply is {}, expected {{\"tokens\": [token ids from 0 to {}]}}",
                                            ShortText(*body, 200), kMaxTokenId));
  };
  if (!reply.is_object()) return invalid();
  const auto found = reply.find("tokens");
  if (found == reply.end() || !found->is_array()) return invalid();
  std::vector<TokenId> tokens;
  tokens.reserve(found->size());
  for (const Json& token : *found) {
    if (!token.is_number_unsigned() || token.get<std::uint64_t>() > kMaxTokenId) return invalid();
    tokens.push_back(token.get<TokenId>());
  }
  return tokens;
}

Result<std::string> RemoteTokenizer::Decode(std::span<const TokenId> tokens) const {
  Json request = {{"tokens", tokens}};
  if (!config_.model.empty()) request["model"] = config_.model;
  const Result<std::string> body = Post("/detokenize", request.dump());
  if (!body) return tl::unexpected<Error>(body.error());
  const Json reply = Json::parse(*body, nullptr, false);
  if (!reply.is_object() || !reply.contains("prompt") || !reply["prompt"].is_string()) {
    return Failure("/detokenize", fmt::format("the reply is {}, expected {{\"prompt\": text}}", ShortText(*body, 200)));
  }
  return reply["prompt"].get<std::string>();
}

}  // namespace kvwire::engine
