// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/kv_transfer_option.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/cli/number_options.h"
#include "engine/http/http_head.h"
#include "engine/http/json_fields.h"
#include "engine/http/kv_transfer_params.h"
#include "engine/http/request_body.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

using Json = nlohmann::json;

constexpr const char* kFlag = "--kv-transfer-config";
constexpr const char* kConnector = "NixlConnector";
// vLLM's keys. Those beside connector, role, engine_id and failure policy have no effect here.
constexpr std::string_view kKeys[] = {"kv_connector",
                                      "kv_role",
                                      "engine_id",
                                      "kv_load_failure_policy",
                                      "kv_buffer_device",
                                      "kv_buffer_size",
                                      "kv_rank",
                                      "kv_parallel_size",
                                      "kv_ip",
                                      "kv_port",
                                      "kv_connector_module_path",
                                      "kv_connector_extra_config",
                                      "enable_permute_local_kv"};

tl::unexpected<Error> Refuse(std::string_view flag, std::string_view message) {
  return MakeError(ErrorCode::kInvalidArgument, fmt::format("{}: {}", flag, message));
}

std::optional<KVRole> ParseRole(const std::string& text) {
  for (const KVRole role : {KVRole::kProducer, KVRole::kConsumer, KVRole::kBoth}) {
    if (text == ToString(role)) return role;
  }
  return std::nullopt;
}

// HOST, HOST:PORT, [IPV6] or [IPV6]:PORT; an IPv6 address alone needs no brackets.
Result<KVPeer> ParsePeer(const std::string& text) {
  constexpr const char* kPeerFlag = "--kv-transfer-allow";
  const bool bracketed = text.starts_with('[');
  const std::size_t close = bracketed ? text.find(']') : std::string::npos;
  const bool one_colon = std::count(text.begin(), text.end(), ':') == 1;
  std::string host = text;
  std::optional<std::string> port;
  if (bracketed && close != std::string::npos) {
    host = text.substr(1, close - 1);
    if (close + 1 < text.size()) port = text.substr(close + 1);
    if (port && port->front() == ':') port->erase(0, 1);
  } else if (one_colon) {
    host = text.substr(0, text.find(':'));
    port = text.substr(text.find(':') + 1);
  }
  KVPeer peer{LowerCase(host), std::nullopt};
  bool good = IsHostText(peer.host);
  if (port) {
    const std::string_view digits(*port);
    std::uint16_t number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    good = good && error == std::errc() && end == digits.data() + digits.size() && number > 0;
    peer.port = number;
  }
  if (good) return peer;
  return Refuse(kPeerFlag, fmt::format("\"{}\" is not allowed; allowed: HOST, HOST:PORT or [IPV6]:PORT, a port from 1 "
                                       "to 65535",
                                       ShortText(text)));
}

// The JSON with the dotted settings in it, or nothing when it is no object.
ApiResult<Json> Merged(const std::string& json, const std::vector<std::pair<std::string, std::string>>& dotted) {
  ApiResult<Json> merged = ParseBody(json.empty() || json == "None" ? "{}" : json, "the value");
  if (!merged) return merged;
  for (const auto& [key, value] : dotted) (*merged)[key] = value;
  return merged;
}

}  // namespace

void KVTransferOption::AddTo(CLI::App& command) {
  constexpr const char* kGroup = "KV transfer";
  command.add_option(kFlag, json_, "Prefill and decode in different engines, as JSON in vLLM's spelling")
      ->group(kGroup);
  for (const std::string_view key : kKeys) {
    const auto take = [this, name = std::string(key)](const std::string& value) { dotted_.emplace_back(name, value); };
    command.add_option_function<std::string>(fmt::format("{}.{}", kFlag, key), take)->group(kGroup);
  }
  command
      .add_option("--kv-transfer-allow", allowed_,
                  "HOST[:PORT] of engines that blocks may be fetched from; default: loopback addresses")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(kGroup);
  host_option_ =
      command
          .add_option("--kv-transfer-host", host_, "Where other engines reach this one; default: the address of --host")
          ->group(kGroup);
  AddSeconds(command, "--kv-transfer-hold", &hold_seconds_, "How long a prompt's blocks wait to be fetched")
      ->group(kGroup);
  AddNumber(command, "--kv-transfer-overhead-us", &overhead_us_, "Model time of a transfer")->group(kGroup);
  AddNumber(command, "--kv-transfer-us-per-block", &us_per_block_, "Model time of a transfer per block")->group(kGroup);
}

bool KVTransferOption::is_ignored() const {
  const ApiResult<Json> merged = Merged(json_, dotted_);
  if (!given() || !merged) return false;
  const auto connector = merged->find("kv_connector");
  return connector == merged->end() || connector->is_null() || (connector->is_string() && *connector != kConnector);
}

Result<std::optional<KVTransferConfig>> KVTransferOption::Config() const {
  KVTransferConfig config;
  for (const std::string& text : allowed_) {
    Result<KVPeer> peer = ParsePeer(text);
    if (!peer) return tl::unexpected<Error>(std::move(peer).error());
    config.allowed.push_back(*std::move(peer));
  }
  if (host_option_->count() > 0 && !IsHostText(host_)) {
    return Refuse("--kv-transfer-host", fmt::format("\"{}\" is not allowed; allowed: a host name or an address without "
                                                    "brackets",
                                                    ShortText(host_)));
  }
  if (!given()) return std::optional<KVTransferConfig>();
  const ApiResult<Json> merged = Merged(json_, dotted_);
  if (!merged) return Refuse(kFlag, merged.error().message);
  if (is_ignored()) return std::optional<KVTransferConfig>();
  FieldReader fields(*merged);
  fields.RefuseOthers(kKeys);
  fields.Text("kv_connector");
  const std::optional<std::string> role = fields.Text("kv_role");
  config.engine_id = fields.Text("engine_id").value_or("");
  fields.RefuseUnless("kv_load_failure_policy", Json::array({"recompute"}));
  const std::string roles = "\"kv_producer\", \"kv_consumer\" or \"kv_both\"";
  if (!role) {
    fields.RefuseMissing("kv_role", roles);
  } else if (const auto parsed = ParseRole(*role)) {
    config.role = *parsed;
  } else {
    fields.Refuse("kv_role", *role, roles);
  }
  if (config.engine_id.size() > kMaxTransferNameBytes) {
    fields.Refuse("engine_id", config.engine_id, fmt::format("at most {} bytes", kMaxTransferNameBytes));
  }
  if (fields.error()) return Refuse(kFlag, fields.error()->message);
  const auto nanos = [](double seconds) { return std::chrono::nanoseconds(NanosOf(seconds)); };
  // The clock that the times are added to has no room for the longest of all.
  constexpr double kMostSeconds = 1e8;
  config.hold_time = nanos(std::min(hold_seconds_, kMostSeconds));
  config.overhead = nanos(std::min(overhead_us_ * 1e-6, kMostSeconds));
  config.per_block = nanos(us_per_block_ * 1e-6);
  return std::optional<KVTransferConfig>(std::move(config));
}

}  // namespace kvwire::engine
