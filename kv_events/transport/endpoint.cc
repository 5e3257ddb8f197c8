// SPDX-License-Identifier: Apache-2.0
#include "kv_events/transport/endpoint.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include <fmt/format.h>

#include "kv_events/escape_text.h"

namespace kvwire {

namespace {

constexpr std::string_view kAllowed = "tcp://HOST:PORT, ipc://PATH or inproc://NAME";
// So much of an address goes into a message; the longest that is allowed is shorter.
constexpr std::size_t kShown = 300;
constexpr std::int64_t kMaxPort = 65535;
// sockaddr_un holds 108 bytes with the terminating zero.
constexpr std::size_t kMaxIpcPath = 107;
constexpr std::size_t kMaxInprocName = 255;
// libzmq makes up a path of its own for this one.
constexpr std::string_view kAnyIpcPath = "*";

tl::unexpected<Error> Refuse(std::string_view field, std::string_view text, std::string_view reason) {
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("{}: \"{}\": {}; allowed: {}", field, ShortText(text, kShown), reason, kAllowed));
}

// A blank or control character in an address is a typing error, and a zero byte would end it early in the C interface.
bool HasForbiddenCharacter(std::string_view text, bool blanks_allowed) {
  return std::ranges::any_of(text, [&](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f || (byte == ' ' && !blanks_allowed);
  });
}

std::optional<std::int64_t> ParsePort(std::string_view text) {
  if (text == "*") return 0;
  if (text.empty() || !std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; })) return std::nullopt;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return kMaxPort + 1;
  return value;
}

// What is wrong with a host, or nothing.
std::string_view HostFault(std::string_view host) {
  if (host.empty()) return "the host is empty";
  if (HasForbiddenCharacter(host, false) || host.find('/') != std::string_view::npos) {
    return "the host holds a character that is not allowed";
  }
  const bool opens = host.front() == '[';
  const bool closes = host.back() == ']';
  if (opens != closes || (opens && host.size() < 3)) return "the brackets around the host do not match";
  // "::" is the one IPv6 address that reads the same without brackets.
  if (!opens && host != "::" && host.find(':') != std::string_view::npos) return "an IPv6 host needs brackets";
  return {};
}

Result<Endpoint> ParseTcp(std::string_view text, std::string_view rest, std::string_view field) {
  const std::size_t colon = rest.rfind(':');
  const bool colon_in_brackets = !rest.empty() && rest.back() == ']';
  if (colon == std::string_view::npos || colon_in_brackets) return Refuse(field, text, "the port is missing");
  const std::string_view host = rest.substr(0, colon);
  const std::string_view port_text = rest.substr(colon + 1);
  if (const std::string_view fault = HostFault(host); !fault.empty()) return Refuse(field, text, fault);
  if (port_text.empty()) return Refuse(field, text, "the port is missing");
  const std::optional<std::int64_t> port = ParsePort(port_text);
  if (!port) {
    return Refuse(
        field, text,
        fmt::format("the port \"{}\" is not a number from 0 to {}, nor \"*\"", ShortText(port_text, kShown), kMaxPort));
  }
  if (*port > kMaxPort)
    return Refuse(field, text, fmt::format("the port {} is above {}", ShortText(port_text, kShown), kMaxPort));
  Endpoint endpoint;
  endpoint.scheme = Endpoint::Scheme::kTcp;
  endpoint.host = host;
  endpoint.port = static_cast<std::uint16_t>(*port);
  return endpoint;
}

Result<Endpoint> ParsePath(std::string_view text, std::string_view rest, Endpoint::Scheme scheme,
                           std::string_view field) {
  const bool ipc = scheme == Endpoint::Scheme::kIpc;
  const std::string_view what = ipc ? "the path" : "the name";
  const std::size_t limit = ipc ? kMaxIpcPath : kMaxInprocName;
  if (rest.empty()) return Refuse(field, text, fmt::format("{} is empty", what));
  if (HasForbiddenCharacter(rest, true)) return Refuse(field, text, fmt::format("{} holds a control character", what));
  if (rest.size() > limit) return Refuse(field, text, fmt::format("{} is longer than {} bytes", what, limit));
  Endpoint endpoint;
  endpoint.scheme = scheme;
  endpoint.path = rest;
  return endpoint;
}

std::string RankSuffix(std::int64_t rank) { return fmt::format("_dp{}", rank); }

bool IsWildcard(const Endpoint& endpoint) {
  return endpoint.host == "*" || endpoint.host == "0.0.0.0" || endpoint.host == "::" || endpoint.host == "[::]";
}

bool IsLoopback(const Endpoint& endpoint) {
  return endpoint.host.starts_with("127.") || endpoint.host == "localhost" || endpoint.host == "[::1]";
}

