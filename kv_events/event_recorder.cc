// SPDX-License-Identifier: Apache-2.0
#include "kv_events/event_recorder.h"

#include <cassert>
#include <tuple>
#include <type_traits>
#include <unordered_set>
#include <variant>

#include <fmt/format.h>

namespace kvwire {

// Invariants with track_state: every entry of a shelf has copies >= 1 and a place of its own; the digest is that of the
// entries with AnnouncedNow() > 0.

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

EventRecorder::EventRecorder(Options options, EventPublisher* publisher)
    : options_(std::move(options)),
      stream_({options_.blocks_per_chunk, options_.clock}, publisher,
              options_.enabled && options_.track_state ? this : nullptr) {}

EventRecorder::~EventRecorder() = default;

EventRecorder::Shelf& EventRecorder::ShelfOf(const std::optional<std::uint32_t>& group, std::string_view medium) {
  ShelfKey key(group.value_or(0), CanonicalMedium(medium));
  const auto found = shelves_.find(key);
  if (found != shelves_.end()) return found->second;
  Shelf shelf{key.first, key.second, {}};
  return shelves_.emplace(std::move(key), std::move(shelf)).first->second;
}

void EventRecorder::Store(const BlockStored& stored) { Record(stored, Cause::kStore); }

void EventRecorder::Reuse(const BlockStored& stored) { Record(stored, Cause::kReuse); }

void EventRecorder::Record(const BlockStored& stored, Cause cause) {
  if (!options_.enabled || stored.block_hashes.empty()) return;
  BlockStored event = stored;
  if (!event.medium) event.medium = kMediumGpu;
  if (!options_.track_state) {
    pending_.Add(event);
    return;
  }
  Shelf& shelf = ShelfOf(event.group_idx, *event.medium);
  RenewAncestors(event.parent_block_hash, &shelf);
  pending_.Add(event);
  std::optional<BlockHash> parent = event.parent_block_hash;
  for (std::size_t i = 0; i < event.block_hashes.size(); ++i) {
    RecordBlock(event, i, parent, &shelf, cause);
    parent = event.block_hashes[i];
  }
}

void EventRecorder::RecordBlock(const BlockStored& event, std::size_t i, const std::optional<BlockHash>& parent,
                                Shelf* shelf, Cause cause) {
  const auto [found, is_new] = shelf->blocks.try_emplace(event.block_hashes[i]);
  Held& held = found->second;
  if (is_new) {
    if (free_places_.empty()) {
      held.place = static_cast<std::uint32_t>(places_.size());
      places_.emplace_back();
    } else {
      held.place = free_places_.back();
      free_places_.pop_back();
    }
    places_[held.place] = Place{shelf, &*found};
  }
  const bool is_copy = cause == Cause::kStore || is_new;
  if (is_copy) ++held.copies;
  // Removals per copy do not take reports back.
  if (is_copy || options_.removals == Removals::kExact || AnnouncedNow(held) == 0) {
    Announce(found->first, shelf, &held, 1);
  }
  held.parent = parent;
  if (held.content == nullptr && options_.shadow_bytes > 0) Remember(event, i, &held);
}

void EventRecorder::Announce(const BlockHash& hash, Shelf* shelf, Held* held, std::uint32_t times) {
  const std::uint32_t before = AnnouncedNow(*held);
  if (before == 0) digest_.Add(shelf->group, shelf->medium, hash.Low64());
  held->era = era_;
  held->announced = before + times;
}

// Unless there is no room.
void EventRecorder::Remember(const BlockStored& event, std::size_t i, Held* held) {
  // Who asked for it is not part of the content.
  BlockStored kept = event;
  kept.session_id.reset();
  Content content;
  const std::size_t tokens = event.token_ids.size() / event.block_hashes.size();
  const std::span<const TokenId> own = event.token_ids.subspan(i * tokens, tokens);
  content.token_ids.assign(own.begin(), own.end());
  if (!event.extra_keys.per_block.empty()) content.extra_keys = event.extra_keys.per_block[i];
  const std::size_t bytes = BytesOf(content);
  if (bytes > options_.shadow_bytes - shadow_bytes_) return;
  shadow_bytes_ += bytes;
  content.attributes = attributes_.Acquire(kept);
  held->content = std::make_unique<Content>(std::move(content));
}

std::size_t EventRecorder::BytesOf(const Content& content) {
  const auto text_bytes = [](const auto& key) -> std::size_t {
    using Type = std::decay_t<decltype(key)>;
    if constexpr (std::is_same_v<Type, MultimodalKey>) {
      return key.identifier.size();
    } else if constexpr (std::is_same_v<Type, OpaqueKey>) {
      return key.msgpack.size();
    } else {
      return key.size();
    }
  };
  std::size_t bytes = sizeof(Content) + content.token_ids.size() * sizeof(TokenId);
  for (const ExtraKey& key : content.extra_keys) bytes += sizeof(ExtraKey) + std::visit(text_bytes, key);
  return bytes;
}

void EventRecorder::ForgetContent(Held* held) {
  if (held->content == nullptr) return;
  shadow_bytes_ -= BytesOf(*held->content);
  attributes_.Release(held->content->attributes);
  held->content.reset();
}

void EventRecorder::Erase(Shelf* shelf, Entry* entry) {
  Held& held = entry->second;
  ForgetContent(&held);
  places_[held.place] = {};
  free_places_.push_back(held.place);
  shelf->blocks.erase(shelf->blocks.find(entry->first));
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
  AddRemovals(event);
}

// Takes one copy per listed hash and leaves in leaving_ what is to be removed at the consumers, in the order listed.
void EventRecorder::TakeCopies(const BlockRemoved& removed, std::string_view medium) {
  leaving_.clear();
  Shelf& shelf = ShelfOf(removed.group_idx, medium);
  for (const BlockHash& hash : removed.block_hashes) {
    const auto found = shelf.blocks.find(hash);
    if (found == shelf.blocks.end()) {
      leaving_.push_back({hash, 1});
      continue;
    }
    leaving_.push_back({hash, TakeCopy(hash, &shelf, &found->second)});
    if (found->second.copies == 0) Erase(&shelf, &*found);
  }
}

// How many announcements the removal takes back: none of those of an earlier era, which the stream has cleared.
std::uint32_t EventRecorder::TakeCopy(const BlockHash& hash, Shelf* shelf, Held* held) {
  const std::uint32_t announced = AnnouncedNow(*held);
  --held->copies;
  std::uint32_t removals = 0;
  switch (options_.removals) {
    case Removals::kExact:
      removals = held->copies == 0 ? announced : 0;
      break;
    case Removals::kPerCopy:
      removals = announced > 0 ? 1 : 0;
      break;
  }
  if (removals == 0) return 0;
  held->announced -= removals;
  if (held->announced == 0) digest_.Remove(shelf->group, shelf->medium, hash.Low64());
  return removals;
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
  for (auto& [key, shelf] : shelves_) {
    for (auto& [hash, held] : shelf.blocks) ForgetContent(&held);
    shelf.blocks.clear();
  }
  places_.resize(1);
  free_places_.clear();
  for (ResumableWalk<BlockKey>& walk : walks_) walk.End();
  digest_.Clear();
}

PublishResult EventRecorder::EndStep() {
  if (pending_.empty() && !stream_.HasStateWork()) return PublishResult::kAccepted;
  const PublishResult result = stream_.Publish(std::move(pending_));
  pending_ = stream_.TakeSpare();
  return result;
}

// The held blocks, by place, for a walk of one kind.
class EventRecorder::WalkedBlocks {
 public:
  WalkedBlocks(EventRecorder* recorder, WalkKind kind, const WalkVisitor& visit)
      : recorder_(*recorder), kind_(kind), visit_(visit) {}

