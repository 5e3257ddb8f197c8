// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/replay_client.h"

#include <optional>
#include <utility>
#include <vector>

namespace kvwire {

namespace {

// After an attempt that brought nothing.
constexpr MonotonicNanos kFruitlessPause = 200'000'000;

}  // namespace

ReplayClient::ReplayClient(ReplayLinkFactory factory, const ReplayLimits& limits, ReplayGate::Place* place)
    : ask_(std::move(factory)), limits_(limits), place_(place) {}

void ReplayClient::Start(SequenceNumber start) {
  ask_.Stop();
  active_ = true;
  opened_ = false;
  resume_at_.reset();
  start_ = start;
}

void ReplayClient::Stop() noexcept {
  active_ = false;
  ask_.Stop();
}

bool ReplayClient::TryResume(SequenceNumber start, MonotonicNanos now) {
  if (start > attempt_start_) {
    --attempt_;
    Open(start, now);
    return true;
  }
  if (attempt_ >= limits_.max_attempts) return false;
  ask_.Stop();
  resume_at_ = now + attempt_ * kFruitlessPause;
  return true;
}

void ReplayClient::Open(SequenceNumber start, MonotonicNanos now) {
  ++attempt_;
  attempt_start_ = start;
  resume_at_.reset();
  messages_ = 0;
  ++total_attempts_;
  const SequenceFrame frame = EncodeSequence(start);
  ask_.Start({frame.begin(), frame.end()}, limits_.attempt_idle, now);
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
  if (!opened_) {
    if (!place_->Enter()) return Outcome::kNothing;
    opened_ = true;
    attempt_ = 0;
    give_up_at_ = now + limits_.total;
    Open(start_, now);
  }
  if (resume_at_) {
    if (now < *resume_at_) return Outcome::kNothing;
    Open(resume, now);
  }
  std::optional<InFrames> received = ask_.Poll(now);
  if (received) {
    silent_ = false;
  } else {
    silent_ = silent_ || (ask_.Silent(now) && messages_ == 0);
    return ask_.Silent(now) || now >= give_up_at_ ? FailAttempt(resume, now) : Outcome::kNothing;
  }
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
  ++messages_;
  *frames = *std::move(received);
  // An answer that trickles for ever is no answer.
  if (now >= give_up_at_) {
    Stop();
    return Outcome::kFailed;
  }
  return Outcome::kMessage;
}

}  // namespace kvwire
