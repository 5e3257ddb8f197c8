// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/mirror.h"

#include <algorithm>
#include <tuple>
#include <variant>

#include "kv_events/digest.h"

namespace kvwire {

Mirror::Mirror(Removals removals, Report report, StateReport state_report)
    : removals_(removals), report_(std::move(report)), state_report_(std::move(state_report)) {}

bool Mirror::Holds(std::uint32_t group, std::string_view medium, std::uint64_t low64) const {
  const std::optional<HeldBlocks::ShelfId> shelf = held_.FindShelf(group, medium);
  return shelf && held_.Count(*shelf, low64) > 0;
}

MirrorBlock Mirror::BlockOf(HeldBlocks::ShelfId shelf, std::uint64_t low64) const {
  return {held_.shelf(shelf).group, held_.shelf(shelf).medium, low64};
}

void Mirror::Copy(const std::function<void(const MirrorBlock&)>& visit) const {
  held_.ForEach([&](HeldBlocks::ShelfId shelf, std::uint64_t low64, std::uint32_t) { visit(BlockOf(shelf, low64)); });
}

void Mirror::OnBatch(const StreamMessage& message, const DecodedBatch& batch) {
  next_ = message.sequence + 1;
  touched_.clear();
  bool cleared = false;
  for (std::size_t i = 0; i < batch.batch.size(); ++i) {
    const KVEventBatch::Event event = batch.batch.at(i);
    if (const auto* stored = std::get_if<BlockStored>(&event)) {
      Take(&held_, *stored, !cleared);
      if (building_) Take(&*building_, *stored, false);
    } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
      Take(&held_, *removed, !cleared);
      if (building_) Take(&*building_, *removed, false);
    } else {
      cleared = true;
      held_.Clear();
      building_.reset();
    }
  }
  if (cleared) {
    ReportReplaced();
  } else {
    ReportChanges();
  }
}

void Mirror::Take(HeldBlocks* blocks, const BlockStored& stored, bool track) {
  const HeldBlocks::ShelfId shelf = blocks->ShelfOf(stored.group_idx, stored.medium);
  for (const BlockHash& hash : stored.block_hashes) {
    Touch(*blocks, shelf, hash.Low64(), track);
    blocks->Add(shelf, hash.Low64());
  }
}

void Mirror::Take(HeldBlocks* blocks, const BlockRemoved& removed, bool track) {
  const HeldBlocks::ShelfId shelf = blocks->ShelfOf(removed.group_idx, removed.medium);
  for (const BlockHash& hash : removed.block_hashes) {
    Touch(*blocks, shelf, hash.Low64(), track);
    if (removals_ == Removals::kExact) {
      blocks->SetCount(shelf, hash.Low64(), 0);
    } else {
      blocks->Remove(shelf, hash.Low64());
    }
  }
}

void Mirror::Touch(const HeldBlocks& blocks, HeldBlocks::ShelfId shelf, std::uint64_t low64, bool track) {
  if (track && report_) touched_.push_back({shelf, low64, blocks.Count(shelf, low64) > 0});
}

void Mirror::ReportChanges() {
  if (!report_ || touched_.empty()) return;
  // The first touch of a block knows what was before.
  const auto place = [](const Touched& touched) { return std::tie(touched.shelf, touched.low64); };
  std::ranges::stable_sort(touched_, {}, place);
  const auto same = [place](const Touched& a, const Touched& b) { return place(a) == place(b); };
  touched_.erase(std::unique(touched_.begin(), touched_.end(), same), touched_.end());
  MirrorChanges changes;
  changes.next = next_;
  for (const Touched& touched : touched_) {
    const bool is_held = held_.Count(touched.shelf, touched.low64) > 0;
    if (is_held == touched.was_held) continue;
    (is_held ? changes.added : changes.removed).push_back(BlockOf(touched.shelf, touched.low64));
  }
  if (!changes.added.empty() || !changes.removed.empty()) report_(changes);
}

void Mirror::ReportReplaced() {
  if (!report_) return;
  MirrorChanges changes;
  changes.next = next_;
  changes.replaced = true;
  changes.added.reserve(held_.size());
  Copy([&changes](const MirrorBlock& block) { changes.added.push_back(block); });
  report_(changes);
}

void Mirror::BeginAgain() {
  held_.Clear();
  building_.reset();
  next_ = 0;
  ReportReplaced();
}

void Mirror::OnUndecodable(const StreamMessage& message, const DecodeError&) { next_ = message.sequence + 1; }

void Mirror::OnRestart(SequenceNumber, std::optional<SequenceNumber>) { BeginAgain(); }

void Mirror::OnContinuity(Continuity continuity) {
  if (continuity == Continuity::kForgotten) BeginAgain();
}

void Mirror::OnSnapshotBegin(SequenceNumber) { building_.emplace(); }

void Mirror::OnSnapshotChunk(SequenceNumber, const DecodedBatch& chunk) { building_->ApplyChunk(chunk.batch); }

void Mirror::OnSnapshotEnd(SequenceNumber next, const std::optional<DigestEntries>&) {
  held_ = std::move(*building_);
  building_.reset();
  next_ = next;
  ReportReplaced();
}

void Mirror::OnState(const StreamStatus& status) {
  if (state_report_) state_report_(status);
}

}  // namespace kvwire
