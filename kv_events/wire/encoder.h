// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv_events/batch.h"
#include "kv_events/config.h"

namespace kvwire {

// Writes batches as msgpack, byte for byte as vLLM's encoder does for the same switches: always an array of three
// (float64 ts, array of events, integer rank or nil), never anything after it. The nil is written only for a batch
// whose rank is unset; publishers set it.
//
// Threads: const and without state; several threads may encode into buffers of their own.
// Errors: throws std::bad_alloc only.
// Source: docs/protocol.md.
class BatchEncoder {
 public:
  explicit BatchEncoder(const KVEventsConfig::Extensions& switches) : switches_(switches) {}

  // Appends the payload of `batch` to *out.
  // REQUIRES: an OpaqueKey in the batch holds exactly one msgpack value; it is copied as it is.
  void Encode(const KVEventBatch& batch, std::vector<std::uint8_t>* out) const;

 private:
  const KVEventsConfig::Extensions switches_;
};

}  // namespace kvwire
