// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/publisher_curve.h"

#include <string>
#include <utility>

namespace kvwire {

namespace {

Result<std::shared_ptr<CurveClients>> ReadClients(const CurveConfig& config, const LogSink& log) {
  if (config.allow_any) return std::make_shared<AnyCurveClient>();
  if (config.allowed_keys_file.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "kvwire.curve: it is not said who may connect; allowed: allowed_keys_file, the path of a list of "
                     "public keys, or allow_any true for whoever knows the publisher's public key");
  }
  return CurveAllowList::Open(config.allowed_keys_file, "kvwire.curve.allowed_keys_file", log);
}

}  // namespace

Result<PublisherCurve> PublisherCurve::Read(const CurveConfig& config, Sockets sockets, const LogSink& log) {
  PublisherCurve curve;
  if (!config.enabled()) return curve;
  Result<CurveKeys> keys = ReadCurveKeys(config.secret_key_file, "kvwire.curve.secret_key_file");
  if (!keys) return tl::unexpected(keys.error());
  if (sockets.bind) {
    Result<std::shared_ptr<CurveClients>> clients = ReadClients(config, log);
    if (!clients) return tl::unexpected(clients.error());
    curve.server = std::make_shared<const CurveServer>(CurveServer{keys->secret_key, *std::move(clients)});
  }
  if (!sockets.connect) return curve;
  if (config.server_key_file.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "kvwire.curve.server_key_file: missing; a publisher that connects needs the public key of the "
                     "subscriber that binds");
  }
  Result<std::string> server_key = ReadCurvePublicKey(config.server_key_file, "kvwire.curve.server_key_file");
  if (!server_key) return tl::unexpected(server_key.error());
  curve.client = std::make_shared<const CurveClient>(CurveClient{*std::move(keys), *std::move(server_key)});
  return curve;
}

}  // namespace kvwire
