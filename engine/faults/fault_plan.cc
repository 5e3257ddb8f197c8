// SPDX-License-Identifier: Apache-2.0
#include "engine/faults/fault_plan.h"

#include <limits>
#include <utility>

namespace kvwire::engine {

namespace {

// A bijection whose output bits all depend on all input bits.
std::uint64_t Mix(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// 0 or more, below 1; evenly spread.
double Chance(std::uint64_t seed, std::uint64_t index, SequenceNumber number) noexcept {
  const std::uint64_t hash = Mix(Mix(Mix(seed) ^ index) ^ number);
  return static_cast<double>(hash >> 11) * 0x1p-53;
}

}  // namespace

void FaultPlan::Set(std::shared_ptr<const FaultScript> script) {
  std::unique_ptr<Loaded> loaded;
  if (script != nullptr) {
    loaded = std::make_unique<Loaded>();
    for (std::size_t i = 0; i < script->faults.size(); ++i) {
      const Fault& fault = script->faults[i];
      if (PlaceOf(fault.kind) != place_) continue;
      constexpr std::uint64_t kAlways = std::numeric_limits<std::uint64_t>::max();
      loaded->entries.push_back(Entry{&fault, i, fault.at ? 1 : fault.count.value_or(kAlways)});
    }
    loaded->due.reserve(loaded->entries.size());
    loaded->script = std::move(script);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  next_ = std::move(loaded);
  changed_.store(true, std::memory_order_release);
}

// Takes over what was set. While somebody is setting, the old script stays in force for one more number; what is no
// longer needed is freed by the next Set.
void FaultPlan::Refresh() noexcept {
  if (!changed_.load(std::memory_order_acquire)) return;
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  std::swap(current_, next_);
  last_.reset();
  changed_.store(false, std::memory_order_relaxed);
}

bool FaultPlan::Happens(const Entry& entry, SequenceNumber number) const noexcept {
  const Fault& fault = *entry.fault;
  if (entry.left == 0) return false;
  if (fault.at) return *fault.at == number;
  if (fault.every) return number % *fault.every == 0;
  return Chance(current_->script->seed, entry.index, number) < *fault.probability;
}

FaultPlan::Due FaultPlan::Decide(SequenceNumber number) noexcept {
  if (current_ != nullptr && last_ == number) return current_->due;
  Refresh();
  if (current_ == nullptr) return {};
  last_ = number;
  current_->due.clear();
  for (Entry& entry : current_->entries) {
    if (!Happens(entry, number)) continue;
    --entry.left;
    current_->due.push_back(entry.fault);
  }
  return current_->due;
}

FaultPlan::Due FaultPlan::DecideAt(SequenceNumber number) noexcept {
  Refresh();
  if (current_ == nullptr) return {};
  last_.reset();
  current_->due.clear();
  for (Entry& entry : current_->entries) {
    if (!entry.fault->at || !Happens(entry, number)) continue;
    --entry.left;
    current_->due.push_back(entry.fault);
  }
  return current_->due;
}

}  // namespace kvwire::engine
