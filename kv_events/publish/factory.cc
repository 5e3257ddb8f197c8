// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/factory.h"

#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "kv_events/publish/zmq_publisher.h"

namespace kvwire {

namespace {

// A configuration that was filled in by hand has passed no parser.
Status CheckNumbers(const KVEventsConfig& config, const PublisherOptions& options) {
  constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
  struct Bound {
    std::string_view field;
    std::int64_t value;
    std::int64_t least;
    std::int64_t most;
  };
  const auto first_seq = static_cast<std::int64_t>(config.kvwire.first_seq);
  const std::int64_t heartbeat = config.kvwire.heartbeat_interval_ms;
  const Bound bounds[] = {
      {"buffer_steps", config.buffer_steps, 0, kInt64Max},
      {"hwm", config.hwm, 0, kInt32Max},
      {"max_queue_size", config.max_queue_size, 1, kInt32Max},
      {"kvwire.first_seq", first_seq, 0, 1},
      {"kvwire.queue_bytes", config.kvwire.queue_bytes, 1, kInt64Max},
      {"kvwire.buffer_bytes", config.kvwire.buffer_bytes, 0, kInt64Max},
      {"kvwire.heartbeat_interval_ms", heartbeat, heartbeat == 0 ? 0 : kMinHeartbeatMs, kMaxHeartbeatMs},
      {"kvwire.restart_guard_s", config.kvwire.restart_guard_s, 0, kMaxRestartGuardS},
  };
  for (const Bound& bound : bounds) {
    if (bound.value >= bound.least && bound.value <= bound.most) continue;
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{}: {}; allowed: {} to {}", bound.field, bound.value, bound.least, bound.most));
  }
  constexpr auto kLastFirst = static_cast<SequenceNumber>(kInt64Max);
  if (options.succession && options.succession->first_number > kLastFirst) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("first_number: {}; allowed: 0 to {}", options.succession->first_number, kLastFirst));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<EventPublisher>> CreateEventPublisher(const KVEventsConfig& config,
                                                             const PublisherOptions& options) {
  switch (config.EffectivePublisher()) {
    case PublisherKind::kNull:
      if (config.enable_kv_cache_events) {
        Log(options.log, LogLevel::kWarning, "KV cache events are enabled, but publisher is \"null\": nothing is sent");
      } else if (config.publisher == PublisherKind::kZmq) {
        Log(options.log, LogLevel::kWarning,
            "publisher is \"zmq\", but enable_kv_cache_events is false: nothing is sent");
      }
      return std::make_unique<NullEventPublisher>();
    case PublisherKind::kZmq:
      break;
  }
  if (const Status valid = CheckNumbers(config, options); !valid) return tl::unexpected<Error>(valid.error());
  Result<std::unique_ptr<ZmqPublisher>> publisher = ZmqPublisher::Create(config, options);
  if (!publisher) return tl::unexpected<Error>(publisher.error());
  return std::unique_ptr<EventPublisher>(std::move(*publisher));
}

}  // namespace kvwire
