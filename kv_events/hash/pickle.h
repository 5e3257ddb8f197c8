// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "kv_events/events.h"
#include "kv_events/hash/byte_buffer.h"

namespace kvwire {

// The part of Python's pickle protocol 5 that block identities are made of, byte for byte as CPython's pickle.dumps
// writes it, frames included. One value: a text, or a tuple, between Clear() and Stop(). Every string and every bytes
// is written out as an object of its own; where a Python producer pickles the same object twice, CPython writes a
// reference instead.
// Ownership: appends to a buffer of its own; Clear() keeps the memory.
// Bounds: a text or bytes has fewer than 2^32 bytes.
class PickleWriter {
 public:
  PickleWriter() { Clear(); }

  void Clear();
  void Stop();  // ends the value; before it the bytes are not complete
  std::span<const std::uint8_t> bytes() const noexcept { return buffer_.bytes(); }
  // Room for so many bytes behind bytes(), not part of them; valid until more is written.
  std::uint8_t* Behind(std::size_t count) { return buffer_.Reserve(count); }

  // The elements of a tuple stand between the two, which are told the same count.
  void BeginTuple(std::size_t elements);
  void EndTuple(std::size_t elements);
  void Integer(std::int64_t value);
  void Text(std::string_view text);
  void Bytes(std::span<const std::uint8_t> bytes);
  void None();

  // A tuple of unsigned integers.
  void Tokens(std::span<const TokenId> tokens);

 private:
  static constexpr std::size_t kNoFrame = std::numeric_limits<std::size_t>::max();

  std::uint8_t* Room(std::size_t bytes);
  void Opcode(std::uint8_t opcode);
  void Sized(std::uint8_t short_opcode, std::uint8_t long_opcode, const void* data, std::size_t size);
  std::size_t FrameSize() const noexcept;
  void BeginObject();
  void CommitFrame();

  ByteBuffer buffer_;
  std::size_t frame_ = kNoFrame;  // where the head of the open frame is kept free
};

}  // namespace kvwire
