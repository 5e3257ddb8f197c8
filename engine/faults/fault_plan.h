// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "engine/faults/fault_script.h"
#include "kv_events/publish/counter.h"

namespace kvwire::engine {

// How often each kind happened. Threads: each kind is counted by one thread at a time; read by any.
class FaultCounters {
 public:
  void Count(FaultKind kind) noexcept { counters_[static_cast<std::size_t>(kind)].Add(1); }
  std::uint64_t Of(FaultKind kind) const noexcept { return counters_[static_cast<std::size_t>(kind)].value(); }

 private:
  std::array<Counter, kNumFaultKinds> counters_;
};

// The part of a script that one place carries out for one stream, and what of it is used up.
//
// A fault with a probability happens with a batch if a hash of the seed, the fault's index in the script and the number
// says so; nothing is drawn, so what else happens, and when, changes nothing.
//
// Threads: Set by any; the rest by the thread that carries the faults out, wait-free.
class FaultPlan {
 public:
  using Due = std::span<const Fault* const>;

  explicit FaultPlan(FaultPlace place) : place_(place) {}
  FaultPlan(const FaultPlan&) = delete;
  FaultPlan& operator=(const FaultPlan&) = delete;

  // In force from the next number that is asked for; all counts begin anew. null: no faults.
  // REQUIRES: script->Check() says yes.
  void Set(std::shared_ptr<const FaultScript> script);

  // The faults that happen with this batch, in the script's order; valid until the next call. Asked again for the same
  // number, the answer is the same and uses nothing up.
  Due Decide(SequenceNumber number) noexcept;

  // Only those whose `at` is the number: for batches that faults made, so that no fault causes itself without end.
  Due DecideAt(SequenceNumber number) noexcept;

  // The stream begins anew: a number that was the last one before may come again.
  void BeginLife() noexcept { last_.reset(); }

 private:
  struct Entry {
    const Fault* fault = nullptr;
    std::uint64_t index = 0;  // in the script
    std::uint64_t left = 0;   // times it may still happen
  };
  struct Loaded {
    std::shared_ptr<const FaultScript> script;
    std::vector<Entry> entries;
    std::vector<const Fault*> due;  // has room for all entries
  };

  void Refresh() noexcept;
  bool Happens(const Entry& entry, SequenceNumber number) const noexcept;

  const FaultPlace place_;
  std::atomic<bool> changed_{false};
  std::mutex mutex_;
  std::unique_ptr<Loaded> next_;  // guarded by mutex_

  // Of the executing thread.
  std::unique_ptr<Loaded> current_;
  std::optional<SequenceNumber> last_;  // that current_->due was decided for
};

}  // namespace kvwire::engine
