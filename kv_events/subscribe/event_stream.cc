// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/event_stream.h"

#include <algorithm>
#include <functional>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

namespace kvwire {

namespace {

constexpr int kSlice = 64;
// Of lives that follow each other: the pauses between, and a time without that makes the next one the first again.
constexpr BackOff kBeginnings(100'000'000, 5'000'000'000, 30'000'000'000);
constexpr MonotonicNanos kEarlierStateQuiet = 60'000'000'000;

std::string_view AsText(FrameView frame) { return {reinterpret_cast<const char*>(frame.data()), frame.size()}; }

DecodeOptions DecodeOptionsOf(const EventStreamOptions& options, const DialectTraits& traits) {
  DecodeOptions decode = options.decode;
  decode.hash_bits = traits.hash_bits;
  decode.strict = decode.strict || traits.decode == DecodeRule::kStrict;
  return decode;
}

bool HasClear(const KVEventBatch& batch) {
  bool found = false;
  batch.Visit([&found](const auto& event) {
    if constexpr (std::is_same_v<std::decay_t<decltype(event)>, AllBlocksCleared>) found = true;
  });
  return found;
}

DecodeError TooManyShelves() {
  DecodeError error;
  error.code = DecodeErrorCode::kLimitExceeded;
  error.path = "events";
  error.message = fmt::format(
      "events name more pairs of group and medium than the {} that a stream may hold, or media "
      "of more than {} bytes together",
      ShelfBound::kMostShelves, ShelfBound::kMostNameBytes);
  return error;
}

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
      return "the publisher answered: all that it has published, and can still give, was received";
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
//   once, or were superseded by a snapshot.
// - waiting_ is empty unless a replay runs with an end, and then tracker_.next() <= recover_to_ < waiting_.front(), or
// a
//   snapshot is under way, and then tracker_.next() <= waiting_.front().
// - While a snapshot is under way a message is applied only if its number is below that of a piece already received.
// - held_ is empty unless interrupted_; what may be of either life is only there.
// - A question of an interrupted stream runs only after live_ was once empty with the new connection: what is read
//   while it runs is not of an earlier one.
// - last_live_ is the message with number tracker_.live(), unless that one waits.

EventStream::EventStream(std::unique_ptr<FrameLink> live, ReplayLinkFactory replay, const EventStreamOptions& options,
                         StreamSink* sink)
    : EventStream(LiveLink(std::move(live)), std::move(replay), options, sink) {}

EventStream::EventStream(LiveLinkFactory live, ReplayLinkFactory replay, const EventStreamOptions& options,
                         StreamSink* sink)
    : EventStream(LiveLink(std::move(live), options.connect_patience), std::move(replay), options, sink) {}

EventStream::EventStream(LiveLink live, ReplayLinkFactory replay, const EventStreamOptions& options, StreamSink* sink)
    : options_(options),
      traits_(TraitsOf(options.dialect)),
      decode_(DecodeOptionsOf(options, traits_)),
      check_interval_(options.check_interval.value_or(traits_.check_interval)),
      sink_(sink),
      live_(std::move(live)),
      place_(options.gate),
      tracker_(options.first_sequence.value_or(traits_.first_sequence)),
      beginnings_(kBeginnings),
      renewals_(kRenewals),
      earlier_states_(5 * options.snapshot.first_pause, options.snapshot.longest_pause, kEarlierStateQuiet) {
  if (!replay) return;
  replay_.emplace(replay, options.replay, &place_);
  snapshot_.emplace(replay, traits_.replay, options.snapshot, decode_);
  if (traits_.replay == ReplayForm::kHistory) proof_.emplace(replay, options.replay.attempt_idle);
  if (traits_.extensions) hello_.emplace(std::move(replay), options.replay.attempt_idle);
}

EventStream::~EventStream() = default;

int EventStream::DoWork(MonotonicNanos now) {
  now_ = now;
  if (!next_check_ && check_pause_ == 0 && check_interval_ > 0) {
    check_pause_ = check_interval_;
    next_check_ = now + check_pause_;
  }
  live_.DoWork(now);
  int work = 0;
  LookAtPeers();
  // Live first: what waits there can be lost, the replay cannot.
  while (work < kSlice && TakeLive()) ++work;
  // With nothing left to read, what comes from now on was sent after the last change of the connection: after an
  // interruption nothing older may be taken for new.
  const bool drained = work < kSlice;
  if (drained) NoteDrained();
  if (ListenForSilence()) ++work;
  if (WorkOnQuestion(drained)) ++work;
  if (WorkOnHello()) ++work;
  if (FollowTail()) ++work;
  if (WorkOnProof()) ++work;
  for (int i = 0; i < kSlice && WorkOnReplay(); ++i) ++work;
  for (int i = 0; i < kSlice && WorkOnSnapshot(); ++i) ++work;
  if (replay_ && !replay_->active() && !snapshot_->active()) place_.Leave();
  UpdateStatus();
  return work;
}

bool EventStream::WorkOnReplay() {
  if (!replay_ || !replay_->active()) return false;
  InFrames frames;
  const SequenceNumber resume = life_asked_ ? life_asked_->sequence : tracker_.next();
  const ReplayClient::Outcome outcome = replay_->Poll(resume, now_, &frames);
  if (outcome == ReplayClient::Outcome::kNothing) return false;
  // Whoever answered may be the publisher that came after the connection's end.
  if (LookAtPeers()) return true;
  if (outcome == ReplayClient::Outcome::kMessage) {
    TakeReplayed(frames);
  } else if (asking_ && !taking_) {
    EndQuestion(outcome);
  } else {
    EndRecovery(outcome == ReplayClient::Outcome::kEnd ? GapReason::kNotInReplay : GapReason::kNoAnswer);
  }
  return true;
}

void EventStream::Finish() {
  stopping_ = true;
  snapshot_wanted_ = false;
  if (proof_) proof_->Stop();
  const bool never_asked = std::exchange(question_due_, false) && !Away();
  if (never_asked && !asking_) sink_->OnContinuity(Continuity::kUnconfirmed);
  if (taking_) AbandonSnapshot();
  if (asking_) {
    EndQuestion(ReplayClient::Outcome::kFailed);
  } else if (replay_ && replay_->active()) {
    EndRecovery(GapReason::kStopped);
  }
  FlushWaiting(GapReason::kStopped);
  if (interrupted_) {
    KeepHeld(HeldOf::kApplied);
    interrupted_ = reconnected_ = false;
    JudgeHeld();
  }
  place_.Leave();
  UpdateStatus();
}

EventStreamStats EventStream::stats() const noexcept {
  EventStreamStats stats = stats_;
  if (replay_) {
    stats.replay_attempts = replay_->attempts();
    stats.replay_malformed = replay_->malformed();
  }
  return stats;
}

bool EventStream::recovering() const noexcept {
  if (!replay_) return false;
  const bool resting = snapshot_attempts_ == 0 && now_ < snapshot_at_;
  return replay_->active() || asking_ || taking_ || ((question_due_ || (snapshot_wanted_ && !resting)) && !Away());
}

bool EventStream::replay_reached() const noexcept {
  return replay_ && (replay_->reached() || snapshot_->reached() || (hello_ && hello_->reached()));
}

std::array<FrameLink*, 5> EventStream::links() const noexcept {
  return {live_.link(), replay_ ? replay_->link() : nullptr, snapshot_ ? snapshot_->link() : nullptr,
          hello_ ? hello_->link() : nullptr, proof_ ? proof_->link() : nullptr};
}

// Whether the publisher has sent, by its own word, what is no longer merely on its way.
bool EventStream::Behind() {
  if (!said_ || !tracker_.started() || said_->next <= tracker_.next()) {
    behind_since_.reset();
    return false;
  }
  if (!behind_since_) behind_since_ = now_;
  return now_ - *behind_since_ >= kTailGrace || (asking_ && hello_purpose_ == HelloPurpose::kQuestion);
}

void EventStream::UpdateStatus() {
  const bool asks = asking_ || (question_due_ && !Away());
  const bool behind = Behind();
  keeper_.Note(behind ? StreamFact::kBehind : StreamFact::kCaughtUp);
  const bool needs = interrupted_ || !tracker_.started() || (asking_ && (joining_ || behind));
  keeper_.Note(Resting()       ? StreamFact::kResting
               : taking_       ? StreamFact::kTakingSnapshot
               : recover_to_   ? StreamFact::kReplaying
               : asks && needs ? StreamFact::kAsking
                               : StreamFact::kResting);
  keeper_.Note(tracker_.live() || heard_ ? StreamFact::kAlsoLive : StreamFact::kAnswersOnly);
  StreamStatus status = keeper_.status();
  if (status.state == StreamState::kSynchronised || status.state == StreamState::kConnecting) refused_.reset();
  if (status.state == StreamState::kUnsynchronised || taking_) status.refused = refused_;
  status.replay_silent = replay_ && replay_->silent() && status.state != StreamState::kSynchronised;
  if (status == status_) return;
  status_ = status;
  sink_->OnState(status_);
}

// False when nothing was there.
bool EventStream::TakeLive() {
  std::optional<InFrames> frames = live_.TryReceive();
  if (!frames) return false;
  // A connection is counted before its messages can be read: this look tells whether the message may be a new one's.
  LookAtPeers();
  heard_at_ = now_;
  renewed_ = false;
  keeper_.Note(StreamFact::kHeard);
  const std::vector<FrameView> views(frames->begin(), frames->end());
  const std::optional<LiveMessage> parsed = ParseLiveMessage(views);
  if (!parsed || parsed->sequence == kEndOfReplay) {
    ++stats_.malformed;
    NoteUnreadable();
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
  if (Resting() && !stopping_) {
    Hear(message);
    ++stats_.left_out;
    return;
  }
  SequenceVerdict verdict = tracker_.Judge(number);
  // The transport repeats nothing: the last number with other content is a new life that had one message so far.
  if (verdict == SequenceVerdict::kDuplicate && tracker_.live() == number && !SameAsLast(message)) {
    verdict = SequenceVerdict::kRestart;
  }
  if (verdict == SequenceVerdict::kDuplicate && tracker_.live() != number && replay_ && peers_.present() <= 1 &&
      !JudgeRepeated(message)) {
    return;
  }
  if (verdict == SequenceVerdict::kRestart) {
    // The new life cannot replay the old one's messages.
    if (taking_) AbandonSnapshot();
    if (replay_ && replay_->active()) EndRecovery(GapReason::kRestarted);
    FlushWaiting(GapReason::kRestarted);
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
      if (taking_) break;
      ApplyLive(std::move(message));
      return;
    case SequenceVerdict::kDuplicate:
      ++stats_.duplicates;
      last_live_ = std::move(message);
      return;
    case SequenceVerdict::kGap:
      if (taking_) break;
      TakeGap(std::move(message));
      return;
    case SequenceVerdict::kRestart:
      return;  // a fresh tracker never says so
  }
  Wait(std::move(message));
  PumpSnapshot();
}

// A live message behind missing ones.
void EventStream::TakeGap(Waiting message) {
  const SequenceNumber before = message.sequence - 1;
  if (!CanReplay() || stopping_) {
    GiveUp(before, stopping_ ? GapReason::kStopped : replay_ ? GapReason::kNotInReplay : GapReason::kNoReplay);
    ApplyLive(std::move(message));
    return;
  }
  // What the publisher no longer has is not asked for.
  const bool gone = said_ && said_->oldest && *said_->oldest > tracker_.next();
  if (!recover_to_ && !asking_ && gone && SnapshotsOffered() && now_ >= snapshot_at_) {
    NoteRefusal(*said_->oldest);
    BeginSnapshot();
  } else if (!recover_to_) {
    StartRecovery(before);
  }
  Wait(std::move(message));
}

bool EventStream::SameAsLast(const Waiting& message) const {
  if (!waiting_.empty()) return waiting_.back().frames[2] == message.frames[2];
  return last_live_ && last_live_->frames[2] == message.frames[2];
}

void EventStream::ApplyLive(Waiting message) {
  const bool read = Apply({message.sequence, AsText(message.frames[0]), message.frames[2], MessageOrigin::kLive});
  last_live_ = std::move(message);
  if (read) NoteLive();
}

void EventStream::Note(SequenceNumber number, FrameView payload, MessageOrigin origin) {
  if (!tracker_.started() && number == tracker_.first()) keeper_.Note(StreamFact::kFirstNumber);
  tracker_.AdvanceTo(number + 1);
  const AppliedPayloads::Entry entry{number, AppliedPayloads::ContentOf(payload), origin == MessageOrigin::kReplay};
  applied_.Note(entry);
  if (entry.answered) NoteAnswered(entry);
}

// False when it cannot be read.
bool EventStream::Apply(const StreamMessage& message) {
  Note(message.sequence, message.payload, message.origin);
  const auto decoded = DecodeBatch(message.payload, decode_);
  if (!decoded) {
    ++stats_.undecodable;
    NoteUnreadable();
    sink_->OnUndecodable(message, decoded.error());
    return false;
  }
  if (!Fits(*decoded)) {
    ++stats_.undecodable;
    NoteUnreadable();
    sink_->OnUndecodable(message, TooManyShelves());
    return false;
  }
  ++stats_.applied;
  if (message.origin == MessageOrigin::kReplay) ++stats_.replayed;
  stats_.rejected_events += decoded->rejected_total;
  if (!decoded->without_time) newest_ts_ = std::max(newest_ts_, decoded->batch.ts);
  sink_->OnBatch(message, *decoded);
  NoteApplied(*decoded);
  if (message.origin != MessageOrigin::kLive) return true;
  live_since_ = live_since_ || !decoded->batch.empty();
  if (!HasClear(decoded->batch)) return true;
  by_answers_ = false;
  keeper_.Note(StreamFact::kAgreed);
  return true;
}

bool EventStream::Fits(const DecodedBatch& batch) {
  if (!shelves_.Take(batch.batch)) return false;
  return !taking_ || taking_->shelves.Take(batch.batch);
}

void EventStream::NoteApplied(const DecodedBatch& batch) {
  if (HasClear(batch.batch)) {
    keeper_.Note(StreamFact::kCleared);
    snapshot_wanted_ = false;
    if (taking_) AbandonSnapshot();
  }
  if (batch.rejected_total > 0) NoteUnreadable();
  CompareDigest();
}

void EventStream::NoteUnreadable() {
  keeper_.Note(traits_.decode == DecodeRule::kStrict ? StreamFact::kVoid : StreamFact::kUnreadable);
  if (traits_.decode == DecodeRule::kStrict) WantSnapshot();
}

void EventStream::StartRecovery(SequenceNumber to) {
  ++stats_.recoveries;
  recover_from_ = tracker_.next();
  recover_to_ = to;
  recovery_lost_some_ = false;
  recovery_joins_ = !tracker_.started();
  sink_->OnRecovery(recover_from_, to);
  // A running question brings what is missing, too.
  if (!replay_->active() && !asking_) replay_->Start(recover_from_);
}

void EventStream::Wait(Waiting message) {
  message.of = HeldOf::kApplied;
  kept_bytes_ += message.bytes;
  waiting_.push_back(std::move(message));
  if (TooManyKept(waiting_) && taking_) FailSnapshot(SnapshotClient::Outcome::kFailed);
  if (TooManyKept(waiting_) && recover_to_) EndRecovery(GapReason::kBufferFull);
}

bool EventStream::TooManyKept(const WaitingQueue& queue) const noexcept {
  return queue.size() > options_.max_waiting_messages || kept_bytes_ > options_.max_waiting_bytes;
}

void EventStream::TakeReplayed(const InFrames& frames) {
  const std::vector<FrameView> views(frames.begin(), frames.end());
  const std::optional<ReplayMessage> message = ParseReplayMessage(views);
  if (!message) return;
  if (life_asked_ && !TellLife(*message)) return;
  if (message->sequence < tracker_.next()) return;
  if (message->sequence > tracker_.next()) {
    // What an answer leaves out at its beginning is gone. In the middle it is gone if the publisher is kvwire; others
    // drop what a slow reader has no room for.
    const bool cut = !replay_->at_first() && publisher_ != Publisher::kKvwire;
    if (cut && replay_->TryResume(tracker_.next(), now_)) return;
    const SequenceNumber before = message->sequence - 1;
    GiveUp(recover_to_ ? std::min(before, *recover_to_) : before, GapReason::kNotInReplay);
  }
  if (!recover_to_ || message->sequence <= *recover_to_) ApplyReplayed(*message);
  if (recover_to_ && tracker_.next() > *recover_to_) {
    if (asking_ && !taking_) {
      EndQuestion(ReplayClient::Outcome::kEnd);
    } else {
      EndRecovery(GapReason::kNotInReplay);
    }
  }
}

void EventStream::ApplyReplayed(const ReplayMessage& message) {
  answered_at_ = now_;
  unheard_ = false;
  if (!options_.topic.empty()) {
    if (!message.topic && !std::exchange(topic_unknown_, true)) sink_->OnTopicUnknown();
    if (message.topic && !AsText(*message.topic).starts_with(options_.topic)) {
      ++stats_.other_topic;
      Note(message.sequence, message.payload, MessageOrigin::kReplay);
      sink_->OnOtherTopic(message.sequence);
      return;
    }
  }
  Apply({message.sequence, message.topic ? AsText(*message.topic) : std::string_view(topic_), message.payload,
         MessageOrigin::kReplay});
}

void EventStream::EndRecovery(GapReason reason) {
  replay_->Stop();
  if (!taking_) StopQuestion();
  if (recover_to_) {
    const SequenceNumber to = *std::exchange(recover_to_, std::nullopt);
    if (tracker_.next() <= to) GiveUp(to, reason);
    if (!recovery_lost_some_ && recovery_joins_) {
      sink_->OnJoined(recover_from_, to);
    } else if (!recovery_lost_some_) {
      ++stats_.healed;
      sink_->OnHealed(recover_from_, to);
    }
  }
  if (!taking_) {
    FlushWaiting(reason);
  } else if (taking_->broken) {
    FailSnapshot(SnapshotClient::Outcome::kFailed);
  } else {
    PumpSnapshot();
  }
}

// Applies what waits, with nothing left to wait for. Holes in it are asked for in turn, if the last answer was one.
void EventStream::FlushWaiting(GapReason reason) {
  while (!waiting_.empty()) {
    const SequenceNumber number = waiting_.front().sequence;
    if (number > tracker_.next()) {
      if (CanReplay() && (reason == GapReason::kNotInReplay || reason == GapReason::kNoAnswer)) {
        StartRecovery(number - 1);
        return;
      }
      GiveUp(number - 1, reason);
    }
    Waiting message = std::move(waiting_.front());
    waiting_.pop_front();
    kept_bytes_ -= message.bytes;
    if (number == tracker_.next()) ApplyLive(std::move(message));
  }
}

// Numbers from the next one on were asked for, or need not be; number `there` is the first that can be had.
void EventStream::NoteRefusal(SequenceNumber there) noexcept {
  if (refused_) return;
  refused_.emplace();
  refused_->asked = tracker_.next();
  if (!said_ || said_->next == said_->first) return;
  const bool known = said_->oldest && *said_->oldest > refused_->asked;
  if (said_->oldest) refused_->oldest = known ? *said_->oldest : there;
  refused_->newest = std::max(said_->next - 1, tracker_.live().value_or(0));
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
  keeper_.Note(gap.joined_late ? StreamFact::kJoinedLate : StreamFact::kMissing);
  if (reason == GapReason::kNotInReplay || reason == GapReason::kNoAnswer) NoteRefusal(to + 1);
  tracker_.AdvanceTo(to + 1);
  answered_at_ = now_;
  sink_->OnGap(gap);
  if (taking_ && taking_->begun) {
    taking_->broken = true;
  } else if (!stopping_) {
    WantSnapshot();
  }
}

}  // namespace kvwire
