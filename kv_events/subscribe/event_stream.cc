// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/event_stream.h"

#include <algorithm>
#include <utility>

namespace kvwire {

namespace {

constexpr int kSlice = 64;

std::string_view AsText(FrameView frame) { return {reinterpret_cast<const char*>(frame.data()), frame.size()}; }

}  // namespace

std::string_view ToString(GapReason reason) noexcept {
  switch (reason) {
    case GapReason::kNoReplay:
      return "no replay endpoint";
    case GapReason::kNoAnswer:
      return "replay not answered to its end";
    case GapReason::kNotInReplay:
      return "not in the replay";
    case GapReason::kBufferFull:
      return "too many live messages while waiting for the replay";
    case GapReason::kRestarted:
      return "the publisher began anew before the replay was complete";
    case GapReason::kStopped:
      return "stopped before the replay was complete";
  }
  return "unknown";
}

// Invariants:
// - Numbers below tracker_.next() were handed to the sink, as batch, undecodable message or gap, exactly once.
// - While recovering, tracker_.next() <= recover_to_ and waiting_ is not empty; else waiting_ is empty.
// - last_live_ is the message with number tracker_.live(), unless that one waits.

EventStream::EventStream(std::unique_ptr<FrameLink> live, ReplayLinkFactory replay, const EventStreamOptions& options,
                         StreamSink* sink)
    : options_(options), sink_(sink), live_(std::move(live)), tracker_(options.first_sequence) {
  if (replay) replay_.emplace(std::move(replay), options.replay);
}

EventStream::~EventStream() = default;

int EventStream::DoWork(MonotonicNanos now) {
  int work = 0;
  // Live first: what waits there can be lost, the replay cannot.
  for (int i = 0; i < kSlice; ++i) {
    std::optional<InFrames> frames = live_->TryReceive();
    if (!frames) break;
    ++work;
    TakeLive(std::move(*frames), now);
  }
  for (int i = 0; i < kSlice && recovering(); ++i) {
    InFrames frames;
    const ReplayClient::Outcome outcome = replay_->Poll(tracker_.next(), now, &frames);
    if (outcome == ReplayClient::Outcome::kNothing) break;
    ++work;
    switch (outcome) {
      case ReplayClient::Outcome::kNothing:
        break;
      case ReplayClient::Outcome::kMessage:
        TakeReplayed(frames, now);
        break;
      case ReplayClient::Outcome::kEnd:
        EndRecovery(GapReason::kNotInReplay, now);
        break;
      case ReplayClient::Outcome::kFailed:
        EndRecovery(GapReason::kNoAnswer, now);
        break;
    }
  }
  return work;
}

void EventStream::Finish() {
  if (recovering()) EndRecovery(GapReason::kStopped, std::nullopt);
}

EventStreamStats EventStream::stats() const noexcept {
  EventStreamStats stats = stats_;
  if (replay_) {
    stats.replay_attempts = replay_->attempts();
    stats.replay_malformed = replay_->malformed();
  }
  return stats;
}

void EventStream::TakeLive(InFrames frames, MonotonicNanos now) {
  const std::vector<FrameView> views(frames.begin(), frames.end());
  const std::optional<LiveMessage> parsed = ParseLiveMessage(views);
  if (!parsed || parsed->sequence == kEndOfReplay) {
    ++stats_.malformed;
    sink_->OnMalformed(frames.size());
    return;
  }
  ++stats_.live_messages;
  Waiting message;
  message.sequence = parsed->sequence;
  for (const auto& frame : frames) message.bytes += frame.size();
  message.frames = std::move(frames);
  HandleLive(std::move(message), now);
}

void EventStream::HandleLive(Waiting message, MonotonicNanos now) {
  const SequenceNumber number = message.sequence;
  SequenceVerdict verdict = tracker_.Judge(number);
  // The transport repeats nothing: the last number with other content is a new life that had one message so far.
  if (verdict == SequenceVerdict::kDuplicate && tracker_.live() == number && !SameAsLast(message)) {
    verdict = SequenceVerdict::kRestart;
  }
  if (verdict == SequenceVerdict::kRestart) {
    HandleRestart(number);
    verdict = tracker_.Judge(number);
  }
  tracker_.SawLive(number);
  topic_ = AsText(message.frames[0]);
  switch (verdict) {
    case SequenceVerdict::kNext:
      ApplyLive(std::move(message));
      return;
    case SequenceVerdict::kDuplicate:
      ++stats_.duplicates;
      last_live_ = std::move(message.frames);
      return;
    case SequenceVerdict::kGap:
      break;
    case SequenceVerdict::kRestart:
      return;  // a fresh tracker never says so
  }
  if (recovering()) {
    Wait(std::move(message));
  } else if (replay_) {
    StartRecovery(number - 1, now);
    Wait(std::move(message));
  } else {
    GiveUp(number - 1, GapReason::kNoReplay);
    ApplyLive(std::move(message));
  }
}

bool EventStream::SameAsLast(const Waiting& message) const {
  const InFrames& last = waiting_.empty() ? last_live_ : waiting_.back().frames;
  return last.size() == 3 && last[2] == message.frames[2];
}

void EventStream::HandleRestart(SequenceNumber number) {
  ++stats_.restarts;
  const SequenceNumber last = tracker_.live().value_or(0);
  // The new life cannot replay the old one's messages.
  if (recovering()) EndRecovery(GapReason::kRestarted, std::nullopt);
  last_live_.clear();
  tracker_.Reset();
  sink_->OnRestart(last, number);
}

void EventStream::ApplyLive(Waiting message) {
  Apply({message.sequence, AsText(message.frames[0]), message.frames[2], MessageOrigin::kLive});
  last_live_ = std::move(message.frames);
}

void EventStream::Apply(const StreamMessage& message) {
  tracker_.AdvanceTo(message.sequence + 1);
  const auto decoded = DecodeBatch(message.payload, options_.decode);
  if (!decoded) {
    ++stats_.undecodable;
    sink_->OnUndecodable(message, decoded.error());
    return;
  }
  ++stats_.applied;
  if (message.origin == MessageOrigin::kReplay) ++stats_.replayed;
  stats_.rejected_events += decoded->rejected_total;
  sink_->OnBatch(message, *decoded);
}

void EventStream::StartRecovery(SequenceNumber to, MonotonicNanos now) {
  ++stats_.recoveries;
  recover_from_ = tracker_.next();
  recover_to_ = to;
  recovery_lost_some_ = false;
  sink_->OnRecovery(recover_from_, recover_to_);
  replay_->Start(recover_from_, now);
}

void EventStream::Wait(Waiting message) {
  waiting_bytes_ += message.bytes;
  waiting_.push_back(std::move(message));
  if (waiting_.size() > options_.max_waiting_messages || waiting_bytes_ > options_.max_waiting_bytes) {
    EndRecovery(GapReason::kBufferFull, std::nullopt);
  }
}

void EventStream::TakeReplayed(const InFrames& frames, MonotonicNanos now) {
  const std::vector<FrameView> views(frames.begin(), frames.end());
  const std::optional<ReplayMessage> message = ParseReplayMessage(views);
  if (!message || message->sequence < tracker_.next()) return;
  if (message->sequence > tracker_.next()) {
    // The answer is in order: what it left out will never come, whoever asks again.
    GiveUp(std::min(message->sequence - 1, recover_to_), GapReason::kNotInReplay);
  }
  if (message->sequence <= recover_to_) {
    Apply({message->sequence, message->topic ? AsText(*message->topic) : std::string_view(topic_), message->payload,
           MessageOrigin::kReplay});
  }
  if (tracker_.next() > recover_to_) EndRecovery(GapReason::kNotInReplay, now);
}

// Without `now` no further recovery is started: later holes among the waiting messages are given up.
void EventStream::EndRecovery(GapReason reason, std::optional<MonotonicNanos> now) {
  replay_->Stop();
  if (tracker_.next() <= recover_to_) GiveUp(recover_to_, reason);
  if (!recovery_lost_some_) {
    ++stats_.healed;
    sink_->OnHealed(recover_from_, recover_to_);
  }
  while (!waiting_.empty()) {
    const SequenceNumber number = waiting_.front().sequence;
    if (number > tracker_.next()) {
      if (now) {
        StartRecovery(number - 1, *now);
        return;
      }
      GiveUp(number - 1, reason);
    }
    Waiting message = std::move(waiting_.front());
    waiting_.pop_front();
    waiting_bytes_ -= message.bytes;
    ApplyLive(std::move(message));
  }
}

void EventStream::GiveUp(SequenceNumber to, GapReason reason) {
  StreamGap gap;
  gap.from = tracker_.next();
  gap.to = to;
  gap.reason = reason;
  gap.joined_late = !tracker_.started();
  ++stats_.gaps;
  stats_.missing += to - gap.from + 1;
  recovery_lost_some_ = true;
  tracker_.AdvanceTo(to + 1);
  sink_->OnGap(gap);
}

}  // namespace kvwire
