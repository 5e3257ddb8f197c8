// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/log.h"

#include <memory>

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

spdlog::level::level_enum LevelOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

LogSink StderrLog() {
  static const std::shared_ptr<spdlog::logger> logger = spdlog::stderr_color_mt("kvwire");
  return [](LogLevel level, std::string_view text) { logger->log(LevelOf(level), "{}", EscapeText(text)); };
}

}  // namespace kvwire::engine
