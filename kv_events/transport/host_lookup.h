// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv_events/error.h"
#include "kv_events/transport/endpoint.h"

namespace kvwire {

// Addresses as text, without brackets: those of IPv4 first, each once.
using HostAddresses = std::vector<std::string>;
using HostResolver = std::function<Result<HostAddresses>(const std::string& host)>;

// Asks the system for all addresses of a name; waits for its answer, and nothing interrupts that.
Result<HostAddresses> ResolveHost(const std::string& host);

// Whether the host of an endpoint is an address already; brackets are allowed.
bool IsHostAddress(std::string_view host);

// Looks a name up without waiting for it, on threads that nobody waits for: neither the end of this object nor that of
// the process.
// Threads: one thread at a time. The resolver is called on another one, maybe when this object is gone.
// Errors: the resolver's, or kUnavailable when no thread can be started.
// Bounds: 16 names are looked up at a time in a process, others wait; who asks the system for the same name at the same
// time shares the answer.
class HostLookup {
 public:
  // Without a resolver the system is asked.
  explicit HostLookup(std::string host, HostResolver resolver = {});

  // The answer, once; the next call asks anew. Nothing while it is awaited.
  std::optional<Result<HostAddresses>> Poll();

 private:
  struct Question;
  class Threads;

  const std::string host_;
  const HostResolver resolver_;
  std::shared_ptr<Question> question_;
};

// Where to connect to: an endpoint whose host may be a name, looked up anew each time, so that libzmq, which would look
// it up on the one thread that serves all connections, gets addresses only.
// Threads: one thread at a time.
class EndpointLookup {
 public:
  explicit EndpointLookup(Endpoint endpoint, HostResolver resolver = {});

  // The endpoint with an address for a host; nothing while that is awaited or when there is none now.
  std::optional<Endpoint> Poll();

  bool by_name() const noexcept { return lookup_.has_value(); }
  // Why the latest look-up failed: it names the host; empty if it did not.
  const std::string& failure() const noexcept { return failure_; }

 private:
  const Endpoint endpoint_;
  std::optional<HostLookup> lookup_;
  std::string failure_;
};

}  // namespace kvwire
