// SPDX-License-Identifier: Apache-2.0
#include "engine/http/http_body_reader.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

namespace kvwire::engine {

HttpBodyReader::HttpBodyReader(HttpFraming framing, Source source)
    : kind_(framing.kind), source_(std::move(source)), left_(framing.length) {}

ssize_t HttpBodyReader::Read(char* data, std::size_t size) {
  switch (kind_) {
    case HttpFraming::Kind::kUntilEnd:
      return source_(data, size);
    case HttpFraming::Kind::kChunked:
      return ReadChunked(data, size);
    case HttpFraming::Kind::kLength:
      break;
  }
  if (left_ == 0) return 0;
  const ssize_t count = source_(data, static_cast<std::size_t>(std::min<std::uint64_t>(size, left_)));
  if (count <= 0) return -1;
  left_ -= static_cast<std::uint64_t>(count);
  return count;
}

ssize_t HttpBodyReader::ReadChunked(char* data, std::size_t size) {
  if (ended_) return 0;
  if (left_ == 0) {
    if (in_chunk_ && !ReadLineEnd()) return -1;
    if (!ReadChunkSize()) return -1;
    in_chunk_ = true;
    if (left_ == 0) {
      if (!ReadTrailer()) return -1;
      ended_ = true;
      return 0;
    }
  }
  const ssize_t count = source_(data, static_cast<std::size_t>(std::min<std::uint64_t>(size, left_)));
  if (count <= 0) return -1;
  left_ -= static_cast<std::uint64_t>(count);
  return count;
}

bool HttpBodyReader::ReadLineEnd() {
  char first = 0;
  char second = 0;
  return ReadByte(&first) && first == '\r' && ReadByte(&second) && second == '\n';
}

// A length in hexadecimal digits, and what its sender may have added after a semicolon.
bool HttpBodyReader::ReadChunkSize() {
  std::string line;
  for (char byte = 0; !line.ends_with('\r'); line += byte) {
    if (line.size() == kMaxLineBytes || !ReadByte(&byte) || byte == '\n') return false;
  }
  char feed = 0;
  if (!ReadByte(&feed) || feed != '\n') return false;
  line.pop_back();
  const char* const end = line.data() + line.size();
  const auto [stop, error] = std::from_chars(line.data(), end, left_, 16);
  if (error != std::errc()) return false;
  const std::size_t more = line.find_first_not_of(" \t", static_cast<std::size_t>(stop - line.data()));
  return stop == end || (more != std::string::npos && line[more] == ';');
}

bool HttpBodyReader::ReadTrailer() {
  HttpHeadParser parser = HttpHeadParser::OfTrailer();
  auto state = HttpHeadParser::State::kMore;
  for (std::size_t bytes = 0; state == HttpHeadParser::State::kMore; ++bytes) {
    char byte = 0;
    if (bytes == kMaxTrailerBytes || !ReadByte(&byte)) return false;
    state = parser.Take(byte);
  }
  return state == HttpHeadParser::State::kComplete;
}

}  // namespace kvwire::engine
