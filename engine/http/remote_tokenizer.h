// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "engine/http/tokenizer.h"

namespace kvwire::engine {

struct RemoteTokenizerConfig {
  std::string url;      // "http://host[:port][/path]"; "[...]" around an IPv6 address. Nothing is encrypted
  std::string model{};  // sent along when not empty
  std::chrono::milliseconds connect_timeout{2000};  // to look up the name and to connect
  std::chrono::milliseconds reply_timeout{30000};   // all of it, from the look-up to the end of the reply
};

// Asks a server that speaks vLLM's tokenizer protocol: POST <url>/tokenize {"model","prompt","add_special_tokens":true}
// is answered with {"tokens":[...]}, POST <url>/detokenize {"model","tokens"} with {"prompt":"..."}.
//
// Threads: any. Each call has a connection of its own, and ends soon after CallerScope::Gone.
// Errors: kUnavailable names the address and what went wrong there, with the status if there was one.
// Bounds: a reply has those of a request's body (ParseBody), its head those of Call.
class RemoteTokenizer final : public Tokenizer {
 public:
  // Asks nobody yet.
  // Errors: kInvalidArgument names the field, its value and what is allowed.
  static Result<std::unique_ptr<RemoteTokenizer>> Create(RemoteTokenizerConfig config);

  Result<std::vector<TokenId>> Encode(std::string_view text) const override;
  Result<std::string> Decode(std::span<const TokenId> tokens) const override;
  std::size_t SettledTokens(std::span<const TokenId>) const noexcept override { return 0; }
  std::string_view name() const noexcept override { return config_.url; }

 private:
  struct Address {
    std::string host;
    std::uint16_t port = 80;
    std::string path;  // without a slash at the end
  };

  RemoteTokenizer(RemoteTokenizerConfig config, Address address)
      : config_(std::move(config)), address_(std::move(address)) {}

  static Result<Address> ParseUrl(std::string_view url);

  // The object that the reply is, to a request that was answered with status 200.
  Result<nlohmann::json> Post(std::string_view resource, const nlohmann::json& request) const;
  tl::unexpected<Error> Failure(std::string_view resource, std::string_view what) const;

  const RemoteTokenizerConfig config_;
  const Address address_;
};

}  // namespace kvwire::engine
