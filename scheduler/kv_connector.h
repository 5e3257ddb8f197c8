// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv_events/batch.h"
#include "kv_events/state_source.h"
#include "scheduler/block_pool.h"
#include "scheduler/scheduler_output.h"

namespace kvwire::scheduler {

// What becomes of a lower tier when the prefix cache is reset.
enum class HostReset : std::uint8_t {
  kClear,  // it is emptied as well
  kKeep,   // it stays, and is announced again behind AllBlocksCleared, which took it back
};

// Counters since the start, in blocks.
struct KVConnectorStats {
  std::uint64_t stored = 0;            // became resident
  std::uint64_t removed = 0;           // were resident and made room, or could not be loaded
  std::uint64_t loaded = 0;            // loads that began
  std::uint64_t failed_stores = 0;     // given up because a worker failed
  std::uint64_t cancelled_stores = 0;  // given up because the device block was needed, or at a reset
};

// The seam between the scheduler and a lower tier of its blocks: where lookups go on, where the next victims of the
// device are copied to, and what is announced of that. Its Walk covers what it has announced.
//
// A step: lookups and Pin() during Schedule(), PlanStores() at its end, OnWorkerOutput(), Drop() and Unpin() when its
// output is known, TakeEvents() behind these.
//
// Threads: the step thread.
class KVConnector : public StateSource {
 public:
  // The resident block of this hash, or kNoHostBlock. What is announced is found.
  virtual HostBlockId FindBlock(const BlockHash& hash, std::uint32_t group) const = 0;

  // The block is being loaded and stays as it is until it is unpinned as often.
  virtual void Pin(HostBlockId block) = 0;
  virtual void Unpin(HostBlockId block) = 0;

  // The block could not be loaded: it is resident no more. Nothing if it is not resident.
  virtual void Drop(HostBlockId block) = 0;

  // Appends copies of blocks that the device would evict next. Their device blocks are held until the copies end.
  virtual void PlanStores(BlockPool* pool, std::vector<StoreBlock>* stores) = 0;

  // Gives up the store that was planned last; its device block is free again at once. False if there is none.
  virtual bool CancelStore(BlockPool* pool) = 0;

  // Stores whose device blocks are held.
  virtual std::size_t num_storing() const noexcept = 0;

  // Unknown jobs and workers, and what a worker repeats, are passed over.
  virtual void OnWorkerOutput(std::span<const StoreResult> results, BlockPool* pool) = 0;

  // The events since the last call; valid until the next one.
  virtual const KVEventBatch& TakeEvents() = 0;

  // The pool was reset and has recorded AllBlocksCleared. REQUIRES: num_storing() is 0.
  virtual void Reset(HostReset policy) = 0;

  virtual KVConnectorStats stats() const noexcept = 0;
};

}  // namespace kvwire::scheduler
