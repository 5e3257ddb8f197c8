// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kv_events/digest.h"
#include "kv_events/events.h"
#include "kv_events/state_source.h"

namespace kvwire {

// What a walk is for.
enum class WalkKind : std::uint8_t {
  kSnapshot,  // a copy: every block that is announced
  kRenew,     // after BeginEra: every block that was announced in an earlier era only; it is announced by the visit
};

// A block of a walk: an event of one block, and how many announcements of it (removals that will take it away) it
// stands for. Views are valid only during the call.
using WalkVisitor = std::function<void(const BlockStored& block, std::uint32_t announcements)>;

// A state source that knows which of its blocks the stream has announced, and can begin again.
//
// Announcements count within an *era*. BeginEra takes all of them back, as an AllBlocksCleared does at the consumers;
// from then on a block's removal is recorded only if the block was announced in the new era. A block that was announced
// before stays resident and is announced again by the renewing walk, unless an event of the new era did so earlier. A
// store behind such a block may be left to the walk as well.
//
// Threads: the thread that owns the blocks, between two steps. Walks go on over many steps while blocks come and go:
//   what was announced when the walk began and is still there at its end was visited, once; what came since may be.
// Bounds: one walk of each kind at a time; WalkSome takes time in proportion to max_blocks.
// Order: a block's parent, if it is to be visited, before the block. One whose parent is gone may stand anywhere.
class AnnouncedState : public StateSource {
 public:
  // Of all blocks announced in this era; what is recorded but not yet published counts.
  virtual const StateDigest& digest() const = 0;

  virtual void BeginEra() = 0;

  // Gives up a walk of the same kind that is under way.
  virtual void BeginWalk(WalkKind kind) = 0;

  // Visits up to max_blocks more. False when the walk is over, and without one.
  virtual bool WalkSome(WalkKind kind, std::size_t max_blocks, const WalkVisitor& visit) = 0;
};

}  // namespace kvwire
