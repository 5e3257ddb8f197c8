// SPDX-License-Identifier: Apache-2.0
#include "engine/http/remote_tokenizer.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/http/http_call.h"
#include "engine/http/request_body.h"
#include "engine/http/utf8_text.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

constexpr std::string_view kScheme = "http://";
constexpr milliseconds kMaxTimeout = std::chrono::hours(1);

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

Result<Json> RemoteTokenizer::Post(std::string_view resource, const Json& request) const {
  HttpCall call;
  call.host = address_.host;
  call.port = address_.port;
  call.path = address_.path + std::string(resource);
  call.body = request.dump();
  call.connect_timeout = config_.connect_timeout;
  call.reply_timeout = config_.reply_timeout;
  call.max_reply_bytes = kMaxBodyBytes;
  const auto reply = Call(call);
  if (!reply) return Failure(resource, reply.error());
  if (reply->status != 200) {
    return Failure(resource, fmt::format("status {}: {}", reply->status, ShortText(reply->body, 200)));
  }
  auto json = ParseBody(reply->body);
  if (!json) {
    return Failure(resource, fmt::format("the reply is {}: {}", ShortText(reply->body, 200), json.error().message));
  }
  return *std::move(json);
}

Result<std::vector<TokenId>> RemoteTokenizer::Encode(std::string_view text) const {
  if (WellFormedUtf8(text) != text.size()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("the text \"{}\" is no UTF-8 at byte {}", ShortText(text), WellFormedUtf8(text)));
  }
  Json request = {{"prompt", text}, {"add_special_tokens", true}};
  if (!config_.model.empty()) request["model"] = config_.model;
  const Result<Json> reply = Post("/tokenize", request);
  if (!reply) return tl::unexpected<Error>(reply.error());
  const auto invalid = [&] {
    return Failure("/tokenize", fmt::format("the reply is {}, expected {{\"tokens\": [token ids from 0 to {}]}}",
                                            ShortText(reply->dump(), 200), kMaxTokenId));
  };
  const auto found = reply->find("tokens");
  if (found == reply->end() || !found->is_array()) return invalid();
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
  const Result<Json> reply = Post("/detokenize", request);
  if (!reply) return tl::unexpected<Error>(reply.error());
  const auto found = reply->find("prompt");
  if (found == reply->end() || !found->is_string()) {
    return Failure("/detokenize",
                   fmt::format("the reply is {}, expected {{\"prompt\": text}}", ShortText(reply->dump(), 200)));
  }
  return found->get<std::string>();
}

}  // namespace kvwire::engine
