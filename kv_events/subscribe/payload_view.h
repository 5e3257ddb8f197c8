// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv_events/batch.h"

namespace kvwire {

// Bytes begin..end of a payload, end not included.
struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;

  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// Where the msgpack value at `begin` ends; nothing if it does not end inside the payload.
std::optional<std::size_t> EndOfValue(std::span<const std::uint8_t> payload, std::size_t begin);

// Where each event of a payload lies, in array and map batches. As far as the payload can be walked; empty when it is
// not a batch.
std::vector<ByteRange> FindEvents(std::span<const std::uint8_t> payload);

// A hexadecimal dump, 16 bytes a line after their offset, of the lines around `marked`, which stands between [ and ]. A
// long marked range is shown by its first and last lines only.
// Bounds: about `max_bytes` bytes are shown.
std::string HexDump(std::span<const std::uint8_t> payload, ByteRange marked, std::size_t max_bytes = 512);

// One event in one line, the wire's names; of many hashes the first and the last. Texts are escaped (EscapeText).
std::string DescribeEvent(const KVEventBatch::Event& event);

}  // namespace kvwire
