// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "kv_events/transport/endpoint.h"

namespace kvwire::engine {

// What answers at an address, asked with a plain socket: libzmq tells nobody why it does not get through.
struct ProbeResult {
  std::vector<std::string> addresses;  // of the host's name, as text; empty: it has none, or the address has no host
  std::string resolve_error;           // empty: resolved, or nothing to resolve
  bool connected = false;
  std::string connect_error;  // empty if connected

  enum class Speech : std::uint8_t {
    kNothing,  // it closed the connection, or said nothing in time
    kOther,    // not ZeroMQ
    kZmtp,
  };
  Speech speech = Speech::kNothing;
  std::string first_bytes;  // kOther
  int major = 0;            // of ZMTP, as the next
  int minor = 0;
  std::string mechanism;    // "NULL", "PLAIN", "CURVE"
  std::string socket_type;  // "PUB", "XPUB", "ROUTER"; empty: it did not say
};

// Looks the host up, connects to its first address, IPv4 if there is one, and takes part in the greeting; once more, as
// CURVE's, if that is refused.
// Threads: any; waits for a name server, and for up to `timeout` for each of connecting, greeting and the
// socket's type, but not once a stop was asked for.
// Source: ZMTP 3.0 and 3.1, "Greeting" and "NULL".
ProbeResult Probe(const Endpoint& endpoint, std::chrono::milliseconds timeout);

}  // namespace kvwire::engine