// Whether `longer` is what some rank above 0 makes of `base`.
bool IsRankedFormOf(std::string_view longer, std::string_view base, std::int64_t dp_size) {
  if (longer.size() <= base.size() || !longer.starts_with(base)) return false;
  for (std::int64_t rank = 1; rank < dp_size; ++rank) {
    const std::string suffix = RankSuffix(rank);
    if (longer.substr(base.size()) == suffix) return true;
    if (suffix.size() > longer.size() - base.size()) break;
  }
  return false;
}

// Whether two sockets on these hosts can want the same port of this machine. A connecting socket takes no port here,
// but it must not meet the replay socket of its own engine.
bool HostsMeet(const Endpoint& publish, const Endpoint& replay, bool publish_binds) {
  if (publish.host == replay.host) return true;
  if (publish_binds) return IsWildcard(publish) || IsWildcard(replay);
  return (IsWildcard(publish) || IsLoopback(publish)) && (IsWildcard(replay) || IsLoopback(replay));
}

Status CheckDistance(const Endpoint& publish, const Endpoint& replay, bool publish_binds, std::int64_t dp_size) {
  if (publish.scheme != replay.scheme) return {};
  if (publish.scheme != Endpoint::Scheme::kTcp) {
    if (publish.scheme == Endpoint::Scheme::kIpc && publish.path == kAnyIpcPath) return {};
    const bool clash = publish.path == replay.path || IsRankedFormOf(publish.path, replay.path, dp_size) ||
                       IsRankedFormOf(replay.path, publish.path, dp_size);
    if (!clash) return {};
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("endpoint \"{}\" and replay_endpoint \"{}\" give the same address to two sockets; "
                                 "allowed: different names, also with the suffix _dp<rank>",
                                 publish.ToString(), replay.ToString()));
  }
  if (*publish.port == 0 || *replay.port == 0 || !HostsMeet(publish, replay, publish_binds)) return {};
  const std::int64_t distance = std::abs(std::int64_t{*publish.port} - std::int64_t{*replay.port});
  if (distance >= dp_size) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("endpoint \"{}\" and replay_endpoint \"{}\" are {} ports apart, but each takes {} "
                               "port(s), one per data-parallel rank; allowed: a distance of at least {}",
                               publish.ToString(), replay.ToString(), distance, dp_size, dp_size));
}

Status CheckRank(std::int64_t rank, std::int64_t dp_size) {
  if (dp_size < 1) {
    return MakeError(ErrorCode::kInvalidArgument, fmt::format("dp_size: {}; allowed: 1 or more", dp_size));
  }
  if (rank < 0 || rank >= dp_size) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("data_parallel_rank: {}; allowed: 0 to {} (dp_size - 1)", rank, dp_size - 1));
  }
  return {};
}

}  // namespace

Result<Endpoint> Endpoint::Parse(std::string_view text, std::string_view field) {
  constexpr std::string_view kTcpPrefix = "tcp://";
  constexpr std::string_view kIpcPrefix = "ipc://";
  constexpr std::string_view kInprocPrefix = "inproc://";
  if (text.empty()) return Refuse(field, text, "the address is empty");
  if (text.starts_with(kTcpPrefix)) return ParseTcp(text, text.substr(kTcpPrefix.size()), field);
  if (text.starts_with(kIpcPrefix)) return ParsePath(text, text.substr(kIpcPrefix.size()), Scheme::kIpc, field);
  if (text.starts_with(kInprocPrefix)) {
    return ParsePath(text, text.substr(kInprocPrefix.size()), Scheme::kInproc, field);
  }
  return Refuse(field, text, "the scheme is unknown (lower case matters)");
}

std::string Endpoint::ToString() const {
  switch (scheme) {
    case Scheme::kTcp:
      return fmt::format("tcp://{}:{}", host, port.value_or(0));
    case Scheme::kIpc:
      return "ipc://" + path;
    case Scheme::kInproc:
      return "inproc://" + path;
  }
  return {};
}

Result<Endpoint> EndpointForRank(const Endpoint& base, std::string_view field, std::int64_t rank,
                                 std::int64_t dp_size) {
  if (const Status valid = CheckRank(rank, dp_size); !valid) return tl::unexpected<Error>(valid.error());
  Endpoint ranked = base;
  if (base.scheme == Endpoint::Scheme::kTcp) {
    const std::int64_t port = base.port.value_or(0);
    if (port == 0) return ranked;
    if (dp_size - 1 > kMaxPort - port) {
      return MakeError(ErrorCode::kInvalidArgument,
                       fmt::format("{}: \"{}\": with {} data-parallel ranks the last port is {}; allowed: at most {}",
                                   field, base.ToString(), dp_size, port + (dp_size - 1), kMaxPort));
    }
    ranked.port = static_cast<std::uint16_t>(port + rank);
    return ranked;
  }
  const bool ipc = base.scheme == Endpoint::Scheme::kIpc;
  if (ipc && base.path == kAnyIpcPath) return ranked;
  const std::size_t limit = ipc ? kMaxIpcPath : kMaxInprocName;
  const std::size_t longest = base.path.size() + (dp_size > 1 ? RankSuffix(dp_size - 1).size() : 0);
  if (longest > limit) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{}: \"{}\": with the suffix of {} data-parallel ranks it has {} bytes after the "
                                 "scheme; allowed: at most {}",
                                 field, base.ToString(), dp_size, longest, limit));
  }
  if (rank > 0) ranked.path += RankSuffix(rank);
  return ranked;
}

