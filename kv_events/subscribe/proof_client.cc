// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/proof_client.h"

#include <optional>
#include <vector>

#include "kv_events/wire/frames.h"

namespace kvwire {

void ProofClient::Start(const AppliedPayloads::Entry& heard, MonotonicNanos now) {
  heard_ = heard;
  messages_ = 0;
  const SequenceFrame frame = EncodeSequence(heard.sequence);
  ask_.Start({frame.begin(), frame.end()}, idle_, now);
}

ProofClient::Outcome ProofClient::Poll(MonotonicNanos now) {
  const std::optional<InFrames> received = ask_.Poll(now);
  if (!received && !ask_.Silent(now)) return Outcome::kNothing;
  const Outcome outcome = received ? Judge(*received) : Outcome::kSilent;
  if (outcome != Outcome::kNothing) Stop();
  return outcome;
}

ProofClient::Outcome ProofClient::Judge(const InFrames& frames) {
  const std::vector<FrameView> views(frames.begin(), frames.end());
  const std::optional<ReplayMessage> message = ParseReplayMessage(views);
  if (!message || message->end) return Outcome::kAbsent;
  if (message->sequence > heard_.sequence) return Outcome::kGone;
  if (message->sequence < heard_.sequence) return ++messages_ < kMost ? Outcome::kNothing : Outcome::kGone;
  return AppliedPayloads::ContentOf(message->payload) == heard_.content ? Outcome::kSame : Outcome::kDiffers;
}

}  // namespace kvwire
