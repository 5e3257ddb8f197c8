// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

#include "kv_events/digest.h"
#include "kv_events/wire/decoder.h"
#include "kv_events/wire/frames.h"

namespace kvwire {

// What a ROUTER of kvwire answers beyond vLLM's replay. A request is [empty, name] or [empty, name + argument]; a
// ROUTER that does not know it reads a number above every batch's and sends the end mark, so asking never takes long.
// An answer is a run of messages [empty, name, number, payload] and then the replay's end mark.
// Source: docs/protocol.md, "State".

inline constexpr std::string_view kHelloName = "KVW1hello";        // no argument; one message
inline constexpr std::string_view kDigestName = "KVW1digest";      // argument: a number, 8 bytes; one message or none
inline constexpr std::string_view kSnapshotName = "KVW1snapshot";  // no argument; chunks, then kSnapshotEndName
inline constexpr std::string_view kChunkName = "KVW1chunk";        // number: of the live batch that comes after it
inline constexpr std::string_view kSnapshotEndName = "KVW1end";    // number: of the live batch that comes after it

enum class ExtensionKind : std::uint8_t { kHello, kDigest, kSnapshot };

struct ExtensionRequest {
  ExtensionKind kind = ExtensionKind::kHello;
  SequenceNumber number = 0;  // kDigest
};

// The second frame of a request.
std::vector<std::uint8_t> EncodeExtensionRequest(const ExtensionRequest& request);
// Nothing for a start of replay, and for a name with a wrong argument.
std::optional<ExtensionRequest> ParseExtensionRequest(FrameView frame) noexcept;

// Payload of the answer to a hello, and its number: that of the next batch.
struct Hello {
  std::uint64_t epoch = 0;  // of the publisher's life: random, another after every start
  std::int64_t data_parallel_rank = 0;
  SequenceNumber first = 0;                 // number of its first batch
  SequenceNumber next = 0;                  // number after the last one sent
  std::optional<SequenceNumber> oldest;     // in the replay buffer
  std::uint32_t heartbeat_interval_ms = 0;  // 0: none are sent
  bool snapshots = false;                   // whether kSnapshot is answered with a state
  Removals removals = Removals::kExact;
  std::optional<std::vector<StateDigest::Entry>> digest;  // after batch next - 1; nothing when the publisher has none

  friend bool operator==(const Hello&, const Hello&) = default;
};

// Payload of the answer to a digest request, and of the snapshot's end: what the stream holds after a number.
using DigestEntries = std::vector<StateDigest::Entry>;

void EncodeHello(const Hello& hello, std::vector<std::uint8_t>* out);
tl::expected<Hello, DecodeError> DecodeHello(FrameView payload);

void EncodeDigest(const DigestEntries& entries, std::vector<std::uint8_t>* out);
// Bounds: 1,024 entries, 256 bytes of medium each.
tl::expected<DigestEntries, DecodeError> DecodeDigest(FrameView payload);

// A message of an answer as a DEALER sees it. The payload of a chunk is a batch as live messages have it.
struct ExtensionMessage {
  std::string_view name;  // views the frame
  SequenceNumber number = 0;
  FrameView payload;
};
// Nothing unless there are four frames, the first empty, the second one of the names of an answer, the third a number.
std::optional<ExtensionMessage> ParseExtensionMessage(std::span<const FrameView> frames) noexcept;

}  // namespace kvwire