  bool Wants(std::uint32_t place) const {
    if (place >= recorder_.places_.size() || recorder_.places_[place].entry == nullptr) return false;
    const Held& held = recorder_.places_[place].entry->second;
    return kind_ == WalkKind::kSnapshot ? recorder_.AnnouncedNow(held) > 0 : recorder_.ToBeRenewed(held) > 0;
  }
  BlockKey KeyOf(std::uint32_t place) const {
    return {recorder_.places_[place].shelf, recorder_.places_[place].entry->first};
  }
  std::uint32_t Find(const BlockKey& key, std::uint32_t /*last_seen*/) const {
    const auto found = key.shelf->blocks.find(key.hash);
    return found == key.shelf->blocks.end() ? 0 : found->second.place;
  }
  std::uint32_t ParentOf(std::uint32_t place) const {
    const Place& child = recorder_.places_[place];
    return child.entry->second.parent ? Find({child.shelf, *child.entry->second.parent}, 0) : 0;
  }
  void Visit(std::uint32_t place) {
    const Place block = recorder_.places_[place];
    Held& held = block.entry->second;
    recorder_.TellHeld(block, [&](const BlockStored& stored) {
      std::uint32_t announcements = recorder_.AnnouncedNow(held);
      if (kind_ == WalkKind::kRenew) {
        announcements = recorder_.ToBeRenewed(held);
        recorder_.Announce(block.entry->first, block.shelf, &held, announcements);
      }
      visit_(stored, announcements);
    });
  }

