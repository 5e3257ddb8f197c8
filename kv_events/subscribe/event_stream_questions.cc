// SPDX-License-Identifier: Apache-2.0
// EventStream's part about connections and lives: who is there, whether it is still the same publisher, and whether
// what came from it is all.
#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "kv_events/subscribe/event_stream.h"

namespace kvwire {

namespace {

constexpr MonotonicNanos kLongestCheckPause = 60'000'000'000;
constexpr int kSilentHeartbeats = 3;
// A publisher that is known to answer hellos and does not answer this one is asked so often on a new connection before
// another kind of publisher is taken to be there.
constexpr int kAnswersOfOther = 3;
constexpr MonotonicNanos kAskAgainPause = 200'000'000;

// In one order, without what is nothing.
DigestEntries Normal(DigestEntries entries) {
  std::erase_if(entries, [](const StateDigest::Entry& entry) { return entry.count == 0 && entry.sum == 0; });
  std::ranges::sort(entries, [](const StateDigest::Entry& a, const StateDigest::Entry& b) {
    return std::tie(a.group, a.medium) < std::tie(b.group, b.medium);
  });
  return entries;
}

}  // namespace

// Whether a connection ended since the last look.
bool EventStream::LookAtPeers() {
  const PeerCounts before = std::exchange(peers_, live_.peers());
  if (peers_ == before) return false;
  const bool ended = peers_.disconnected > before.disconnected;
  if (peers_.present() > 0) keeper_.Note(StreamFact::kConnected);
  if (Away()) keeper_.Note(StreamFact::kDisconnected);
  if (peers_.present() <= 1 && before.present() > 1) {
    keeper_.Note(StreamFact::kAlone);
    CheckSoon();
  }
  if (ended) Interrupt();
  // Who is there after an end may be another one, also when it came before the end was noticed.
  if (peers_.connected > before.connected || (ended && peers_.present() > 0)) {
    reconnected_ = replay_ && (interrupted_ || unread_end_);
    question_due_ = replay_.has_value();
    publisher_ = Publisher::kUnknown;
    end_marks_ = 0;
    snapshot_at_ = 0;
    heard_at_ = now_;
  }
  if (peers_.present() > 1 && before.present() <= 1) {
    keeper_.Note(StreamFact::kSeveral);
    sink_->OnContinuity(Continuity::kSeveral);
  }
  return ended;
}

void EventStream::Interrupt() {
  // There is nothing that could be void, unless the connection left something to read.
  const bool fresh = !interrupted_ && !tracker_.started() && waiting_.empty();
  unread_end_ = fresh;
  if (!fresh) keeper_.Note(StreamFact::kLifeInDoubt);
  if (!fresh || stats_.applied > 0) sink_->OnContinuity(Continuity::kInterrupted);
  if (!replay_) return;
  interrupted_ = !fresh;
  // The rest of a running answer may come from another life.
  if (taking_) {
    AbandonSnapshot();
    snapshot_wanted_ = true;
  }
  replay_->Stop();
  StopQuestion();
  if (hello_) hello_->Stop();
  if (proof_) proof_->Stop();
  tail_.reset();
  digest_due_.reset();
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
  if (!reconnected_ || applied_.last() || epoch_) return;
  // There is nothing to know a life by.
  if (!held_.empty()) Forget();
  BeginWithConnected();
}

// A publisher that sends heartbeats is heard, or its connection is dead. Whether something was done about it.
bool EventStream::ListenForSilence() {
  if (!said_ || said_->heartbeat_interval_ms == 0 || interrupted_ || Away()) return false;
  const MonotonicNanos limit = MonotonicNanos{kSilentHeartbeats} * said_->heartbeat_interval_ms * 1'000'000;
  if (now_ - heard_at_ < limit) return false;
  keeper_.Note(StreamFact::kSilent);
  return RenewMute();
}

// Gives the live link up, if another one can be made; again and again in vain ever less often. Whether it did.
bool EventStream::RenewMute() {
  if (!live_.renewable() || (renewed_ && now_ < renew_at_)) return false;
  if (!std::exchange(renewed_, true)) renewals_ = kRenewals;
  renew_at_ = now_ + renewals_.Next(now_);
  ++stats_.renewed;
  live_.Renew(now_);
  return true;
}

void EventStream::Hold(Waiting message) {
  message.of = !reconnected_ ? HeldOf::kApplied : asking_ || live_.renewable() ? HeldOf::kConnected : HeldOf::kEither;
  kept_bytes_ += message.bytes;
  held_.push_back(std::move(message));
  if (!TooManyKept(held_)) return;
  Forget();
  if (asking_ || live_.renewable()) {
    replay_->Stop();
    StopQuestion();
    BeginWithConnected();
  } else {
    // What is still to be read may be of either life, too.
    KeepHeld(HeldOf::kConnected);
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

void EventStream::Restart(std::optional<SequenceNumber> first_seen) {
  ++stats_.restarts;
  const SequenceNumber last = tracker_.live().value_or(std::max<SequenceNumber>(tracker_.next(), 1) - 1);
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
  refused_.reset();
  applied_.Clear();
  newest_ts_ = 0;
  tracker_.Reset();
  shelves_.Clear();
  said_.reset();
  epoch_.reset();
  tail_.reset();
  digest_due_.reset();
  snapshot_wanted_ = false;
  heard_.reset();
  by_answers_ = live_since_ = proven_ = proof_wanted_ = proof_asked_ = false;
  if (proof_) proof_->Stop();
  hello_behind_ = 0;
  keeper_.Note(StreamFact::kNewLife);
  if (publisher_ == Publisher::kKvwire) CheckSoon();
}

// After the beginning of a life: what is surely of it is judged, the replay brings the rest.
void EventStream::BeginWithConnected() {
  KeepHeld(HeldOf::kConnected);
  interrupted_ = reconnected_ = false;
  question_due_ = true;
  JudgeHeld();
}

bool EventStream::WorkOnQuestion(bool drained) {
  if (!question_due_ || (!drained && (interrupted_ || unread_end_)) || replay_->active() || taking_ || asking_ ||
      Resting()) {
    return false;
  }
  question_due_ = false;
  if (!Away()) Ask();  // else the sink knows of the interruption
  return true;
}

void EventStream::Ask() {
  joining_ = !tracker_.started();
  if (traits_.replay == ReplayForm::kState) {
    AskForState();
  } else if (hello_ && publisher_ != Publisher::kOther) {
    asking_ = true;
    StartHello(HelloPurpose::kQuestion);
  } else {
    AskByContent();
  }
}

// Asks for everything behind what was applied, and for the last of that to know the life by.
void EventStream::AskByContent() {
  asking_ = true;
  life_asked_ = applied_.last();
  replay_->Start(life_asked_ ? life_asked_->sequence : tracker_.next());
}

// Whoever answers with its state does not say whose life it is.
void EventStream::AskForState() {
  if (interrupted_) {
    Forget();
    KeepHeld(HeldOf::kConnected);
    interrupted_ = reconnected_ = false;
  }
  asking_ = true;
  BeginSnapshot();
  JudgeHeld();
}

// The first message of an answer that was asked for from the last applied one on. False: it ended the question.
bool EventStream::TellLife(const ReplayMessage& message) {
  const AppliedPayloads::Entry asked = *life_asked_;
  if (message.sequence < asked.sequence) return false;
  life_asked_.reset();
  const bool kept = message.sequence == asked.sequence;
  if (kept && AppliedPayloads::ContentOf(message.payload) == asked.content) {
    unheard_ = false;
    if (epoch_ && publisher_ == Publisher::kOther) {
      publisher_ = Publisher::kKvwire;  // whether it answers hellos now or not
      keeper_.Note(StreamFact::kUnanswered);
    }
    // What is held tells by its numbers what else is missing.
    if (interrupted_ && !held_.empty()) {
      EndQuestion(ReplayClient::Outcome::kEnd);
      return false;
    }
    interrupted_ = reconnected_ = false;
    keeper_.Note(StreamFact::kSameLife);
    return true;
  }
  replay_->Stop();
  asking_ = unheard_ = false;
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
    replay_->Start(tracker_.next());
  }
  return false;
}

void EventStream::StopQuestion() noexcept {
  if (asking_ && hello_ && hello_purpose_ == HelloPurpose::kQuestion) hello_->Stop();
  asking_ = unheard_ = false;
  ask_again_at_.reset();
  life_asked_.reset();
}

void EventStream::EndQuestion(ReplayClient::Outcome outcome) {
  replay_->Stop();
  const bool told = !life_asked_ && !unheard_ && !(HelloOpen() && interrupted_);
  StopQuestion();
  const bool answered = outcome == ReplayClient::Outcome::kEnd;
  if (recover_to_ && answered && tracker_.next() <= *recover_to_) {
    // What is still missing may have been published after the question.
    replay_->Start(tracker_.next());
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
    if (told && !stopping_) keeper_.Note(StreamFact::kSameLife);
    sink_->OnContinuity(answered && told ? Continuity::kConfirmed : Continuity::kUnconfirmed);
    if (stopping_) return;  // Finish judges what is held
    interrupted_ = reconnected_ = false;
    JudgeHeld();
  }
}

void EventStream::StartHello(HelloPurpose purpose) {
  hello_purpose_ = purpose;
  hello_behind_ = tracker_.started() ? tracker_.next() : 0;
  ask_again_at_.reset();
  next_check_.reset();
  ++stats_.hellos_asked;
  hello_->Start(now_);
}

bool EventStream::CheckDue() const noexcept {
  const bool absent = Away() || (live_.renewable() && peers_.present() == 0);
  const bool free = !asking_ && !question_due_ && !interrupted_ && !taking_ && !recover_to_ && !absent && !stopping_;
  return replay_ && next_check_ && now_ >= *next_check_ && free && publisher_ != Publisher::kOther;
}

// One step; false when there is nothing to do.
bool EventStream::WorkOnHello() {
  if (CheckDue() && !hello_) {
    next_check_ = now_ + check_interval_;
    if (traits_.replay == ReplayForm::kState) WantSnapshot();
    return false;
  }
  if (hello_ && !hello_->active() && CheckDue()) StartHello(HelloPurpose::kCheck);
  if (hello_ && ask_again_at_ && now_ >= *ask_again_at_) StartHello(HelloPurpose::kQuestion);
  if (!hello_ || !hello_->active()) return false;
  Hello hello;
  const HelloClient::Outcome outcome = hello_->Poll(now_, &hello);
  if (outcome == HelloClient::Outcome::kNothing) return false;
  if (LookAtPeers()) return true;
  if (outcome == HelloClient::Outcome::kHello) {
    TakeHello(std::move(hello));
  } else {
    TakeNoHello(outcome);
  }
  return true;
}

// Of a publisher that does not answer.
MonotonicNanos EventStream::LongerCheckPause() const noexcept {
  return std::min(2 * check_pause_, std::max(check_interval_, kLongestCheckPause));
}

void EventStream::TakeNoHello(HelloClient::Outcome outcome) {
  const bool question = hello_purpose_ == HelloPurpose::kQuestion;
  const bool other = outcome == HelloClient::Outcome::kOther;
  if (other) ++end_marks_;
  // A busy publisher may answer like one that knows no hello: a known one is not taken for such by that alone.
  const bool doubtful = other && epoch_ && (publisher_ != Publisher::kUnknown || end_marks_ < kAnswersOfOther);
  if (other && !doubtful) {
    publisher_ = Publisher::kOther;
    said_.reset();
    keeper_.Note(StreamFact::kAnswered);
    if (epoch_ && check_pause_ > 0) next_check_ = now_ + check_pause_;  // what it publishes may show otherwise
  } else {
    if (publisher_ == Publisher::kKvwire || doubtful) keeper_.Note(StreamFact::kUnanswered);
    check_pause_ = LongerCheckPause();
    if (check_pause_ > 0) next_check_ = now_ + check_pause_;
  }
  if (question && doubtful && publisher_ == Publisher::kUnknown) {
    ask_again_at_ = now_ + end_marks_ * kAskAgainPause;
  } else if (question && epoch_ && interrupted_ && !applied_.last()) {
    // A snapshot is all that is held: there are no bytes to know the life by.
    StopQuestion();
    Forget();
    BeginWithConnected();
  } else if (question) {
    unheard_ = epoch_.has_value();
    AskByContent();
  }
}

void EventStream::TakeHello(Hello hello) {
  ++stats_.hellos;
  publisher_ = Publisher::kKvwire;
  keeper_.Note(StreamFact::kAnswered);
  check_pause_ = replay_->silent() ? LongerCheckPause() : check_interval_;
  if (check_pause_ > 0) next_check_ = now_ + check_pause_;
  const std::optional<std::uint64_t> before = std::exchange(epoch_, hello.epoch);
  if (before && *before != hello.epoch) {
    BeginOtherLife();
    return;
  }
  // What is held may be of the life before the connection's end: only an epoch tells.
  const bool same = before || (!interrupted_ && heard_);
  if (same && hello.next < hello_behind_ && peers_.present() <= 1) {
    Contradict(hello.next, Contradiction::kNumbersBack);
    return;
  }
  if (before && hello_behind_ > 0) keeper_.Note(StreamFact::kInOrder);
  if (!said_) heard_at_ = now_;
  const bool published = said_ && hello.next > said_->next && options_.topic.empty();
  said_ = std::move(hello);
  if (hello_purpose_ == HelloPurpose::kQuestion && interrupted_ && !before) {
    AskByContent();  // there is no epoch to compare
    return;
  }
  if (said_->digest && stats_.other_topic == 0) digest_due_ = DigestAt{said_->next, *said_->digest};
  if (said_->next > tracker_.next() && !tail_) {
    tail_ = Tail{said_->next, now_ + kTailGrace, std::nullopt};
    if (published && checked_at_ > 0) tail_->mute_since = checked_at_;
  }
  checked_at_ = now_;
  if (!tracker_.started() && waiting_.empty()) {
    tracker_ = SequenceTracker(said_->first);
    if (said_->next == said_->first) keeper_.Note(StreamFact::kFirstNumber);
  }
  if (hello_purpose_ == HelloPurpose::kQuestion) AskBehind();
  CompareDigest();
  const bool comparable = said_ && said_->digest && sink_->HeldDigest();
  if (!keeper_.whole() && tracker_.started() && !comparable) WantSnapshot();
}

// The same life. What it sent since the last message is asked for, if anything.
void EventStream::AskBehind() {
  life_asked_.reset();
  const bool behind = said_->next > tracker_.next();
  if (!behind || (interrupted_ && !held_.empty())) {
    // What is held tells by its numbers what is missing.
    EndQuestion(ReplayClient::Outcome::kEnd);
    return;
  }
  interrupted_ = reconnected_ = false;
  keeper_.Note(StreamFact::kSameLife);
  tail_.reset();
  const bool there = said_->oldest && *said_->oldest <= tracker_.next();
  if (there || !said_->snapshots) {
    replay_->Start(tracker_.next());
  } else if (recover_to_) {
    EndRecovery(GapReason::kNotInReplay);
  } else {
    NoteRefusal(said_->oldest.value_or(said_->next));
    BeginSnapshot();
  }
}

void EventStream::BeginOtherLife() {
  const std::optional<std::uint64_t> epoch = epoch_;
  if (taking_) AbandonSnapshot();
  replay_->Stop();
  StopQuestion();
  if (recover_to_) EndRecovery(GapReason::kRestarted);
  FlushWaiting(GapReason::kRestarted);
  Restart(std::nullopt);
  epoch_ = epoch;
  Rest();
  BeginWithConnected();
}

// Asks for what a hello said was sent, and did not come. Whether it did.
bool EventStream::FollowTail() {
  if (tail_ && tracker_.next() >= tail_->next) tail_.reset();
  if (!tail_) return false;
  const bool free = !asking_ && !interrupted_ && !taking_ && !recover_to_ && !replay_->active() && !Away();
  if (now_ < tail_->late_at || !free) return false;
  const Tail tail = *std::exchange(tail_, std::nullopt);
  if (tail.mute_since && heard_at_ <= *tail.mute_since && RenewMute()) return true;  // its question brings the rest
  if (!tracker_.started() || replay_->silent()) {
    question_due_ = true;
  } else if (said_ && said_->oldest && *said_->oldest > tracker_.next() && SnapshotsOffered()) {
    NoteRefusal(*said_->oldest);
    WantSnapshot();
  } else {
    StartRecovery(tail.next - 1);
  }
  return true;
}

// Compares the digest of a hello once the batch before it was applied. A stream that has passed that batch already has
// to do without the answer, and what is missing comes as a snapshot.
void EventStream::CompareDigest() {
  if (!digest_due_ || digest_due_->next > tracker_.next()) return;
  const DigestAt due = *std::exchange(digest_due_, std::nullopt);
  if (!tracker_.started() || taking_ || interrupted_) return;
  if (due.next == tracker_.next()) {
    JudgeDigest(due.entries);
  } else if (!keeper_.whole()) {
    WantSnapshot();
  }
}

void EventStream::JudgeDigest(const DigestEntries& theirs) {
  std::optional<DigestEntries> ours = sink_->HeldDigest();
  if (!ours) return;
  ++stats_.digests_compared;
  if (Normal(*std::move(ours)) == Normal(theirs)) {
    keeper_.Note(StreamFact::kDigestMatches);
    snapshot_wanted_ = false;
    if (live_since_ || (heard_ && !by_answers_)) Agree();
  } else {
    ++stats_.digests_differed;
    keeper_.Note(StreamFact::kDigestDiffers);
    proof_wanted_ = heard_.has_value();
    sink_->OnDigestDiffers(tracker_.next(), theirs);
    WantSnapshot();
  }
}

}  // namespace kvwire
