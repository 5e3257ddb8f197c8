// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kv_events/config.h"
#include "kv_events/error.h"

namespace kvwire {

// A ZeroMQ address, parsed. A value.
struct Endpoint {
  enum class Scheme : std::uint8_t { kTcp, kIpc, kInproc };

  Scheme scheme = Scheme::kTcp;
  std::string host;                   // tcp: host, "*", or "[v6]" with its brackets
  std::optional<std::uint16_t> port;  // tcp; 0 = chosen by the operating system ("*" is accepted for it)
  std::string path;                   // ipc and inproc: what follows "://"

  // The same rules for every rank. `field` names the setting in messages ("endpoint", "replay_endpoint").
  static Result<Endpoint> Parse(std::string_view text, std::string_view field);

  std::string ToString() const;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

// The address of data-parallel rank `rank` of `dp_size`: tcp gets port + rank (a port of 0 stays 0), ipc and inproc get
// "_dp<rank>" for ranks above 0. Fails if a port would pass 65535 for any rank below dp_size, so that all ranks agree.
Result<Endpoint> EndpointForRank(const Endpoint& base, std::string_view field, std::int64_t rank, std::int64_t dp_size);

// Whether a publishing socket with this address binds. kAuto is vLLM's rule (bind if the text contains "*" or "::" or
// starts with ipc:// or inproc://, else connect) with one difference: 0.0.0.0 binds.
bool Binds(const Endpoint& endpoint, SocketMode mode) noexcept;

// Refuses an address without a destination. `field` names the setting.
Status CheckConnects(const Endpoint& endpoint, std::string_view field);

// Whether a publishing socket in this mode and a replay socket, which binds, want the same address.
bool AddressesMeet(const Endpoint& publish, const Endpoint& replay, SocketMode mode) noexcept;

// What helps when binding failed for another reason than an address in use; to be put after the message. May be empty.
std::string_view BindHint(const Endpoint& endpoint) noexcept;

// The pair of a publisher's addresses for one rank, checked together: the port ranges of both over all ranks must not
// overlap, whatever the rank asked for.
struct RankEndpoints {
  Endpoint publish;
  std::optional<Endpoint> replay;
};
Result<RankEndpoints> EndpointsForRank(const KVEventsConfig& config, std::int64_t rank, std::int64_t dp_size);
// The same addresses, from those of rank 0 and as a consumer connects to them.
Result<RankEndpoints> EndpointsForRank(const RankEndpoints& base, std::int64_t rank, std::int64_t dp_size);

}  // namespace kvwire
