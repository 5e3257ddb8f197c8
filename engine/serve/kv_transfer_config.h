// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvwire::engine {

// Which side of a transfer an engine may be.
enum class KVRole : std::uint8_t {
  kProducer,  // holds blocks for others
  kConsumer,  // fetches them
  kBoth,
};

// "kv_producer", "kv_consumer", "kv_both", as vLLM has it.
const char* ToString(KVRole role) noexcept;

// An engine that blocks may be fetched from.
struct KVPeer {
  std::string host;                   // as requests name it, in lower case
  std::optional<std::uint16_t> port;  // none: every port

  friend bool operator==(const KVPeer&, const KVPeer&) = default;
};

// Whether it can be a host's name or address: letters, digits and ".-_:", 1 to kMaxTransferNameBytes of them.
bool IsHostText(std::string_view text) noexcept;

// Of an engine that shares prompts' blocks with others.
struct KVTransferConfig {
  std::string engine_id;
  std::string life;  // part of the names of what is held: of another start's nothing is found, whatever the engine_id
  KVRole role = KVRole::kBoth;
  // Where the others fetch, as answers say it.
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  std::chrono::nanoseconds hold_time = std::chrono::seconds(480);  // blocks nobody fetched are given back after it
  // How long a transfer takes, on top of the fetch itself.
  std::chrono::nanoseconds overhead{0};
  std::chrono::nanoseconds per_block{0};
  std::vector<KVPeer> allowed;  // empty: this machine's loopback only

  bool Allows(const std::string& host_name, std::uint16_t host_port) const;
  std::string AllowedText() const;
};

}  // namespace kvwire::engine
