// SPDX-License-Identifier: Apache-2.0
#include "kv_events/event_recorder.h"

#include <cassert>
#include <tuple>
#include <unordered_set>

#include <fmt/format.h>

namespace kvwire {

// Invariants with track_state: every entry of a shelf has copies >= 1 and announced >= copies under Removals::kExact;
// the digest is the digest of the entries.

namespace {

std::string ParentText(const std::optional<BlockHash>& parent) { return parent ? parent->ToHex() : "none"; }

std::string Describe(const Divergence& found, const std::optional<BlockHash>& resident_parent,
                     const std::optional<BlockHash>& announced_parent) {
  std::string what;
  switch (found.kind) {
    case Divergence::Kind::kNotAnnounced:
      what = "resident but not announced";
      break;
    case Divergence::Kind::kNotResident:
      what = "announced but not resident";
      break;
    case Divergence::Kind::kWrongParent:
      what = fmt::format("resident with parent {} but announced with parent {}", ParentText(resident_parent),
                         ParentText(announced_parent));
      break;
  }
  return fmt::format("block {} of group {} in {} is {}", found.hash.ToHex(), found.group, found.medium, what);
}

// Keeps the first of the divergences it is shown.
class FirstDivergence {
 public:
  void Offer(Divergence::Kind kind, const BlockHash& hash, std::uint32_t group, const std::string& medium,
             const std::optional<BlockHash>& resident_parent, const std::optional<BlockHash>& announced_parent) {
    if (first_ && std::tie(first_->group, first_->medium, first_->hash) <= std::tie(group, medium, hash)) return;
    first_ = Divergence{kind, hash, group, medium, {}};
    first_->message = Describe(*first_, resident_parent, announced_parent);
  }

  std::optional<Divergence> Take() { return std::move(first_); }

 private:
  std::optional<Divergence> first_;
};

}  // namespace

EventRecorder::EventRecorder(Options options, EventPublisher* publisher) : options_(options), publisher_(publisher) {
  assert(publisher != nullptr);
}

EventRecorder::Shelf& EventRecorder::ShelfOf(const std::optional<std::uint32_t>& group, std::string_view medium) {
  return shelves_[ShelfKey(group.value_or(0), CanonicalMedium(medium))];
}

void EventRecorder::Store(const BlockStored& stored) { Record(stored, Cause::kStore); }

void EventRecorder::Reuse(const BlockStored& stored) { Record(stored, Cause::kReuse); }

void EventRecorder::Record(const BlockStored& stored, Cause cause) {
  if (!options_.enabled || stored.block_hashes.empty()) return;
  BlockStored event = stored;
  if (!event.medium) event.medium = kMediumGpu;
  pending_.Add(event);
  if (!options_.track_state) return;

  const std::uint32_t group = event.group_idx.value_or(0);
  Shelf& shelf = ShelfOf(event.group_idx, *event.medium);
  std::optional<BlockHash> parent = event.parent_block_hash;
  for (const BlockHash& hash : event.block_hashes) {
    Held& held = shelf[hash];
    if (held.copies == 0) digest_.Add(group, *event.medium, hash.Low64());
    if (cause == Cause::kStore || held.copies == 0) ++held.copies;
    ++held.announced;
    held.parent = parent;
    parent = hash;
  }
}

void EventRecorder::Remove(const BlockRemoved& removed) {
  if (!options_.enabled || removed.block_hashes.empty()) return;
  BlockRemoved event = removed;
  if (!event.medium) event.medium = kMediumGpu;
  if (!options_.track_state) {
    pending_.Add(event);
    return;
  }
  TakeCopies(event, *event.medium);
  if (options_.removals == Removals::kPerCopy) {
    pending_.Add(event);
  } else {
    AddRemovals(event);
  }
}

// Takes one copy per listed hash and leaves in leaving_ what has none left, in the order listed.
void EventRecorder::TakeCopies(const BlockRemoved& removed, std::string_view medium) {
  leaving_.clear();
  const std::uint32_t group = removed.group_idx.value_or(0);
  Shelf& shelf = ShelfOf(removed.group_idx, medium);
  for (const BlockHash& hash : removed.block_hashes) {
    const auto found = shelf.find(hash);
    if (found == shelf.end()) {
      leaving_.push_back({hash, 1});
      continue;
    }
    if (--found->second.copies > 0) continue;
    leaving_.push_back({hash, found->second.announced});
    digest_.Remove(group, medium, hash.Low64());
    shelf.erase(found);
  }
}

// One event for what was announced at least once, one for what was announced at least twice, and so on.
void EventRecorder::AddRemovals(BlockRemoved removed) {
  for (std::uint32_t announced = 1;; ++announced) {
    round_.clear();
    for (const Leaving& leaving : leaving_) {
      if (leaving.times >= announced) round_.push_back(leaving.hash);
    }
    if (round_.empty()) return;
    removed.block_hashes = round_;
    pending_.Add(removed);
  }
}

void EventRecorder::Clear() {
  if (!options_.enabled) return;
  pending_.Add(AllBlocksCleared{});
  for (auto& [key, shelf] : shelves_) shelf.clear();
  digest_.Clear();
}

PublishResult EventRecorder::EndStep() {
  if (pending_.empty()) return PublishResult::kAccepted;
  pending_.ts = options_.clock->WallSeconds();
  const PublishResult result = publisher_->Publish(std::move(pending_));
  pending_ = publisher_->TakeSpare();
  return result;
}

std::optional<Divergence> EventRecorder::Audit(const StateSource& walk) const {
  assert(options_.track_state);
  if (!options_.enabled) return std::nullopt;
  FirstDivergence first;
  std::unordered_set<const Held*> met;
  walk.Walk([&](const ResidentBlock& block) {
    const ShelfKey key(block.group, CanonicalMedium(block.medium));
    const auto shelf = shelves_.find(key);
    if (shelf != shelves_.end()) {
      const auto found = shelf->second.find(block.hash);
      if (found != shelf->second.end()) {
        met.insert(&found->second);
        if (found->second.parent == block.parent) return;
        first.Offer(Divergence::Kind::kWrongParent, block.hash, key.first, key.second, block.parent,
                    found->second.parent);
        return;
      }
    }
    first.Offer(Divergence::Kind::kNotAnnounced, block.hash, key.first, key.second, block.parent, std::nullopt);
  });
  for (const auto& [key, shelf] : shelves_) {
    for (const auto& [hash, held] : shelf) {
      if (met.contains(&held)) continue;
      first.Offer(Divergence::Kind::kNotResident, hash, key.first, key.second, std::nullopt, held.parent);
    }
  }
  return first.Take();
}

}  // namespace kvwire
