// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <sys/types.h>

#include "engine/http/http_head.h"

namespace kvwire::engine {

// The body of a message, out of the bytes of its connection.
//
// Bounds: the line of a chunk's length and all of the fields after the last chunk are kMaxLineBytes and
// kMaxTrailerBytes long.
class HttpBodyReader {
 public:
  static constexpr std::size_t kMaxLineBytes = std::size_t{4} << 10;
  static constexpr std::size_t kMaxTrailerBytes = std::size_t{64} << 10;

  // Some bytes; 0 when the connection ended, -1 when it failed.
  using Source = std::function<ssize_t(char*, std::size_t)>;

  HttpBodyReader(HttpFraming framing, Source source);

  // Some bytes; 0 at the body's end, -1 when the connection ends before it or the chunks are no chunks. Takes nothing
  // from the connection that comes after the body.
  ssize_t Read(char* data, std::size_t size);

 private:
  // Whether that could be read.
  bool ReadByte(char* byte) { return source_(byte, 1) == 1; }
  bool ReadLineEnd();
  bool ReadChunkSize();
  bool ReadTrailer();

  ssize_t ReadChunked(char* data, std::size_t size);

  const HttpFraming::Kind kind_;
  const Source source_;
  std::uint64_t left_;  // of the body, or of the chunk
  bool in_chunk_ = false;
  bool ended_ = false;
};

}  // namespace kvwire::engine
