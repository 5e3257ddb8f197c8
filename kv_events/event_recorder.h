// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv_events/batch.h"
#include "kv_events/clock.h"
#include "kv_events/config.h"
#include "kv_events/digest.h"
#include "kv_events/event_publisher.h"
#include "kv_events/state_source.h"

namespace kvwire {

// The first block on which a walk over an engine's pool and the events recorded so far disagree.
struct Divergence {
  enum class Kind : std::uint8_t {
    kNotAnnounced,  // resident, but the events do not say so
    kNotResident,   // announced, but the walk did not meet it
    kWrongParent,   // resident, but announced under another parent
  };
  Kind kind = Kind::kNotAnnounced;
  BlockHash hash;
  std::uint32_t group = 0;
  std::string medium;
  std::string message;  // names the block, the group, the medium and what differs
};

// How an engine with a block pool of its own tells what its pool does: store, reuse, remove and clear as they happen,
// EndStep once per step. Events of a step leave in one batch, stamped with the wall clock.
//
// With options.track_state the recorder keeps the set it announced, which gives digest() and Audit(), and applies the
// removal rule: under Removals::kExact a hash that was stored n times (each copy, each reuse report) is removed only
// when its last copy goes, and then n times, so that consumers that count and consumers that keep a set both agree with
// the pool at every batch. Under Removals::kPerCopy, and without tracking, what is called is what is published.
//
// Threads: one thread at a time (the engine's step thread); the recorder never calls back into the host.
// Ownership: the publisher outlives the recorder.
// Errors: nothing throws but for lack of memory; a disabled recorder does nothing at all.
class EventRecorder {
 public:
  struct Options {
    bool enabled = true;
    bool track_state = true;
    Removals removals = Removals::kExact;
    const Clock* clock = &SystemClock::Get();
  };

  // REQUIRES: publisher is not null.
  EventRecorder(Options options, EventPublisher* publisher);

  // Blocks became available: `stored` lists them in prefix order. An event without blocks is not recorded. An unset
  // medium means GPU, and GPU is written.
  void Store(const BlockStored& stored);

  // Blocks that were available already are announced again, for consumers that missed the first time. They do not
  // become copies; one that the recorder did not know counts as stored.
  void Reuse(const BlockStored& stored);

  // One physical copy of each listed block is gone; a hash listed twice lost two. A hash that is not held is passed on
  // once, as told.
  void Remove(const BlockRemoved& removed);

  // Every block is gone.
  void Clear();

  // Publishes what was recorded since the last call, if anything was. Also the flush after a change outside a step.
  // The result is the publisher's; kAccepted when there was nothing to publish.
  PublishResult EndStep();

  // Events recorded and not yet published.
  const KVEventBatch& pending() const noexcept { return pending_; }

  // Summary of what was announced and has a copy left, pending events included. Empty without track_state.
  const StateDigest& digest() const noexcept { return digest_; }

  // Compares the set announced so far with the engine's own walk; nothing when they agree, or when disabled. Takes time
  // and memory in proportion to the blocks. "First" is by group, medium and hash, whatever the order of the walk.
  // REQUIRES: options.track_state.
  std::optional<Divergence> Audit(const StateSource& walk) const;

 private:
  struct Held {
    std::uint32_t copies = 0;     // stores minus removals
    std::uint32_t announced = 0;  // stores plus reuse reports since the block was last absent
    std::optional<BlockHash> parent;
  };
  // The blocks of one tier of one group.
  using Shelf = std::unordered_map<BlockHash, Held>;
  using ShelfKey = std::pair<std::uint32_t, std::string>;  // the medium is canonical

  // A removal that is still to be announced `times` times.
  struct Leaving {
    BlockHash hash;
    std::uint32_t times = 0;
  };

  enum class Cause : std::uint8_t { kStore, kReuse };
  void Record(const BlockStored& stored, Cause cause);
  void TakeCopies(const BlockRemoved& removed, std::string_view medium);
  void AddRemovals(BlockRemoved removed);
  Shelf& ShelfOf(const std::optional<std::uint32_t>& group, std::string_view medium);

  const Options options_;
  EventPublisher* const publisher_;
  KVEventBatch pending_;
  StateDigest digest_;
  std::map<ShelfKey, Shelf> shelves_;  // few
  // Scratch of Remove(), kept for its memory.
  std::vector<Leaving> leaving_;
  std::vector<BlockHash> round_;
};

}  // namespace kvwire
