// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/kv_transfer_config.h"

#include <algorithm>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/http/http_head.h"
#include "engine/http/kv_transfer_params.h"

namespace kvwire::engine {

namespace {

bool IsLoopback(const std::string& host) {
  constexpr std::uint32_t kLoopback = 127;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == kLoopback;
  return host == "localhost" || host == "::1";
}

}  // namespace

const char* ToString(KVRole role) noexcept {
  switch (role) {
    case KVRole::kProducer:
      return "kv_producer";
    case KVRole::kConsumer:
      return "kv_consumer";
    case KVRole::kBoth:
      return "kv_both";
  }
  return "";
}

bool IsHostText(std::string_view text) noexcept {
  constexpr std::string_view kHostBytes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_:";
  return !text.empty() && text.size() <= kMaxTransferNameBytes &&
         text.find_first_not_of(kHostBytes) == std::string_view::npos;
}

bool KVTransferConfig::Allows(const std::string& host_name, std::uint16_t host_port) const {
  if (!IsHostText(host_name)) return false;
  const std::string name = LowerCase(host_name);
  if (allowed.empty()) return IsLoopback(name);
  return std::any_of(allowed.begin(), allowed.end(), [&](const KVPeer& peer) {
    return peer.host == name && peer.port.value_or(host_port) == host_port;
  });
}

std::string KVTransferConfig::AllowedText() const {
  if (allowed.empty()) return "a loopback address, as there is no --kv-transfer-allow";
  std::vector<std::string> peers;
  for (const KVPeer& peer : allowed) {
    peers.push_back(peer.port ? fmt::format("{} with port {}", peer.host, *peer.port) : peer.host);
  }
  return fmt::format("one of --kv-transfer-allow: {}", fmt::join(peers, ", "));
}

}  // namespace kvwire::engine
