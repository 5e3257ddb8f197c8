// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/event_stream.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

namespace kvwire {

namespace {

constexpr int kSlice = 64;

std::string_view AsText(FrameView frame) { return {reinterpret_cast<const char*>(frame.data()), frame.size()}; }

std::uint64_t ContentOf(FrameView payload) { return std::hash<std::string_view>()(AsText(payload)); }

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

std::string_view ToString(Continuity continuity) noexcept {
  switch (continuity) {
    case Continuity::kInterrupted:
      return "the connection to the publisher ended";
    case Continuity::kConfirmed:
      return "the publisher confirms that nothing else can be had";
    case Continuity::kUnconfirmed:
      return "the publisher does not confirm that this is all it published";
    case Continuity::kForgotten:
      return "nobody could say whether the publisher is still the same";
    case Continuity::kSeveral:
      return "several publishers feed this stream";
  }
  return "unknown";
}

// Invariants:
// - Numbers below tracker_.next() were handed to the sink, as batch, undecodable message, other topic's or gap, exactly
//   once.
// - waiting_ is empty unless a replay runs with an end, and then tracker_.next() <= recover_to_ < waiting_.front().
// - held_ is empty unless interrupted_; what may be of either life is only there.
// - A question of an interrupted stream runs only after live_ was once empty with the new connection: what is read
//   while it runs is not of an earlier one.
// - last_live_ is the message with number tracker_.live(), unless that one waits.

EventStream::EventStream(std::unique_ptr<FrameLink> live, ReplayLinkFactory replay, const EventStreamOptions& options,
                         StreamSink* sink)
    : options_(options), sink_(sink), live_(std::move(live)), tracker_(options.first_sequence) {
  if (replay) replay_.emplace(std::move(replay), options.replay);
}

EventStream::~EventStream() = default;

int EventStream::DoWork(MonotonicNanos now) {
  now_ = now;
  int work = 0;
  LookAtPeers();
  // Live first: what waits there can be lost, the replay cannot.
  while (work < kSlice && TakeLive()) ++work;
  // With nothing left to read, what comes from now on was sent after the last change of the connection: after an
  // interruption nothing older may be taken for new.
  const bool drained = work < kSlice;
  if (drained) NoteDrained();
  if (question_due_ && (drained || !(interrupted_ || unread_end_)) && !replay_->active()) {
    question_due_ = false;
    if (!Away()) Ask();  // else the sink knows of the interruption
    ++work;
  }
  for (int i = 0; i < kSlice && replay_ && replay_->active(); ++i) {
    InFrames frames;
    const SequenceNumber resume = life_asked_ ? life_asked_->sequence : tracker_.next();
    const ReplayClient::Outcome outcome = replay_->Poll(resume, now, &frames);
    if (outcome == ReplayClient::Outcome::kNothing) break;
    ++work;
    // Whoever answered may be the publisher that came after the connection's end.
    if (LookAtPeers()) break;
    if (outcome == ReplayClient::Outcome::kMessage) {
      TakeReplayed(frames);
    } else if (asking_) {
      EndQuestion(outcome);
    } else {
      EndRecovery(outcome == ReplayClient::Outcome::kEnd ? GapReason::kNotInReplay : GapReason::kNoAnswer);
    }
  }
  return work;
}

void EventStream::Finish() {
  stopping_ = true;
  const bool never_asked = std::exchange(question_due_, false) && !Away();
  if (never_asked && !asking_) sink_->OnContinuity(Continuity::kUnconfirmed);
  if (asking_) {
    EndQuestion(ReplayClient::Outcome::kFailed);
  } else if (replay_ && replay_->active()) {
    EndRecovery(GapReason::kStopped);
  }
  if (interrupted_) {
    KeepHeld(HeldOf::kApplied);
    interrupted_ = reconnected_ = false;
    JudgeHeld();
  }
}

EventStreamStats EventStream::stats() const noexcept {
  EventStreamStats stats = stats_;
  if (replay_) {
    stats.replay_attempts = replay_->attempts();
    stats.replay_malformed = replay_->malformed();
  }
  return stats;
}

StreamStatus EventStream::status() const noexcept {
  if (recovering()) return {StreamState::kRecovering, "a replay is under way"};
  if (Away()) return {StreamState::kSuspect, "the connection to the publisher ended"};
  if (!tracker_.started()) return {StreamState::kConnecting, "nothing received yet"};
  if (stats_.gaps > 0) return {StreamState::kUnsynchronised, "messages are missing"};
  return {StreamState::kSynchronised, "every number was applied"};
}

// Whether a connection ended since the last look.
bool EventStream::LookAtPeers() {
  const PeerCounts before = std::exchange(peers_, live_->peers());
  if (peers_ == before) return false;
  const bool ended = peers_.disconnected > before.disconnected;
  if (ended) Interrupt();
  // Who is there after an end may be another one, also when it came before the end was noticed.
  if (peers_.connected > before.connected || (ended && peers_.present() > 0)) {
    reconnected_ = replay_ && (interrupted_ || unread_end_);
    question_due_ = replay_.has_value();
  }
  if (peers_.present() > 1 && before.present() <= 1) sink_->OnContinuity(Continuity::kSeveral);
  return ended;
}

void EventStream::Interrupt() {
  // There is nothing that could be void, unless the connection left something to read.
  const bool fresh = !interrupted_ && !tracker_.started() && waiting_.empty();
  unread_end_ = fresh;
  if (!fresh || stats_.applied > 0) sink_->OnContinuity(Continuity::kInterrupted);
  if (!replay_) return;
  interrupted_ = !fresh;
  // The rest of a running answer may come from another life.
  replay_->Stop();
  asking_ = false;
  life_asked_.reset();
  recover_to_.reset();
  for (Waiting& held : held_) {
    if (held.of == HeldOf::kConnected) held.of = HeldOf::kEither;
  }
  std::move(held_.begin(), held_.end(), std::back_inserter(waiting_));
  held_ = std::exchange(waiting_, {});
  tracker_.RewindLive(last_live_ ? std::optional(last_live_->sequence) : std::nullopt);
}

// The ended connection left a message, or the next one brought it.
void EventStream::TakeUnreadEnd() {
  unread_end_ = false;
  if (stats_.applied == 0) sink_->OnContinuity(Continuity::kInterrupted);
  interrupted_ = replay_.has_value();
}

// All that an ended connection left was read.
void EventStream::NoteDrained() {
  if (std::exchange(unread_end_, false)) reconnected_ = false;
  if (!reconnected_ || last_applied_) return;
  // There is nothing to know a life by.
  if (!held_.empty()) Forget();
  BeginWithConnected();
}

// False when nothing was there.
bool EventStream::TakeLive() {
  std::optional<InFrames> frames = live_->TryReceive();
  if (!frames) return false;
  // A connection is counted before its messages can be read: this look tells whether the message may be a new one's.
  LookAtPeers();
  const std::vector<FrameView> views(frames->begin(), frames->end());
  const std::optional<LiveMessage> parsed = ParseLiveMessage(views);
  if (!parsed || parsed->sequence == kEndOfReplay) {
    ++stats_.malformed;
    sink_->OnMalformed(frames->size());
    return true;
  }
  ++stats_.live_messages;
  Waiting message;
  message.sequence = parsed->sequence;
  for (const auto& frame : *frames) message.bytes += frame.size();
  message.frames = std::move(*frames);
  if (unread_end_) TakeUnreadEnd();
  if (reconnected_) {
    Hold(std::move(message));
  } else {
    HandleLive(std::move(message));
  }
  return true;
}

void EventStream::HandleLive(Waiting message) {
  const SequenceNumber number = message.sequence;
  SequenceVerdict verdict = tracker_.Judge(number);
  // The transport repeats nothing: the last number with other content is a new life that had one message so far.
  if (verdict == SequenceVerdict::kDuplicate && tracker_.live() == number && !SameAsLast(message)) {
    verdict = SequenceVerdict::kRestart;
  }
  if (verdict == SequenceVerdict::kRestart) {
    // The new life cannot replay the old one's messages.
    if (replay_ && replay_->active()) EndRecovery(GapReason::kRestarted);
    Restart(number);
    verdict = tracker_.Judge(number);
  }
  if (verdict == SequenceVerdict::kGap && interrupted_ && !stopping_) {
    Hold(std::move(message));
    return;
  }
  tracker_.SawLive(number);
  topic_ = AsText(message.frames[0]);
  switch (verdict) {
    case SequenceVerdict::kNext:
      ApplyLive(std::move(message));
      return;
    case SequenceVerdict::kDuplicate:
      ++stats_.duplicates;
      last_live_ = std::move(message);
      return;
    case SequenceVerdict::kGap:
      break;
    case SequenceVerdict::kRestart:
      return;  // a fresh tracker never says so
  }
  if (!replay_ || stopping_) {
    GiveUp(number - 1, replay_ ? GapReason::kStopped : GapReason::kNoReplay);
    ApplyLive(std::move(message));
    return;
  }
  if (!recover_to_) StartRecovery(number - 1);
  Wait(std::move(message));
}

bool EventStream::SameAsLast(const Waiting& message) const {
  if (!waiting_.empty()) return waiting_.back().frames[2] == message.frames[2];
  return last_live_ && last_live_->frames[2] == message.frames[2];
}

void EventStream::Restart(std::optional<SequenceNumber> first_seen) {
  ++stats_.restarts;
  const SequenceNumber last = tracker_.live().value_or(last_applied_ ? last_applied_->sequence : 0);
  BeginLife();
  sink_->OnRestart(last, first_seen);
  if (Away()) sink_->OnContinuity(Continuity::kInterrupted);
}

// What comes next is judged as by a subscriber that comes late. As after a restart, the connection's end holds for the
// new life, too.
void EventStream::Forget() {
  BeginLife();
  sink_->OnContinuity(Continuity::kForgotten);
  if (Away()) sink_->OnContinuity(Continuity::kInterrupted);
}

void EventStream::BeginLife() {
  last_live_.reset();
  last_applied_.reset();
  tracker_.Reset();
}

// After the beginning of a life: what is surely of it is judged, the replay brings the rest.
void EventStream::BeginWithConnected() {
  KeepHeld(HeldOf::kConnected);
  interrupted_ = reconnected_ = false;
  question_due_ = true;
  JudgeHeld();
}

void EventStream::ApplyLive(Waiting message) {
  Apply({message.sequence, AsText(message.frames[0]), message.frames[2], MessageOrigin::kLive});
  last_live_ = std::move(message);
}

void EventStream::Note(SequenceNumber number, FrameView payload) {
  tracker_.AdvanceTo(number + 1);
  last_applied_ = {number, ContentOf(payload)};
}

void EventStream::Apply(const StreamMessage& message) {
  Note(message.sequence, message.payload);
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

void EventStream::StartRecovery(SequenceNumber to) {
  ++stats_.recoveries;
  recover_from_ = tracker_.next();
  recover_to_ = to;
  recovery_lost_some_ = false;
  sink_->OnRecovery(recover_from_, to);
  // A running question already brings what is missing.
  if (!replay_->active()) replay_->Start(recover_from_, now_);
}

void EventStream::Wait(Waiting message) {
  message.of = HeldOf::kApplied;
  kept_bytes_ += message.bytes;
  waiting_.push_back(std::move(message));
  if (waiting_.size() > options_.max_waiting_messages || kept_bytes_ > options_.max_waiting_bytes) {
    EndRecovery(GapReason::kBufferFull);
  }
}

void EventStream::Hold(Waiting message) {
  message.of = !reconnected_ ? HeldOf::kApplied : asking_ ? HeldOf::kConnected : HeldOf::kEither;
  kept_bytes_ += message.bytes;
  held_.push_back(std::move(message));
  if (held_.size() <= options_.max_waiting_messages && kept_bytes_ <= options_.max_waiting_bytes) return;
  Forget();
  if (asking_) {
    replay_->Stop();
    asking_ = false;
    life_asked_.reset();
    BeginWithConnected();
  } else {
    // What is still to be read may be of either life, too.
    KeepHeld(HeldOf::kConnected);
  }
}

// Asks for everything behind what was applied, and for the last of that to know the life by.
void EventStream::Ask() {
  asking_ = true;
  life_asked_ = last_applied_;
  replay_->Start(life_asked_ ? life_asked_->sequence : tracker_.next(), now_);
}

void EventStream::TakeReplayed(const InFrames& frames) {
  const std::vector<FrameView> views(frames.begin(), frames.end());
  const std::optional<ReplayMessage> message = ParseReplayMessage(views);
  if (!message) return;
  if (life_asked_ && !TellLife(*message)) return;
  if (message->sequence < tracker_.next()) return;
  if (message->sequence > tracker_.next()) {
    // The answer is in order: what it left out will never come, whoever asks again.
    const SequenceNumber before = message->sequence - 1;
    GiveUp(recover_to_ ? std::min(before, *recover_to_) : before, GapReason::kNotInReplay);
  }
  if (!recover_to_ || message->sequence <= *recover_to_) ApplyReplayed(*message);
  if (recover_to_ && tracker_.next() > *recover_to_) {
    if (asking_) {
      EndQuestion(ReplayClient::Outcome::kEnd);
    } else {
      EndRecovery(GapReason::kNotInReplay);
    }
  }
}

void EventStream::ApplyReplayed(const ReplayMessage& message) {
  if (!options_.topic.empty()) {
    if (!message.topic && !std::exchange(topic_unknown_, true)) sink_->OnTopicUnknown();
    if (message.topic && !AsText(*message.topic).starts_with(options_.topic)) {
      ++stats_.other_topic;
      Note(message.sequence, message.payload);
      sink_->OnOtherTopic(message.sequence);
      return;
    }
  }
  Apply({message.sequence, message.topic ? AsText(*message.topic) : std::string_view(topic_), message.payload,
         MessageOrigin::kReplay});
}

// The first message of an answer that was asked for from the last applied one on. False: it ended the question.
bool EventStream::TellLife(const ReplayMessage& message) {
  const LastApplied asked = *life_asked_;
  if (message.sequence < asked.sequence) return false;
  life_asked_.reset();
  const bool kept = message.sequence == asked.sequence;
  if (kept && ContentOf(message.payload) == asked.content) {
    // What is held tells by its numbers what else is missing.
    if (interrupted_ && !held_.empty()) {
      EndQuestion(ReplayClient::Outcome::kEnd);
      return false;
    }
    interrupted_ = reconnected_ = false;
    return true;
  }
  replay_->Stop();
  asking_ = false;
  if (interrupted_) {
    if (kept) {
      Restart(std::nullopt);
    } else {
      Forget();  // the last applied message is no longer there to compare
    }
    BeginWithConnected();
    return false;
  }
  sink_->OnContinuity(Continuity::kUnconfirmed);  // nor here; or another publisher answers
  if (!recover_to_) return false;
  if (kept) {
    EndRecovery(GapReason::kNotInReplay);
  } else {
    replay_->Start(tracker_.next(), now_);
  }
  return false;
}

void EventStream::EndQuestion(ReplayClient::Outcome outcome) {
  replay_->Stop();
  asking_ = false;
  const bool told = !life_asked_;
  life_asked_.reset();
  const bool answered = outcome == ReplayClient::Outcome::kEnd;
  if (recover_to_ && answered && tracker_.next() <= *recover_to_) {
    // What is still missing may have been published after the question.
    replay_->Start(tracker_.next(), now_);
  } else if (recover_to_) {
    EndRecovery(stopping_ ? GapReason::kStopped : answered ? GapReason::kNotInReplay : GapReason::kNoAnswer);
  }
  if (interrupted_ && !told && answered) {
    Restart(std::nullopt);  // the same life would have its last message
    BeginWithConnected();
  } else if (interrupted_ && !told && !stopping_) {
    Forget();
    BeginWithConnected();
  } else {
    sink_->OnContinuity(answered && told ? Continuity::kConfirmed : Continuity::kUnconfirmed);
    if (stopping_) return;  // Finish judges what is held
    interrupted_ = reconnected_ = false;
    JudgeHeld();
  }
}

void EventStream::KeepHeld(HeldOf of) {
  WaitingQueue kept;
  for (Waiting& held : held_) {
    if (held.of == of) {
      kept.push_back(std::move(held));
    } else {
      kept_bytes_ -= held.bytes;
      ++stats_.left_out;
    }
  }
  held_ = std::move(kept);
}

void EventStream::JudgeHeld() {
  for (WaitingQueue held = std::exchange(held_, {}); !held.empty(); held.pop_front()) {
    kept_bytes_ -= held.front().bytes;
    HandleLive(std::move(held.front()));
  }
}

void EventStream::EndRecovery(GapReason reason) {
  replay_->Stop();
  asking_ = false;
  life_asked_.reset();
  if (recover_to_) {
    const SequenceNumber to = *std::exchange(recover_to_, std::nullopt);
    if (tracker_.next() <= to) GiveUp(to, reason);
    if (!recovery_lost_some_) {
      ++stats_.healed;
      sink_->OnHealed(recover_from_, to);
    }
  }
  // Holes among what waits are asked for in turn, if the last answer was one.
  while (!waiting_.empty()) {
    const SequenceNumber number = waiting_.front().sequence;
    if (number > tracker_.next()) {
      if (reason == GapReason::kNotInReplay || reason == GapReason::kNoAnswer) {
        StartRecovery(number - 1);
        return;
      }
      GiveUp(number - 1, reason);
    }
    Waiting message = std::move(waiting_.front());
    waiting_.pop_front();
    kept_bytes_ -= message.bytes;
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
