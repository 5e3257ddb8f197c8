// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/dealer_ask.h"

#include <array>
#include <utility>

namespace kvwire {

void DealerAsk::Start(std::vector<std::uint8_t> body, MonotonicNanos idle, MonotonicNanos now) {
  body_ = std::move(body);
  idle_ = idle;
  idle_until_ = now + idle;
  active_ = true;
  sent_ = false;
  link_.reset();
  next_try_ = now;
  TrySend(now);
}

void DealerAsk::Stop() noexcept {
  active_ = false;
  link_.reset();
}

void DealerAsk::TrySend(MonotonicNanos now) {
  constexpr MonotonicNanos kPause = 50'000'000;
  if (!link_ && active_ && now >= next_try_) {
    next_try_ = now + kPause;
    link_ = factory_();
  }
  if (!link_ || sent_) return;
  const std::array<OutFrame, 2> request{OutFrame::Copy({}), OutFrame::Copy(body_)};
  if (link_->TrySend(request) != SendResult::kSent) return;
  sent_ = true;
  idle_until_ = now + idle_;
}

std::optional<InFrames> DealerAsk::Poll(MonotonicNanos now) {
  TrySend(now);
  std::optional<InFrames> received;
  if (link_ && sent_) received = link_->TryReceive();
  reached_ = reached_ || received || (link_ && link_->peers().connected > 0);
  if (received) idle_until_ = now + idle_;
  return received;
}

}  // namespace kvwire
