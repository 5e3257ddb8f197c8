// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "engine/serve/kv_transfer_config.h"
#include "kv_events/error.h"

namespace kvwire::engine {

// --kv-transfer-config JSON and its dotted form, --kv-transfer-config.kv_role x, in vLLM's spelling, and the flags of
// what vLLM does not have. Dotted settings win over the JSON. Ownership: outlives the parsing of the command it was
// added to.
class KVTransferOption {
 public:
  KVTransferOption() = default;
  KVTransferOption(const KVTransferOption&) = delete;
  KVTransferOption& operator=(const KVTransferOption&) = delete;

  void AddTo(CLI::App& command);

  // After parsing; nothing when the flag was not given, or names another connector than NixlConnector. The port, and an
  // engine_id that was not given, are left to the server. Errors: name the flag, the value and what is allowed.
  Result<std::optional<KVTransferConfig>> Config() const;

  // The flag names a connector that is not offered.
  bool is_ignored() const;

  // Where others reach this engine; empty: where it listens.
  const std::string& host() const noexcept { return host_; }

 private:
  // vLLM takes None for nothing.
  bool given() const noexcept { return (!json_.empty() && json_ != "None") || !dotted_.empty(); }

  std::string json_;
  std::vector<std::pair<std::string, std::string>> dotted_;
  std::vector<std::string> allowed_;
  std::string host_;
  const CLI::Option* host_option_ = nullptr;
  double hold_seconds_ = 480;
  double overhead_us_ = 0;
  double us_per_block_ = 0;
};

}  // namespace kvwire::engine
