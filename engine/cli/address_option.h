// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "kv_events/error.h"
#include "kv_events/transport/endpoint.h"

namespace kvwire::engine {

// An address that other processes can reach. Errors: as Endpoint::Parse; an inproc address names the flag, too.
Result<Endpoint> ParseAddress(const std::string& text, std::string_view flag);

}  // namespace kvwire::engine
