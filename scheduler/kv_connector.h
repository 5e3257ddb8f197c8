// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kv_events/announced_state.h"
#include "kv_events/batch.h"
#include "kv_events/events.h"
#include "scheduler/block_pool.h"
#include "scheduler/scheduler_output.h"

namespace kvwire::scheduler {

// What lies below the device, in the order in which lookups go on.
enum class Tier : std::uint8_t { kHost, kDisk };
inline constexpr std::size_t kNumTiers = 2;

struct TierTraits {
  std::string_view medium;  // of its events
  std::string_view option;  // how many blocks it has
};
inline constexpr std::array<TierTraits, kNumTiers> kTierTraits{
    {{kMediumCpu, "host_blocks"}, {kMediumDisk, "disk_blocks"}}};
constexpr const TierTraits& TraitsOf(Tier tier) noexcept { return kTierTraits[static_cast<std::size_t>(tier)]; }

// What becomes of the lower tiers when the prefix cache is reset.
enum class TierReset : std::uint8_t {
  kClear,  // they are emptied as well
  kKeep,   // they stay, and are announced again behind AllBlocksCleared, which took them back
};

// Counters of a tier since the start, in blocks.
struct KVConnectorStats {
  std::uint64_t stored = 0;            // became resident
  std::uint64_t removed = 0;           // were resident and made room, or could not be loaded
  std::uint64_t loaded = 0;            // loads that began
  std::uint64_t failed_stores = 0;     // given up because a worker failed
  std::uint64_t cancelled_stores = 0;  // given up because the device block was needed, or at a reset
  std::uint64_t resident = 0;          // now
};

// The seam between the scheduler and the lower tiers of its blocks: where lookups go on, where the next victims of the
// device are copied to, and what is announced of that. Its walks cover what it has announced; its digest is that of the
// whole stream.
//
// A step: lookups and Pin() during Schedule(), PlanStores() at its end, OnWorkerOutput(), Drop() and Unpin() when its
// output is known, TakeEvents() behind these.
//
// Threads: the step thread.
class KVConnector : public AnnouncedState {
 public:
  // The resident block of this hash in the first tier that has it, or kNoHostBlock. What is announced is found.
  virtual HostBlockId FindBlock(const BlockHash& hash, std::uint32_t group) const = 0;

  // Where the block is. REQUIRES: it is one.
  virtual Tier TierOf(HostBlockId block) const = 0;

  // Whether the stream says that the block is there. REQUIRES: it is resident.
  virtual bool IsAnnounced(HostBlockId block) const = 0;

  // The block is being loaded and stays as it is until it is unpinned as often.
  virtual void Pin(HostBlockId block) = 0;
  virtual void Unpin(HostBlockId block) = 0;

  // The block could not be loaded: it is resident no more. Nothing if it is not resident.
  virtual void Drop(HostBlockId block) = 0;

  // Appends copies of blocks that the device would evict next. Their device blocks are held until the copies end.
  virtual void PlanStores(BlockPool* pool, std::vector<StoreBlock>* stores) = 0;

  // Gives up a late store; its device block is free again at once, unless another tier stores it too. False if there is
  // none.
  virtual bool CancelStore(BlockPool* pool) = 0;

  // Stores that hold their device blocks.
  virtual std::size_t num_storing() const noexcept = 0;

  // Unknown jobs and workers, and what a worker repeats, are passed over.
  virtual void OnWorkerOutput(std::span<const StoreResult> results, BlockPool* pool) = 0;

  // The events since the last call; valid until the next one.
  virtual const KVEventBatch& TakeEvents() = 0;

  // The pool was reset and has recorded AllBlocksCleared. REQUIRES: num_storing() is 0.
  virtual void Reset(TierReset policy) = 0;

  // Zeros for a tier that there is not.
  virtual KVConnectorStats stats(Tier tier) const noexcept = 0;
};

}  // namespace kvwire::scheduler
