// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

namespace kvwire {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Where library code says what happened; it never prints. An empty function discards.
// Threads: called from any thread of the component it was given to; the callee synchronises.
// Bounds: the text is valid only during the call.
// Errors: what the callee throws is ignored; telling must not end what is told about.
using LogSink = std::function<void(LogLevel, std::string_view)>;

inline void Log(const LogSink& sink, LogLevel level, std::string_view text) noexcept {
  if (!sink) return;
  try {
    sink(level, text);
  } catch (...) {
    return;
  }
}

}  // namespace kvwire
