// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/faults/fault_script.h"
#include "engine/serve/rank_life.h"

namespace kvwire::engine {

// A rank: its present life, and what outlasts lives.
//
// Threads: any, but Prepare and Start: the owner.
// Errors: Prepare and Restart as EngineCore::Create and CreateEventPublisher; see Instance::Restart.
class Rank {
 public:
  explicit Rank(RankSurroundings surroundings) : surroundings_(std::move(surroundings)) {}
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // The first life, in two steps.
  Status Prepare();
  void Start();

  // Replaces the life; nothing happens if it is not the one with the number `only`.
  Status Restart(const RestartOptions& options, std::optional<std::uint64_t> only);
  void Stop(std::chrono::milliseconds deadline);
  void SetFaults(const std::shared_ptr<const FaultScript>& script);

  // Used while it lasts: a life that was replaced refuses everything.
  std::shared_ptr<RankLife> life() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return life_;
  }
  bool replacing() const noexcept { return replacing_.load(std::memory_order_relaxed); }

  std::uint32_t index() const noexcept { return surroundings_.index; }
  const FaultCounters& fault_counters() const noexcept { return faults_.counters; }

 private:
  Result<std::shared_ptr<RankLife>> Succeed(const RankLife& old, SequenceNumber first_number);

  const RankSurroundings surroundings_;
  RankFaults faults_;
  std::atomic<bool> replacing_{false};

  std::mutex replace_mutex_;  // held while a life ends
  bool stopped_ = false;      // guarded by replace_mutex_

  mutable std::mutex mutex_;
  std::shared_ptr<RankLife> life_;  // guarded by mutex_
};

}  // namespace kvwire::engine
