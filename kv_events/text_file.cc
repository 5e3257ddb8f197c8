// SPDX-License-Identifier: Apache-2.0
#include "kv_events/text_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

#include "kv_events/escape_text.h"

namespace kvwire {

Result<std::string> ReadTextFile(const std::string& path, std::size_t max_bytes) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(max_bytes + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    return MakeError(ErrorCode::kUnavailable,
                     fmt::format("\"{}\": {}", ShortText(path), std::strerror(errno != 0 ? errno : EIO)));
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > max_bytes) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("\"{}\" has more than {} bytes", ShortText(path), max_bytes));
  }
  return text;
}

std::string_view TakeLine(std::string_view* text) noexcept {
  const std::size_t end = std::min(text->find('\n'), text->size());
  const std::string_view line = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return line;
}

}  // namespace kvwire
