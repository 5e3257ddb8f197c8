// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "scheduler/tiered_connector.h"
#include "tests/unit/engine/model_support.h"

// Engine, scheduler and a runner with memory together under random load: what the stream says is compared with the
// words in the blocks.
namespace kvwire::engine {

// The lower tiers of a check; without blocks there are none.
struct Tiers {
  std::uint32_t host_blocks = 0;
  std::uint32_t num_workers = 1;
  std::uint32_t failed_store_percent = 0;
  std::uint32_t failed_load_percent = 0;
  scheduler::TierReset reset = scheduler::TierReset::kClear;
  std::uint32_t disk_blocks = 0;

  bool any() const { return host_blocks + disk_blocks > 0; }
};

// How the pool registers and removes blocks.
struct PoolRules {
  bool partial_blocks = false;
  Removals removals = Removals::kExact;
  // Of the batches so many percent find the queue full, and snapshots are asked for now and then.
  int lost_percent = 0;
};

enum class Fault {
  kNone,
  kEarlyEvent,
  kStolenBlock,
  kWrongParent,
  kMissingRemoval,
  kHiddenStoreFailure,
  kHiddenLoadFailure
};

// Runs the load in pools of several sizes and requires that nothing is wrong and that it reached what it is for.
void RequireSound(int steps_per_pool, const Groups& groups = kDense, std::uint32_t num_speculative_tokens = 0,
                  const Tiers& tiers = {}, const PoolRules& rules = {});

// Plants the fault into loads that were sound so far, and requires that it is noticed within the next steps.
void RequireCaught(Fault fault);
// The same for faults of the workers, which say nothing of their failures.
void RequireCaught(Fault fault, const Tiers& tiers);

}  // namespace kvwire::engine
