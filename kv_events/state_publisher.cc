// SPDX-License-Identifier: Apache-2.0
#include "kv_events/state_publisher.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <variant>

// Phases: live; a loss makes it silent; the Clear that heals it makes it renewing, which ends with the walk. A loss
// while it is renewing makes it silent again.

namespace kvwire {

StatePublisher::StatePublisher(const Options& options, EventPublisher* publisher, AnnouncedState* state)
    : options_(options),
      publisher_(publisher),
      state_(state),
      append_([this](const BlockStored& block, std::uint32_t announcements) { Append(block, announcements); }) {
  assert(publisher != nullptr);
}

PublishResult StatePublisher::Publish(KVEventBatch&& recorded) {
  if (state_ == nullptr) return recorded.empty() ? PublishResult::kAccepted : Send(std::move(recorded));
  const StateWants wants = publisher_->state_wants();
  NoteResyncs(wants);
  if (phase_ == Phase::kSilent) {
    // Whatever was recorded belongs to the era that ends.
    Suppress(std::move(recorded));
    if (MayHeal()) Heal();
    return PublishResult::kAccepted;
  }
  const PublishResult result = recorded.empty() ? PublishResult::kAccepted : Send(std::move(recorded));
  // A piece that makes the queue overflow would be lost in vain.
  if (phase_ == Phase::kSilent || closed_ || !publisher_->HasRoom()) return result;
  if (phase_ == Phase::kRenewing) {
    RenewSome(TakeSpare());
  } else {
    WalkSnapshot(wants);
  }
  return result;
}

// Who has seen nothing yet, and has nothing to see, needs no Clear.
void StatePublisher::NoteResyncs(const StateWants& wants) {
  if (wants.resyncs == resyncs_met_) return;
  resyncs_met_ = wants.resyncs;
  if (!published_ && state_->digest().empty()) return;
  if (phase_ != Phase::kSilent) BeSilent();
}

void StatePublisher::BeSilent() {
  if (phase_ == Phase::kRenewing) back_off_ = std::clamp<std::uint64_t>(2 * back_off_, 1, kLongestBackOff);
  calls_left_ = back_off_;
  phase_ = Phase::kSilent;
}

bool StatePublisher::MayHeal() {
  if (closed_) return false;
  if (calls_left_ > 0) {
    --calls_left_;
    return false;
  }
  return publisher_->HasRoom();
}

void StatePublisher::Suppress(KVEventBatch&& recorded) {
  if (recorded.empty()) return;
  ++stats_.suppressed;
  recorded.Clear();
  spare_ = std::move(recorded);
  has_spare_ = true;
}

void StatePublisher::Heal() {
  state_->BeginEra();
  state_->BeginWalk(WalkKind::kRenew);
  phase_ = Phase::kRenewing;
  KVEventBatch batch = TakeSpare();
  batch.Add(AllBlocksCleared{});
  const std::uint64_t dropped = stats_.dropped;
  RenewSome(std::move(batch));
  if (stats_.dropped == dropped) ++stats_.resyncs;
}

// The next piece of the renewing walk, behind what the batch has.
void StatePublisher::RenewSome(KVEventBatch&& batch) {
  const bool ends = !WalkSome(WalkKind::kRenew, &batch);
  if (batch.empty()) {
    spare_ = std::move(batch);
    has_spare_ = true;
  } else if (Send(std::move(batch)) == PublishResult::kAccepted) {
    stats_.renewed += num_blocks_;
  }
  if (!ends || phase_ != Phase::kRenewing) return;
  phase_ = Phase::kLive;
  back_off_ = 0;
}

bool StatePublisher::AwaitsSnapshot(const StateWants& wants) const noexcept {
  return stats_.walks < wants.walks && stats_.chunks < wants.chunks;
}

// The first chunk is handed over when the walk begins, also without blocks: what changes from then on, the consumers of
// the walk learn from the events.
void StatePublisher::WalkSnapshot(const StateWants& wants) {
  if (!AwaitsSnapshot(wants)) return;
  StateChunk chunk;
  chunk.walk = stats_.walks + 1;
  chunk.first = !walk_begun_;
  chunk.blocks = TakeSpare();
  if (!walk_begun_) state_->BeginWalk(WalkKind::kSnapshot);
  walk_begun_ = true;
  chunk.last = !WalkSome(WalkKind::kSnapshot, &chunk.blocks);
  if (chunk.blocks.empty() && !chunk.first && !chunk.last) {
    spare_ = std::move(chunk.blocks);
    has_spare_ = true;
    return;
  }
  Stamp(&chunk.blocks);
  const bool last = chunk.last;
  switch (publisher_->PublishChunk(std::move(chunk))) {
    case PublishResult::kAccepted:
      ++stats_.chunks;
      stats_.walked += num_blocks_;
      if (!last) break;
      ++stats_.walks;
      walk_begun_ = false;
      break;
    case PublishResult::kDroppedQueueFull:
      walk_begun_ = false;  // it has a hole
      break;
    case PublishResult::kDroppedClosed:
    case PublishResult::kUsedAfterFork:
      closed_ = true;
      break;
  }
}

bool StatePublisher::WalkSome(WalkKind kind, KVEventBatch* blocks) {
  target_ = blocks;
  num_blocks_ = 0;
  return state_->WalkSome(kind, options_.blocks_per_chunk, append_);
}

void StatePublisher::Append(const BlockStored& block, std::uint32_t announcements) {
  static const ExtraKeys kNoKeys;
  ++num_blocks_;
  if (ContinuesLast(block)) {
    const auto keys = block.extra_keys.per_block;
    target_->AppendBlock(block.block_hashes.front(), block.token_ids, keys.empty() ? kNoKeys : keys.front());
  } else {
    target_->Add(block);
  }
  for (std::uint32_t i = 1; i < announcements; ++i) target_->Add(block);
}

// Whether the block is the child of the last one, and alike.
bool StatePublisher::ContinuesLast(const BlockStored& block) const {
  if (target_->empty() || !block.parent_block_hash) return false;
  const KVEventBatch::Event event = target_->at(target_->size() - 1);
  const auto* const last = std::get_if<BlockStored>(&event);
  return last != nullptr && last->block_hashes.back() == *block.parent_block_hash &&
         last->block_size == block.block_size && last->group_idx == block.group_idx && last->medium == block.medium &&
         last->token_ids.empty() == block.token_ids.empty() && last->lora_id == block.lora_id &&
         last->lora_name == block.lora_name && last->extra_keys.absent == block.extra_keys.absent &&
         last->kv_cache_spec_kind == block.kv_cache_spec_kind &&
         last->kv_cache_spec_sliding_window == block.kv_cache_spec_sliding_window && last->locality == block.locality &&
         last->ownership == block.ownership && last->session_id == block.session_id;
}

void StatePublisher::Stamp(KVEventBatch* batch) const {
  batch->ts = options_.clock->WallSeconds();
  if (state_ == nullptr) return;
  batch->digest = state_->digest();
  batch->has_digest = true;
}

PublishResult StatePublisher::Send(KVEventBatch&& batch) {
  Stamp(&batch);
  published_ = true;
  ++stats_.batches;
  stats_.events += batch.size();
  const PublishResult result = publisher_->Publish(std::move(batch));
  switch (result) {
    case PublishResult::kAccepted:
      return result;
    case PublishResult::kDroppedQueueFull:
      ++stats_.losses;
      if (state_ != nullptr && publisher_->resyncs_after_loss()) BeSilent();
      break;
    case PublishResult::kDroppedClosed:
    case PublishResult::kUsedAfterFork:
      closed_ = true;
      break;
  }
  ++stats_.dropped;
  return result;
}

bool StatePublisher::HasStateWork() const noexcept {
  if (state_ == nullptr || closed_) return false;
  if (phase_ != Phase::kLive) return true;
  const StateWants wants = publisher_->state_wants();
  return wants.resyncs != resyncs_met_ || AwaitsSnapshot(wants);
}

bool StatePublisher::StateWorkWaits() const noexcept {
  if (!HasStateWork()) return false;
  return (phase_ == Phase::kSilent && calls_left_ > 0) || !publisher_->HasRoom();
}

KVEventBatch StatePublisher::TakeSpare() noexcept {
  if (!has_spare_) return publisher_->TakeSpare();
  has_spare_ = false;
  return std::move(spare_);
}

}  // namespace kvwire
