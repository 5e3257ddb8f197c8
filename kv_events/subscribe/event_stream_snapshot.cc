// SPDX-License-Identifier: Apache-2.0
// EventStream's part that takes a snapshot in among the live messages.
#include <algorithm>
#include <utility>

#include "kv_events/subscribe/event_stream.h"

namespace kvwire {

namespace {

// Live messages before a piece may still be on their way: the two sockets know nothing of each other.
constexpr MonotonicNanos kHoleGrace = 500'000'000;

}  // namespace

bool EventStream::SnapshotsOffered() const noexcept {
  return snapshot_ && (traits_.replay == ReplayForm::kState || (said_ && said_->snapshots));
}

void EventStream::WantSnapshot() {
  if (SnapshotsOffered()) {
    snapshot_wanted_ = true;
  } else if (publisher_ == Publisher::kUnknown && hello_) {
    CheckSoon();
  }
}

// From now on live messages wait.
void EventStream::BeginSnapshot() {
  snapshot_wanted_ = false;
  taking_.emplace();
}

// One step; false when there is nothing to do.
bool EventStream::WorkOnSnapshot() {
  if (!taking_) {
    if (!snapshot_wanted_ || now_ < snapshot_at_) return false;
    const bool free = !asking_ && !recover_to_ && !replay_->active() && !interrupted_ && !Away();
    if (!free) return false;
    BeginSnapshot();
  }
  if (!taking_->asked) {
    if (!place_.Enter()) return false;
    taking_->asked = true;
    snapshot_->Start(tracker_.next(), now_);
  }
  if (taking_->piece) {
    return TakeHole();
  }
  SnapshotPiece piece;
  const SnapshotClient::Outcome outcome = snapshot_->Poll(now_, &piece);
  if (outcome == SnapshotClient::Outcome::kNothing) return false;
  if (LookAtPeers()) return true;
  if (outcome == SnapshotClient::Outcome::kPiece) {
    taking_->piece = std::move(piece);
    PumpSnapshot();
  } else {
    FailSnapshot(outcome);
  }
  return true;
}

// Applies what can be applied: live messages before the piece at hand, then the piece.
void EventStream::PumpSnapshot() {
  while (taking_ && taking_->piece) {
    const SequenceNumber number = taking_->piece->number;
    if (number < tracker_.next()) {
      TakeEarlierState();
      return;
    }
    if (number == tracker_.next()) {
      PlacePiece();
    } else if (!waiting_.empty() && waiting_.front().sequence == tracker_.next()) {
      Waiting message = std::move(waiting_.front());
      waiting_.pop_front();
      kept_bytes_ -= message.bytes;
      taking_->hole_since.reset();
      ApplyLive(std::move(message));
    } else if (!taking_->begun) {
      SkipTo(number);
    } else {
      TakeHole();
      return;
    }
  }
  if (!taking_ && !recover_to_) FlushWaiting(GapReason::kNotInReplay);
}

// What was applied is behind the snapshot: whoever sent that is not who answers.
void EventStream::TakeEarlierState() {
  FailSnapshot(SnapshotClient::Outcome::kFailed);
  snapshot_at_ = std::max(snapshot_at_, now_ + earlier_states_.Next(now_));
  if (hello_) {
    CheckSoon();
  } else {
    Forget();
    snapshot_wanted_ = true;
  }
}

void EventStream::PlacePiece() {
  const SnapshotPiece piece = *std::exchange(taking_->piece, std::nullopt);
  if (!piece.end && !taking_->shelves.Take(piece.blocks.batch)) {
    FailSnapshot(SnapshotClient::Outcome::kRefused);
    return;
  }
  taking_->hole_since.reset();
  if (!std::exchange(taking_->begun, true)) sink_->OnSnapshotBegin(piece.number);
  if (piece.end) {
    EndSnapshot(piece);
  } else {
    if (!piece.blocks.without_time) newest_ts_ = std::max(newest_ts_, piece.blocks.batch.ts);
    sink_->OnSnapshotChunk(piece.number, piece.blocks);
  }
}

void EventStream::EndSnapshot(const SnapshotPiece& end) {
  snapshot_->Stop();
  shelves_ = std::move(taking_->shelves);
  taking_.reset();
  tracker_.AdvanceTo(end.number);
  answered_at_ = now_;
  by_answers_ = true;
  live_since_ = false;
  ++stats_.snapshots;
  snapshot_attempts_ = 0;
  snapshot_pause_ = 0;
  sink_->OnSnapshotEnd(end.number, end.digest);
  keeper_.Note(StreamFact::kSnapshot);
  if (end.digest) JudgeDigest(*end.digest);
  if (snapshot_wanted_) snapshot_at_ = now_ + options_.snapshot.longest_pause;  // it differs, and so would the next
  if (std::exchange(asking_, false)) sink_->OnContinuity(Continuity::kConfirmed);
}

// What came before the first piece is in it.
void EventStream::SkipTo(SequenceNumber number) {
  stats_.superseded += number - tracker_.next();
  while (!waiting_.empty() && waiting_.front().sequence < number) {
    kept_bytes_ -= waiting_.front().bytes;
    last_live_ = std::move(waiting_.front());
    waiting_.pop_front();
  }
  tracker_.AdvanceTo(number);
  answered_at_ = now_;
}

// Messages before the piece at hand are missing: lost for sure if later ones are there, else after a while. False when
// nothing was done about it.
bool EventStream::TakeHole() {
  if (recover_to_ || !taking_->begun) return false;
  SequenceNumber end = taking_->piece->number;
  if (!waiting_.empty() && waiting_.front().sequence < end) {
    end = waiting_.front().sequence;
  } else if (waiting_.empty()) {
    if (!taking_->hole_since) taking_->hole_since = now_;
    if (now_ - *taking_->hole_since < kHoleGrace) return false;
  }
  if (CanReplay()) {
    StartRecovery(end - 1);
    if (!replay_->active()) replay_->Start(recover_from_);  // of a question that the snapshot answers
  } else {
    FailSnapshot(SnapshotClient::Outcome::kFailed);
  }
  return true;
}

// What waits for it is left to the caller.
void EventStream::AbandonSnapshot() {
  const bool begun = taking_->begun;
  snapshot_->Stop();
  taking_.reset();
  if (begun) sink_->OnSnapshotAbandoned();
  if (std::exchange(asking_, false)) sink_->OnContinuity(Continuity::kUnconfirmed);
}

void EventStream::FailSnapshot(SnapshotClient::Outcome outcome) {
  AbandonSnapshot();
  ++stats_.snapshots_failed;
  const SnapshotLimits& limits = options_.snapshot;
  if (outcome == SnapshotClient::Outcome::kRefused || ++snapshot_attempts_ >= limits.max_attempts) {
    snapshot_attempts_ = 0;
    snapshot_pause_ = 0;
    snapshot_at_ = now_ + limits.rest;
  } else {
    snapshot_wanted_ = true;
    snapshot_pause_ = snapshot_pause_ == 0 ? limits.first_pause : std::min(2 * snapshot_pause_, limits.longest_pause);
    snapshot_at_ = now_ + snapshot_pause_;
  }
  if (!recover_to_) FlushWaiting(GapReason::kNotInReplay);
}

}  // namespace kvwire
