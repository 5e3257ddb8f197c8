// SPDX-License-Identifier: Apache-2.0
// EventStream's part about answers that contradict what comes live, and about beginning anew not too often.
#include <utility>

#include "kv_events/subscribe/event_stream.h"

namespace kvwire {

namespace {

// What an answer went past may still be on its way.
constexpr MonotonicNanos kAnswerGrace = 10'000'000'000;
// Clocks are set, by a little.
constexpr double kClockSlack = 1.0;
constexpr MonotonicNanos kProofPause = 1'000'000'000;

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

// Of a live message below the next number: what it contradicts, if it does not repeat what was applied.
std::optional<Contradiction> EventStream::Contradicted(const Waiting& message) const {
  const std::optional<std::uint64_t> content = applied_.Find(message.sequence);
  if (content) {
    if (*content == AppliedPayloads::ContentOf(message.frames[2])) return std::nullopt;
    return Contradiction::kLiveDiffers;
  }
  // Nobody publishes a number after a higher one. Without times only how long ago the answer was can tell.
  const auto decoded = DecodeBatch(message.frames[2], decode_);
  const bool timed = decoded && !decoded->without_time && newest_ts_ > 0;
  const bool late = timed ? decoded->batch.ts > newest_ts_ + kClockSlack : now_ - answered_at_ >= kAnswerGrace;
  return late ? std::optional(Contradiction::kLiveBehind) : std::nullopt;
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
  Forget();
  publisher_ = Publisher::kUnknown;
  const bool back = contradiction == Contradiction::kNumbersBack;
  keeper_.Note(back ? StreamFact::kNumbersBack : StreamFact::kContradicted);
  proof_at_ = 0;
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

// Whether live messages and answers are of one publisher, the replay of a message that came live tells.
void EventStream::AskForProof() {
  if (!keeper_.contradicted()) return;
  if (traits_.replay == ReplayForm::kState) {
    keeper_.Note(StreamFact::kAgreed);  // the live message is the one that follows the state
  } else if (!asking_ && !interrupted_ && now_ >= proof_at_) {
    proof_at_ = now_ + kProofPause;
    question_due_ = proof_due_ = true;
  }
}

}  // namespace kvwire
