// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "kv_events/transport/endpoint.h"

namespace kvwire {

// What the operating system says about an address, where libzmq does not say it.

// Whether somebody has the Unix socket at this path, or may have it. libzmq would take its address away silently.
bool UnixSocketAnswers(std::string_view path) noexcept;

// Waits until the address of a socket that is being closed can be bound again: libzmq closes in the background. False
// when it still could not after `patience`, or when the address cannot be judged.
bool WaitUntilFree(const Endpoint& endpoint, std::chrono::milliseconds patience) noexcept;

// The address under which others reach a socket that is bound at `endpoint`: a wildcard host becomes the one that this
// machine sends from, loopback when it is connected to nothing; anything else stays.
std::string ReachableAddress(const std::string& endpoint);

}  // namespace kvwire
