// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kvwire::engine {

// A text that nobody else has: 128 random bits in hexadecimal. Threads: any.
std::string UniqueText();

}  // namespace kvwire::engine