 private:
  EventRecorder& recorder_;
  const WalkKind kind_;
  const WalkVisitor& visit_;
};

// How many announcements bring the block into the present era.
std::uint32_t EventRecorder::ToBeRenewed(const Held& held) const {
  if (options_.removals == Removals::kPerCopy) return held.copies - AnnouncedNow(held);
  return AnnouncedNow(held) == 0 ? 1 : 0;
}

// A block under this parent is about to be announced: what the renewing walk has not reached of its ancestors comes
// before it.
void EventRecorder::RenewAncestors(const std::optional<BlockHash>& parent, Shelf* shelf) {
  if (walks_[static_cast<std::size_t>(WalkKind::kRenew)].IsOver()) return;
  const WalkVisitor add = [this](const BlockStored& block, std::uint32_t announcements) {
    for (; announcements > 0; --announcements) pending_.Add(block);
  };
  WalkedBlocks blocks(this, WalkKind::kRenew, add);
  std::vector<std::uint32_t> ancestors;
  std::uint32_t place = parent ? blocks.Find({shelf, *parent}, 0) : 0;
  // Chains that lead back to themselves end.
  while (place != 0 && blocks.Wants(place) && ancestors.size() < places_.size()) {
    ancestors.push_back(place);
    place = blocks.ParentOf(place);
  }
  for (; !ancestors.empty(); ancestors.pop_back()) {
    if (blocks.Wants(ancestors.back())) blocks.Visit(ancestors.back());
  }
}

// Once, with hash, parent, group and medium as they were announced; not at all if its content is not at hand.
void EventRecorder::TellHeld(const Place& place, const TellBlock& tell) const {
  const BlockHash& hash = place.entry->first;
  const Held& held = place.entry->second;
  bool told = false;
  const auto tell_once = [&](const BlockStored& content) {
    if (told) return;
    told = true;
    BlockStored stored = content;
    stored.block_hashes = {&hash, 1};
    stored.parent_block_hash = held.parent;
    if (stored.group_idx.value_or(0) != place.shelf->group) stored.group_idx = place.shelf->group;
    const bool same_medium = stored.medium && CanonicalMedium(*stored.medium) == place.shelf->medium;
    if (!same_medium) stored.medium = place.shelf->medium;
    tell(stored);
  };
  if (held.content != nullptr) {
    BlockStored stored = held.content->attributes->first.ToStored();
    stored.token_ids = held.content->token_ids;
    if (!held.content->extra_keys.empty()) stored.extra_keys.per_block = {&held.content->extra_keys, 1};
    tell_once(stored);
  } else if (options_.describe) {
    options_.describe(hash, place.shelf->group, place.shelf->medium, [&](const BlockStored& content) {
      const bool is_it = content.block_hashes.size() == 1 && content.block_hashes.front() == hash;
      const bool has_tokens = content.token_ids.empty() || content.token_ids.size() == content.block_size;
      if (is_it && has_tokens) tell_once(content);
    });
  }
}

void EventRecorder::Walk(const std::function<void(const ResidentBlock&)>& visit) const {
  for (const auto& [key, shelf] : shelves_) {
    for (const auto& [hash, held] : shelf.blocks) {
      if (AnnouncedNow(held) == 0) continue;
      ResidentBlock resident;
      resident.hash = hash;
      resident.parent = held.parent;
      if (held.content != nullptr) resident.token_ids = held.content->token_ids;
      resident.group = shelf.group;
      resident.medium = shelf.medium;
      visit(resident);
    }
  }
}

std::uint32_t EventRecorder::num_announced(const BlockHash& hash, std::uint32_t group, std::string_view medium) const {
  const auto shelf = shelves_.find(ShelfKey(group, CanonicalMedium(medium)));
  if (shelf == shelves_.end()) return 0;
  const auto found = shelf->second.blocks.find(hash);
  return found == shelf->second.blocks.end() ? 0 : AnnouncedNow(found->second);
}

void EventRecorder::BeginEra() {
  ++era_;
  pending_.Clear();
  digest_.Clear();
}

void EventRecorder::BeginWalk(WalkKind kind) { walks_[static_cast<std::size_t>(kind)].Begin(places_.size() - 1); }

bool EventRecorder::WalkSome(WalkKind kind, std::size_t max_blocks, const WalkVisitor& visit) {
  return walks_[static_cast<std::size_t>(kind)].Some(max_blocks, WalkedBlocks(this, kind, visit));
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
      const auto found = shelf->second.blocks.find(block.hash);
      if (found != shelf->second.blocks.end()) {
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
    for (const auto& [hash, held] : shelf.blocks) {
      if (met.contains(&held)) continue;
      first.Offer(Divergence::Kind::kNotResident, hash, key.first, key.second, std::nullopt, held.parent);
    }
  }
  return first.Take();
}

}  // namespace kvwire
