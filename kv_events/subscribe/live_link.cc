// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/live_link.h"

#include <algorithm>

namespace kvwire {

void LiveLink::DoWork(MonotonicNanos now) {
  if (!factory_) return;
  const bool in_vain = link_ && patience_ > 0 && now - made_at_ >= patience_ && link_->peers().connected == 0;
  if (link_ && (over_ || in_vain)) End(now);
  if (link_ || now < next_at_) return;
  link_ = factory_();
  made_at_ = now;
  over_ = received_ = false;
  if (!link_) End(now);
}

std::optional<InFrames> LiveLink::TryReceive() {
  if (!link_ || over_) return std::nullopt;
  if (!factory_) return link_->TryReceive();
  // What the end left is there once the end was counted, and a connection is counted before its messages are there.
  const bool ended = link_->peers().disconnected > 0;
  std::optional<InFrames> frames = link_->TryReceive();
  over_ = (ended && !frames) || link_->peers().connected > 1;
  if (over_) return std::nullopt;
  received_ = received_ || frames;
  return frames;
}

PeerCounts LiveLink::peers() noexcept {
  PeerCounts all = ended_;
  if (!link_) return all;
  const PeerCounts present = link_->peers();
  if (!factory_) return present;
  all.connected += std::min<std::uint64_t>(present.connected, 1);
  all.disconnected += std::min<std::uint64_t>(present.disconnected, 1);
  return all;
}

void LiveLink::Renew(MonotonicNanos now) {
  if (factory_ && link_) End(now);
}

void LiveLink::End(MonotonicNanos now) noexcept {
  const PeerCounts last = peers();
  ended_ = {last.connected, last.connected, 0};
  link_.reset();
  pause_ = received_ ? kFirstPause : pause_;
  next_at_ = received_ ? now : now + pause_;
  if (!received_) pause_ = std::min(2 * pause_, kLongestPause);
  received_ = false;
}

}  // namespace kvwire
