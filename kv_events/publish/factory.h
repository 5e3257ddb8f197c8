// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "kv_events/clock.h"
#include "kv_events/config.h"
#include "kv_events/error.h"
#include "kv_events/event_publisher.h"
#include "kv_events/log.h"
#include "kv_events/publish/publish_runner.h"
#include "kv_events/transport/frame_link.h"
#include "kv_events/transport/zmq_context.h"
#include "kv_events/wire/frames.h"

namespace kvwire {

// What a publisher takes over from an earlier one of the same rank that was closed.
struct PublisherSuccession {
  std::optional<EventSourceInfo> source;  // binds at these addresses, where the configuration leaves the port open
  SequenceNumber first_number = 0;        // instead of kvwire.first_seq; below 2^63
};

// What a publisher needs besides its configuration.
struct PublisherOptions {
  std::int64_t data_parallel_rank = 0;  // global rank: its ports are base + rank
  std::int64_t dp_size = 1;
  // The host calls Wake() after each step; otherwise the publisher looks for work every 200 microseconds.
  bool host_wakes = false;
  // The host's thread that does the publisher's work; null: a thread of its own. Outlives the publisher. Implies
  // host_wakes.
  PublishRunner* runner = nullptr;
  std::shared_ptr<ZmqContext> context;  // null: the process-wide one
  std::optional<PublisherSuccession> succession;
  // state_wants() has changed: the step thread is to look, also when it has no step to do. Called by the publishing
  // thread; must not block. May be empty.
  std::function<void()> on_state_wanted;

  // For publishers that misbehave on purpose. Each may be empty.
  // Makes a link that stands before the publishing socket, which outlives it. Called once; the result is used and
  // destroyed by the publishing thread.
  std::function<std::unique_ptr<FrameLink>(FrameLink* socket)> decorate_publish;
  // PublishQueue::Options::refuse.
  std::function<bool(SequenceNumber)> refuse_batch;

  LogSink log;
  const Clock* clock = &SystemClock::Get();
};

// Makes the publisher that the configuration asks for: null unless events are enabled, ZeroMQ otherwise. Everything is
// validated and bound before it returns; a ZeroMQ publisher has started its thread, or was added to its runner.
// Errors: kInvalidArgument, kAddressInUse, kUnavailable; nothing is left open.
Result<std::unique_ptr<EventPublisher>> CreateEventPublisher(const KVEventsConfig& config,
                                                             const PublisherOptions& options);

}  // namespace kvwire
