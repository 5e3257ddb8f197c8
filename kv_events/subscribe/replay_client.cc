// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/replay_client.h"

#include <array>
#include <optional>
#include <utility>
#include <vector>

namespace kvwire {

ReplayClient::ReplayClient(ReplayLinkFactory factory, const ReplayLimits& limits)
    : factory_(std::move(factory)), limits_(limits) {}

void ReplayClient::Start(SequenceNumber start, MonotonicNanos now) {
  active_ = true;
  attempt_ = 0;
  give_up_at_ = now + limits_.total;
  Open(start, now);
}

void ReplayClient::Stop() noexcept {
  active_ = false;
  link_.reset();
}

void ReplayClient::Open(SequenceNumber start, MonotonicNanos now) {
  ++attempt_;
  ++total_attempts_;
  start_ = start;
  sent_ = false;
  idle_until_ = now + limits_.attempt_idle;
  link_.reset();
  link_ = factory_();
  TrySendRequest(now);
}

void ReplayClient::TrySendRequest(MonotonicNanos now) {
  if (!link_ || sent_) return;
  const SequenceFrame start = EncodeSequence(start_);
  const std::array<OutFrame, 2> request{OutFrame::Copy({}), OutFrame::Copy(start)};
  if (link_->TrySend(request) != SendResult::kSent) return;
  sent_ = true;
  idle_until_ = now + limits_.attempt_idle;
}

ReplayClient::Outcome ReplayClient::FailAttempt(SequenceNumber resume, MonotonicNanos now) {
  if (attempt_ >= limits_.max_attempts || now >= give_up_at_) {
    Stop();
    return Outcome::kFailed;
  }
  Open(resume, now);
  return Outcome::kNothing;
}

ReplayClient::Outcome ReplayClient::Poll(SequenceNumber resume, MonotonicNanos now, InFrames* frames) {
  TrySendRequest(now);
  std::optional<InFrames> received;
  if (link_ && sent_) received = link_->TryReceive();
  reached_ = reached_ || received || (link_ && link_->peers().connected > 0);
  if (!received) {
    return now >= idle_until_ || now >= give_up_at_ ? FailAttempt(resume, now) : Outcome::kNothing;
  }
  idle_until_ = now + limits_.attempt_idle;
  const std::vector<FrameView> views(received->begin(), received->end());
  const std::optional<ReplayMessage> message = ParseReplayMessage(views);
  if (!message) {
    ++malformed_;
    return FailAttempt(resume, now);
  }
  if (message->end) {
    Stop();
    return Outcome::kEnd;
  }
  *frames = std::move(*received);
  // An answer that trickles for ever is no answer.
  if (now >= give_up_at_) {
    Stop();
    return Outcome::kFailed;
  }
  return Outcome::kMessage;
}

}  // namespace kvwire