namespace {

Result<RankEndpoints> RankedPair(const RankEndpoints& base, bool publish_binds, std::int64_t rank,
                                 std::int64_t dp_size) {
  Result<Endpoint> publish = EndpointForRank(base.publish, "endpoint", rank, dp_size);
  if (!publish) return tl::unexpected<Error>(publish.error());
  RankEndpoints ranked{*std::move(publish), std::nullopt};
  if (!base.replay) return ranked;
  Result<Endpoint> replay = EndpointForRank(*base.replay, "replay_endpoint", rank, dp_size);
  if (!replay) return tl::unexpected<Error>(replay.error());
  ranked.replay = *std::move(replay);
  if (const Status apart = CheckDistance(base.publish, *base.replay, publish_binds, dp_size); !apart) {
    return tl::unexpected<Error>(apart.error());
  }
  return ranked;
}

}  // namespace

bool Binds(const Endpoint& endpoint, SocketMode mode) noexcept {
  switch (mode) {
    case SocketMode::kBind:
      return true;
    case SocketMode::kConnect:
      return false;
    case SocketMode::kAuto:
      break;
  }
  if (endpoint.scheme != Endpoint::Scheme::kTcp) return true;
  return endpoint.host == "0.0.0.0" || endpoint.host.find('*') != std::string::npos ||
         endpoint.host.find("::") != std::string::npos;
}

Status CheckConnects(const Endpoint& endpoint, std::string_view field) {
  const bool given = endpoint.scheme == Endpoint::Scheme::kTcp ? endpoint.host != "*" && endpoint.port.value_or(0) != 0
                                                               : endpoint.path != kAnyIpcPath;
  if (given) return {};
  const bool is_open = endpoint.scheme == Endpoint::Scheme::kTcp && endpoint.port == 0;
  return Refuse(field, endpoint.ToString(),
                is_open ? "port 0 is for a socket that binds; this one connects, so host and port must be given"
                        : "the socket connects, so host and port must be given");
}

bool AddressesMeet(const Endpoint& publish, const Endpoint& replay, SocketMode mode) noexcept {
  if (publish.scheme != replay.scheme) return false;
  if (publish.scheme != Endpoint::Scheme::kTcp) return publish.path == replay.path && publish.path != kAnyIpcPath;
  return publish.port == replay.port && publish.port.value_or(0) != 0 &&
         HostsMeet(publish, replay, Binds(publish, mode));
}

std::string_view BindHint(const Endpoint& endpoint) noexcept {
  switch (endpoint.scheme) {
    case Endpoint::Scheme::kTcp:
      if (IsWildcard(endpoint)) return {};
      return " (binding takes the numeric address or the name of an interface of this machine, or *)";
    case Endpoint::Scheme::kIpc:
      return " (the directory of the path must exist and be writable)";
    case Endpoint::Scheme::kInproc:
      break;
  }
  return {};
}

Result<RankEndpoints> EndpointsForRank(const KVEventsConfig& config, std::int64_t rank, std::int64_t dp_size) {
  Result<Endpoint> publish = Endpoint::Parse(config.endpoint, "endpoint");
  if (!publish) return tl::unexpected<Error>(publish.error());
  Result<Endpoint> publish_ranked = EndpointForRank(*publish, "endpoint", rank, dp_size);
  if (!publish_ranked) return tl::unexpected<Error>(publish_ranked.error());
  const bool binds = Binds(*publish, config.kvwire.mode);
  if (!binds) {
    if (const Status connects = CheckConnects(*publish, "endpoint"); !connects) {
      return MakeError(connects.error().code, connects.error().message + "; or kvwire.mode \"bind\", to bind it");
    }
  }

  RankEndpoints base{*std::move(publish), std::nullopt};
  if (!config.replay_endpoint) return RankEndpoints{*std::move(publish_ranked), std::nullopt};
  Result<Endpoint> replay = Endpoint::Parse(*config.replay_endpoint, "replay_endpoint");
  if (!replay) return tl::unexpected<Error>(replay.error());
  base.replay = *std::move(replay);
  return RankedPair(base, binds, rank, dp_size);
}

Result<RankEndpoints> EndpointsForRank(const RankEndpoints& base, std::int64_t rank, std::int64_t dp_size) {
  return RankedPair(base, false, rank, dp_size);
}

}  // namespace kvwire
