// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/publish/publisher_agent.h"
#include "kv_events/wire/extensions.h"
#include "tests/support/manual_clock.h"
#include "tests/support/state_producer.h"
#include "tests/support/stream_support.h"

namespace kvwire::test {

using AdjustOptions = std::function<void(PublisherAgent::Options*)>;

// A publisher in memory whose clock and whose walks the test drives.
struct SnapshotBench {
  explicit SnapshotBench(const AdjustOptions& adjust = {}, const AgentSettings& base = {})
      : publisher(Settings(adjust, base), rig.publish(), rig.replay()) {}

  AgentSettings Settings(const AdjustOptions& adjust, AgentSettings settings) {
    settings.adjust = [this, adjust](PublisherAgent::Options* options) {
      options->clock = &clock;
      options->epoch = 77;
      options->data_parallel_rank = 3;
      options->encode = [this, encode = options->encode](const KVEventBatch& batch, std::vector<std::uint8_t>* out) {
        if (failing) throw std::runtime_error("planted");
        ++encoded;
        encode(batch, out);
      };
      if (adjust) adjust(options);
    };
    return settings;
  }
  void Pass(std::chrono::nanoseconds time) {
    clock.Advance(time);
    publisher.now = clock.Now();
    publisher.Drain();
  }
  void Publish(KVEventBatch batch) {
    REQUIRE(publisher.Publish(std::move(batch)) == PublishResult::kAccepted);
    publisher.Drain();
  }
  // Hands over as much of the walk as is wanted and allowed, `blocks` at a time; how many chunks that were.
  std::size_t Walk(StateProducer* pool, std::size_t blocks) {
    std::size_t handed = 0;
    while (true) {
      const StateWants wants = publisher.agent.wants();
      if (!pool->walking() && wants.walks > walks_done) pool->BeginWalk(++walks_done);
      if (!pool->walking() || chunks >= wants.chunks) return handed;
      REQUIRE(publisher.PublishChunk(pool->NextChunk(blocks)) == PublishResult::kAccepted);
      ++chunks;
      ++handed;
      publisher.Drain();
    }
  }
  std::vector<Told> Read(FrameLink* dealer) {
    std::vector<Told> told;
    while (std::optional<Told> message = ReceiveTold(dealer)) told.push_back(std::move(*message));
    return told;
  }
  std::vector<Told> Request(FrameLink* dealer, const ExtensionRequest& request) {
    Ask(dealer, request);
    publisher.Drain();
    return Read(dealer);
  }
  PublisherStats stats() const { return publisher.agent.stats(); }

  ManualClock clock;
  MemoryRig rig;
  bool failing = false;
  std::size_t encoded = 0;
  std::uint64_t walks_done = 0;
  std::uint64_t chunks = 0;
  DrivenPublisher publisher;
};

inline bool EndsOnly(const std::vector<Told>& told) { return told.size() == 1 && told[0].end; }

// What the chunks of an answer store.
inline std::set<std::uint64_t> Union(const std::vector<Told>& told) {
  std::set<std::uint64_t> held;
  for (const Told& message : told) {
    if (message.name == kChunkName) ApplyEvents(message.payload, &held);
  }
  return held;
}

}  // namespace kvwire::test
