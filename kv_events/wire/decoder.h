// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

#include "kv_events/batch.h"

namespace kvwire {

// Bounds on bytes from strangers. Every declared length is also checked against the bytes that remain. Above
// max_payload_bytes, max_events or max_depth the message is refused, above the others the event.
struct DecodeLimits {
  std::size_t max_payload_bytes = std::size_t{64} << 20;  // never more than 2 GiB
  std::size_t max_events = 1u << 20;
  std::size_t max_hashes_per_event = 1u << 20;
  std::size_t max_hashes = 1u << 22;  // of all events together
  std::size_t max_tokens_per_event = 1u << 24;
  std::size_t max_extra_keys = 1u << 18;   // of all events together
  std::size_t max_text_bytes = 1u << 20;   // a text, or a key that is kept as bytes
  std::size_t max_rejected_details = 100;  // how many rejected events are described one by one
  std::uint32_t max_depth = 32;            // arrays and maps around a value; never more than 256
};

// Which 64 bits stand for a hash that came as bytes is decided later, by BlockHash::Low64; kFirst64 keeps only the
// first 8 bytes, for producers whose integer form is made of them.
enum class HashBits : std::uint8_t { kLow64, kFirst64 };

struct DecodeOptions {
  DecodeLimits limits;
  HashBits hash_bits = HashBits::kLow64;
  bool zero_parent_is_none = false;  // producers that write parent 0 for "no parent"
  bool strict = false;               // a rejected event fails the whole message
};

enum class DecodeErrorCode : std::uint8_t {
  kTruncated,      // the payload ends inside a value
  kTrailingBytes,  // something follows the batch
  kLimitExceeded,  // a length above DecodeLimits, or above the bytes that remain
  kTooDeep,        // nesting above max_depth
  kBadType,        // a value of another msgpack type than allowed here
  kOutOfRange,     // an integer outside its domain (token, block size, group)
  kMissingField,   // a required field is not there
  kUnknownEvent,   // a tag that kvwire does not know
  kBadShape,       // batch or event has the wrong number of elements
  kInconsistent,   // fields that contradict each other (extra_keys not one per block, duplicate tag)
};

std::string_view ToString(DecodeErrorCode code) noexcept;

// Why something could not be read, and where.
struct DecodeError {
  DecodeErrorCode code = DecodeErrorCode::kTruncated;
  std::size_t offset = 0;  // byte in the payload
  std::string path;        // e.g. "events[3].token_ids[17]"
  std::string message;     // code, path, offset and what was found, in one line
};

// An event that was left out; the others of its batch were read.
struct RejectedEvent {
  std::size_t index = 0;  // position among the events of the payload
  DecodeError error;
};

enum class BatchShape : std::uint8_t { kArray, kMap };

struct DecodedBatch {
  KVEventBatch batch;                   // the events that were read, in order
  std::vector<RejectedEvent> rejected;  // the first limits.max_rejected_details of them
  std::size_t rejected_total = 0;       // all of them
  BatchShape shape = BatchShape::kArray;
  bool without_time = false;       // ts is 0 because the payload's is nil, NaN or infinite
  std::size_t map_events = 0;      // events that were read from a map,
  std::size_t array_events = 0;    // or from an array
  std::size_t ignored_fields = 0;  // unknown map keys and surplus array elements of the batch and of those events
};

// Reads one payload: array or map batches; map, array or bin-wrapped events, mixed; every field list since vLLM 0.9.0
// and the dialects of docs/protocol.md. `ts` may be float, integer (taken as milliseconds above 1e11) or nil; nil, NaN
// and infinities give 0. A BlockStored's cache_salt becomes the last extra key of its first block, and mm_keys an
// opaque one.
// Threads: none of its own.
// Errors: never throws but for lack of memory.
// Bounds: memory is bounded by the limits and, besides the described rejections, by 256 bytes per byte of payload.
// Source: docs/protocol.md, "What the decoder accepts".
tl::expected<DecodedBatch, DecodeError> DecodeBatch(std::span<const std::uint8_t> payload,
                                                    const DecodeOptions& options = {});

}  // namespace kvwire
