// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/snapshot_client.h"

#include <utility>
#include <variant>
#include <vector>

#include "kv_events/wire/frames.h"

namespace kvwire {

namespace {

// Stored blocks, and at most one AllBlocksCleared in front of them.
bool IsState(const KVEventBatch& batch) {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const KVEventBatch::Event event = batch.at(i);
    const bool leading_clear = i == 0 && std::holds_alternative<AllBlocksCleared>(event);
    if (!leading_clear && !std::holds_alternative<BlockStored>(event)) return false;
  }
  return true;
}

bool HoldsBlocks(const KVEventBatch& batch) {
  return !batch.empty() && (batch.size() > 1 || std::holds_alternative<BlockStored>(batch.at(0)));
}

}  // namespace

SnapshotClient::SnapshotClient(ReplayLinkFactory factory, ReplayForm form, const SnapshotLimits& limits,
                               const DecodeOptions& decode)
    : ask_(std::move(factory)), form_(form), limits_(limits), decode_(decode) {
  decode_.strict = true;
}

void SnapshotClient::Start(SequenceNumber next, MonotonicNanos now) {
  Stop();
  give_up_at_ = now + limits_.total;
  next_ = next;
  last_.reset();
  if (form_ == ReplayForm::kHistory) {
    ask_.Start(EncodeExtensionRequest({ExtensionKind::kSnapshot, 0}), limits_.idle, now);
  } else {
    const SequenceFrame start = EncodeSequence(next);
    ask_.Start({start.begin(), start.end()}, limits_.idle, now);
  }
}

void SnapshotClient::Stop() noexcept {
  ask_.Stop();
  state_.reset();
  end_due_ = false;
}

SnapshotClient::Outcome SnapshotClient::End(Outcome outcome) {
  Stop();
  return outcome;
}

SnapshotClient::Outcome SnapshotClient::Poll(MonotonicNanos now, SnapshotPiece* piece) {
  if (std::exchange(end_due_, false)) {
    *piece = SnapshotPiece{*last_, {}, true, std::nullopt};
    return Outcome::kPiece;
  }
  Outcome outcome = Outcome::kNothing;
  while (outcome == Outcome::kNothing) {
    const std::optional<InFrames> received = ask_.Poll(now);
    if (now >= give_up_at_ || (!received && ask_.Silent(now))) return End(Outcome::kFailed);
    if (!received) break;
    outcome = form_ == ReplayForm::kHistory ? TakeChunked(*received, piece) : TakeState(*received, piece);
  }
  return outcome;
}

SnapshotClient::Outcome SnapshotClient::TakeChunked(const InFrames& frames, SnapshotPiece* piece) {
  const std::vector<FrameView> views(frames.begin(), frames.end());
  const std::optional<ExtensionMessage> message = ParseExtensionMessage(views);
  if (!message) {
    const std::optional<ReplayMessage> mark = ParseReplayMessage(views);
    return End(mark && mark->end && !last_ ? Outcome::kRefused : Outcome::kFailed);
  }
  if (last_ && message->number < *last_) return End(Outcome::kFailed);
  *piece = SnapshotPiece{message->number, {}, message->name == kSnapshotEndName, std::nullopt};
  if (piece->end) {
    if (message->payload.empty()) return End(Outcome::kPiece);
    auto digest = DecodeDigest(message->payload);
    if (!digest) return End(Outcome::kFailed);
    piece->digest = *std::move(digest);
    return End(Outcome::kPiece);
  }
  if (message->name != kChunkName || !Read(message->payload, piece)) return End(Outcome::kFailed);
  last_ = message->number;
  return Outcome::kPiece;
}

SnapshotClient::Outcome SnapshotClient::TakeState(const InFrames& frames, SnapshotPiece* piece) {
  const std::vector<FrameView> views(frames.begin(), frames.end());
  const std::optional<ReplayMessage> message = ParseReplayMessage(views);
  if (!message) return End(Outcome::kFailed);
  if (!message->end) {
    SnapshotPiece state;
    if (state_ || !Read(message->payload, &state)) return End(Outcome::kFailed);
    // A watermark of 0 above an empty state cannot be told from "nothing was sent".
    const bool nothing_sent = message->sequence == 0 && next_ == 0 && !HoldsBlocks(state.blocks.batch);
    state.number = nothing_sent ? 0 : message->sequence + 1;
    state_ = std::move(state);
    return Outcome::kNothing;
  }
  if (!state_) return End(Outcome::kRefused);
  *piece = *std::move(state_);
  last_ = piece->number;
  Stop();
  end_due_ = true;
  return Outcome::kPiece;
}

bool SnapshotClient::Read(FrameView payload, SnapshotPiece* piece) const {
  auto decoded = DecodeBatch(payload, decode_);
  if (!decoded || !IsState(decoded->batch)) return false;
  piece->blocks = *std::move(decoded);
  return true;
}

}  // namespace kvwire
