// SPDX-License-Identifier: Apache-2.0
// EventStream's part about answers that contradict what comes live, and about beginning anew not too often.
#include <algorithm>
#include <optional>
#include <utility>

#include "kv_events/subscribe/event_stream.h"

namespace kvwire {

namespace {

// What an answer went past may still be on its way.
constexpr MonotonicNanos kAnswerGrace = 10'000'000'000;
// Clocks are set, by a little.
constexpr double kClockSlack = 1.0;
constexpr MonotonicNanos kProofPause = 1'000'000'000;
constexpr MonotonicNanos kLongestProofPause = 60'000'000'000;

}  // namespace

std::string_view ToString(Contradiction contradiction) noexcept {
  switch (contradiction) {
    case Contradiction::kLiveDiffers:
      return "came live with another content than it has in an answer: the replay address may be another publisher's";
    case Contradiction::kLiveBehind:
      return "came live, and was made after what an answer has behind it: the replay address may be another "
             "publisher's";
    case Contradiction::kNumbersBack:
      return "is to come next by the publisher's word, and what was received is past it";
  }
  return "unknown";
}

// Of a live message below the next number: whether it repeats what was applied. If not, the stream began anew.
bool EventStream::JudgeRepeated(const Waiting& message) {
  Hear(message);
  if (const std::optional<AppliedPayloads::Entry> known = applied_.Find(message.sequence)) {
    const bool same = known->content == heard_->content;
    if (!same) Contradict(message.sequence, Contradiction::kLiveDiffers);
    if (same && known->answered) Agree();
    return same;
  }
  // Nobody publishes a number after a higher one. Without times only how long ago the answer was can tell.
  const auto decoded = DecodeBatch(message.frames[2], decode_);
  const bool timed = decoded && !decoded->without_time && newest_ts_ > 0;
  const bool late = timed ? decoded->batch.ts > newest_ts_ + kClockSlack : now_ - answered_at_ >= kAnswerGrace;
  if (late) Contradict(message.sequence, Contradiction::kLiveBehind);
  return !late;
}

// What is held is nobody's state: the stream begins anew, and stays in doubt until live messages and answers agree.
void EventStream::Contradict(SequenceNumber number, Contradiction contradiction) {
  ++stats_.contradictions;
  if (taking_) AbandonSnapshot();
  replay_->Stop();
  if (hello_) hello_->Stop();
  StopQuestion();
  for (const Waiting& waiting : std::exchange(waiting_, {})) {
    kept_bytes_ -= waiting.bytes;
    ++stats_.left_out;
  }
  if (recover_to_) EndRecovery(GapReason::kRestarted);
  sink_->OnContradiction(number, contradiction);
  const std::optional<AppliedPayloads::Entry> heard = heard_;
  Forget();
  heard_ = heard;
  publisher_ = Publisher::kUnknown;
  // With nothing that came live only the answers contradict each other.
  keeper_.Note(heard ? StreamFact::kContradicted : StreamFact::kNumbersBack);
  proof_at_ = proof_pause_ = 0;
  Rest();
  BeginWithConnected();
}

// A life that began soon after another: nobody is asked at once. What comes live meanwhile is left to the replay.
void EventStream::Rest() {
  const MonotonicNanos pause = beginnings_.Next(now_);
  if (pause == 0) return;
  rest_until_ = now_ + pause;
  if (!keeper_.contradicted()) keeper_.Note(StreamFact::kUnsteady);
}

void EventStream::Hear(const Waiting& message) {
  heard_ = AppliedPayloads::Entry{message.sequence, AppliedPayloads::ContentOf(message.frames[2])};
}

// An answer's message was applied.
void EventStream::NoteAnswered(const AppliedPayloads::Entry& answered) {
  by_answers_ = true;
  live_since_ = false;
  if (!heard_ || answered.sequence != heard_->sequence) return;
  if (answered.content == heard_->content) {
    Agree();
  } else {
    proof_wanted_ = true;
  }
}

// A live message was applied.
void EventStream::NoteLive() {
  heard_ = applied_.last();
  if (traits_.replay == ReplayForm::kState) {
    keeper_.Note(StreamFact::kAgreed);  // the live message is the one that follows the state
  } else if (keeper_.contradicted()) {
    proof_pause_ = 0;  // the replay has it, if any
    proof_at_ = std::min(proof_at_, now_ + kProofPause);
  } else if (by_answers_ && !proven_ && !std::exchange(proof_asked_, true)) {
    proof_wanted_ = true;
  }
}

void EventStream::Agree() {
  proven_ = true;
  proof_wanted_ = false;
  proof_pause_ = 0;
  keeper_.Note(StreamFact::kAgreed);
}

// Whether live messages and answers are of one publisher, the replay of a message that came live tells. One step;
// false when there is nothing to do.
bool EventStream::WorkOnProof() {
  if (!proof_) return false;
  if (!proof_->active()) {
    const bool due = heard_ && now_ >= proof_at_ && (proof_wanted_ || keeper_.contradicted());
    const bool free = !asking_ && !question_due_ && !interrupted_ && !taking_ && !recover_to_ && peers_.present() <= 1;
    if (!due || !free || Away() || Resting() || stopping_) return false;
    proof_pause_ = proof_pause_ == 0 ? kProofPause : std::min(2 * proof_pause_, kLongestProofPause);
    proof_at_ = now_ + proof_pause_;
    proof_->Start(*heard_, now_);
  }
  const ProofClient::Outcome outcome = proof_->Poll(now_);
  if (outcome == ProofClient::Outcome::kNothing) return false;
  if (LookAtPeers()) return true;
  TakeProof(outcome);
  return true;
}

void EventStream::TakeProof(ProofClient::Outcome outcome) {
  const bool doubted = keeper_.contradicted();
  switch (outcome) {
    case ProofClient::Outcome::kSame:
      Agree();
      if (!doubted || !by_answers_) return;
      // The answers that are held are those that were not believed.
      Forget();
      BeginWithConnected();
      return;
    case ProofClient::Outcome::kDiffers:
      proof_wanted_ = false;
      if (!doubted) Contradict(proof_->heard().sequence, Contradiction::kLiveDiffers);
      return;
    case ProofClient::Outcome::kSilent:
      proof_wanted_ = proof_wanted_ && proof_pause_ < kLongestProofPause;
      return;
    case ProofClient::Outcome::kGone:
    case ProofClient::Outcome::kAbsent:
    case ProofClient::Outcome::kNothing:
      proof_wanted_ = false;
      return;
  }
}

}  // namespace kvwire
