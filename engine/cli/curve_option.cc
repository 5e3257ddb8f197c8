// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/curve_option.h"

#include <string>
#include <utility>

#include "kv_events/error.h"

namespace kvwire::engine {

namespace {

constexpr const char* kKeyFlag = "--curve-key";
constexpr const char* kServerKeyFlag = "--curve-server-key";

struct Files {
  std::string key;
  std::string server_key;
};

Result<std::shared_ptr<const CurveClient>> Read(const Files& files) {
  if (files.server_key.empty() && files.key.empty()) return nullptr;
  if (files.server_key.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, std::string(kKeyFlag) + ": given without " + kServerKeyFlag +
                                                      "; allowed: both, or the latter alone");
  }
  Result<std::string> server_key = ReadCurvePublicKey(files.server_key, kServerKeyFlag);
  if (!server_key) return tl::unexpected(server_key.error());
  // A publisher that admits anybody wants a key all the same.
  Result<CurveKeys> keys = files.key.empty() ? MakeCurveKeys() : ReadCurveKeys(files.key, kKeyFlag);
  if (!keys) return tl::unexpected(keys.error());
  return std::make_shared<const CurveClient>(CurveClient{*std::move(keys), *std::move(server_key)});
}

}  // namespace

void AddCurveOption(CLI::App& command, std::shared_ptr<const CurveClient>* client) {
  const auto files = std::make_shared<Files>();
  command.add_option(kServerKeyFlag, files->server_key,
                     "Publishers are closed with CURVE, and have the public key of this file");
  command.add_option(kKeyFlag, files->key,
                     "Show them the key of this file, made by kvwire keygen; without it a new one each time");
  command.parse_complete_callback([files, client] {
    Result<std::shared_ptr<const CurveClient>> read = Read(*files);
    if (!read) throw CLI::ValidationError(read.error().message);
    *client = *std::move(read);
  });
}

}  // namespace kvwire::engine
