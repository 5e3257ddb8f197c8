// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kvwire::engine {

// The developer page: the pool as a grid, the events beside it, buttons. One HTML text without outside parts.
const std::string& DevPage();

}  // namespace kvwire::engine
