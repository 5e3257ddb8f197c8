// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kv_events/error.h"

namespace kvwire {

enum class PublisherKind : std::uint8_t { kNull, kZmq };

// Shape of an event inside the array batch: map keyed by field name (vLLM since 0.24), or array with the tag first.
enum class EventFormat : std::uint8_t { kMap, kArray };

// How far an array event goes: every field of vLLM 0.22 (BlockStored 11, BlockRemoved 3 after the tag), or not past
// extra_keys / medium.
enum class ArrayTail : std::uint8_t { kFull, kLegacy };

// A block hash on the wire: the low 64 bits unsigned, the same bits signed, all bytes, or the first 64 bits signed.
enum class HashForm : std::uint8_t { kUint64, kInt64, kBytes, kFirstInt64 };

// Integer hashes in the shortest form, as vLLM writes them, or always in nine bytes.
enum class WideHashes : std::uint8_t { kMinimal, kAlways };

// Replay messages with the topic frame (vLLM since 0.26) or without.
enum class ReplayLayout : std::uint8_t { kTopic, kLegacy };

// Whether the publishing socket binds or connects: by the endpoint's spelling, or forced.
enum class SocketMode : std::uint8_t { kAuto, kBind, kConnect };

// kExact: a removal only when the last physical copy is gone, then as many as there were announcements. kPerCopy: one
// removal per physical copy, as vLLM does.
enum class Removals : std::uint8_t { kExact, kPerCopy };

// After a batch was lost, which always burns its number, so that consumers see a gap. kResync: the stream begins again
// with AllBlocksCleared, if the host knows its state. kDrop: the gap is all.
enum class Overflow : std::uint8_t { kResync, kDrop };

// Whether stored events carry the tokens of their blocks, or an empty list: who reads the stream then cannot read
// prompts in it.
enum class TokenIds : std::uint8_t { kFull, kOmit };

// How a state is given out over the replay endpoint. kKvwire: to who asks for it by name. kXllm: every replay request
// is answered by the whole state in one message. kOff: never.
enum class SnapshotForm : std::uint8_t { kKvwire, kXllm, kOff };

inline constexpr std::int64_t kMinHeartbeatMs = 10;
inline constexpr std::int64_t kMaxHeartbeatMs = 3'600'000;
inline constexpr std::int64_t kMaxRestartGuardS = 3600;

// Closing the sockets to strangers with ZeroMQ's CURVE. Keys stand in files, never in a configuration.
struct CurveConfig {
  std::string secret_key_file;    // the publisher's; empty: sockets are open
  std::string allowed_keys_file;  // who may connect to sockets that bind; or
  bool allow_any = false;         // whoever knows the publisher's public key
  std::string server_key_file;    // public key of the subscriber that binds, for a publisher that connects

  bool enabled() const noexcept { return !secret_key_file.empty(); }
  friend bool operator==(const CurveConfig&, const CurveConfig&) = default;
};

// What --kv-events-config says. vLLM's keys and defaults; what vLLM does not know is in the object "kvwire" inside.
//
// A value. FromJson and FromArguments validate everything but the endpoints, which are resolved with a rank when a
// publisher is made.
// Source: docs/protocol.md, "Configuration".
struct KVEventsConfig {
  bool enable_kv_cache_events = false;
  std::optional<PublisherKind> publisher;  // unset: zmq if enabled, else null
  std::string endpoint = "tcp://*:5557";
  std::optional<std::string> replay_endpoint;
  std::int64_t buffer_steps = 10000;     // batches kept for replay, 0 or more
  std::int64_t hwm = 100000;             // ZeroMQ high-water mark of the publishing socket, 0 (no limit) or more
  std::int64_t max_queue_size = 100000;  // batches waiting to be sent, 1 or more
  std::string topic;                     // UTF-8; first frame of every message

  // The object "kvwire".
  struct Extensions {
    std::string profile = "vllm";
    EventFormat event_format = EventFormat::kMap;
    ArrayTail array_tail = ArrayTail::kFull;
    HashForm hash_form = HashForm::kUint64;
    WideHashes wide_hashes = WideHashes::kMinimal;
    ReplayLayout replay_layout = ReplayLayout::kTopic;
    std::uint64_t first_seq = 0;  // 0, or 1 to look like other producers in tests
    SocketMode mode = SocketMode::kAuto;
    // On the wire instead of vLLM's names; "medium_names": {"GPU": ..., "CPU": ..., "DISK": ..., "STORAGE": ...} in
    // JSON.
    std::string medium_gpu = "GPU";
    std::string medium_cpu = "CPU";
    std::string medium_disk = "DISK";  // may be the name of the storage, for consumers that have one name for both
    std::string medium_storage = "STORAGE";
    Removals removals = Removals::kExact;
    Overflow overflow = Overflow::kResync;
    std::int64_t queue_bytes = std::int64_t{256} << 20;
    std::int64_t buffer_bytes = std::int64_t{512} << 20;
    std::int64_t heartbeat_interval_ms = 0;  // 0: none; else kMinHeartbeatMs to kMaxHeartbeatMs
    std::int64_t restart_guard_s = 60;       // 0: none; at most kMaxRestartGuardS
    SnapshotForm snapshot = SnapshotForm::kKvwire;
    TokenIds token_ids = TokenIds::kFull;
    CurveConfig curve;

    friend bool operator==(const Extensions&, const Extensions&) = default;
  };
  Extensions kvwire;

  friend bool operator==(const KVEventsConfig&, const KVEventsConfig&) = default;

  // The publisher after the defaulting rule; kNull whenever events are not enabled.
  PublisherKind EffectivePublisher() const noexcept;

  // Parses the argument of --kv-events-config: JSON whose bare numbers may carry k, m, g, t (powers of 1000) or
  // K, M, G, T (powers of 1024). "" and "None" give the defaults. Errors name the key, the value and what is allowed.
  // `environment` answers VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES (nothing when unset): "0" makes hash_form default to
  // bytes. It is read here, once.
  using Environment = std::function<std::optional<std::string>(const std::string& name)>;
  static Result<KVEventsConfig> FromJson(std::string_view json, const Environment& environment = {});

  // As FromJson, with dotted settings on top: {"topic", "x"} for --kv-events-config.topic x. Values are read as JSON,
  // else as a number with suffix, else as text. "kvwire.profile" reaches into the object.
  struct DottedSetting {
    std::string key;
    std::string value;
  };
  static Result<KVEventsConfig> FromArguments(std::string_view json, std::span<const DottedSetting> dotted,
                                              const Environment& environment = {});

  // The same object in vLLM's spelling, defaults included, an unset publisher left out. Read again it is equal.
  std::string ToJson() const;
};

// The process environment.
std::optional<std::string> ProcessEnvironment(const std::string& name);

// Names of the profiles that "kvwire": {"profile": ...} accepts, joined for messages.
std::string ProfileNames();

// Sets the switches that a profile bundles, and its name; keys given explicitly win over them. A profile that leaves
// hash_form open ("vllm", "vllm-0.22", "llm-d") keeps what is there. The bytes of a named profile do not change between
// versions.
Status ApplyProfile(std::string_view name, KVEventsConfig::Extensions* extensions);

}  // namespace kvwire
