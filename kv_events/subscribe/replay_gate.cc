// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/replay_gate.h"

#include <utility>

namespace kvwire {

const std::shared_ptr<ReplayGate>& ReplayGate::Shared() {
  static const std::shared_ptr<ReplayGate> gate = std::make_shared<ReplayGate>();
  return gate;
}

bool ReplayGate::Place::Enter() {
  if (!gate_) return true;
  used_ = true;
  const std::lock_guard lock(gate_->mutex_);
  if (standing_ == Standing::kOutside) {
    standing_ = Standing::kQueued;
    gate_->queue_.push_back(this);
    gate_->Admit();
  }
  return standing_ == Standing::kInside;
}

void ReplayGate::Place::Leave() noexcept {
  if (!gate_ || !std::exchange(used_, false)) return;
  const std::lock_guard lock(gate_->mutex_);
  if (standing_ == Standing::kQueued) std::erase(gate_->queue_, this);
  if (standing_ == Standing::kInside) --gate_->inside_;
  standing_ = Standing::kOutside;
  gate_->Admit();
}

void ReplayGate::Admit() {
  for (; inside_ < capacity_ && !queue_.empty(); queue_.pop_front(), ++inside_) {
    queue_.front()->standing_ = Place::Standing::kInside;
  }
}

std::size_t ReplayGate::inside() const {
  const std::lock_guard lock(mutex_);
  return inside_;
}

std::size_t ReplayGate::queued() const {
  const std::lock_guard lock(mutex_);
  return queue_.size();
}

}  // namespace kvwire
