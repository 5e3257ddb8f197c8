// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv_events/announced_state.h"
#include "kv_events/batch.h"
#include "kv_events/block_attributes.h"
#include "kv_events/clock.h"
#include "kv_events/config.h"
#include "kv_events/digest.h"
#include "kv_events/event_publisher.h"
#include "kv_events/resumable_walk.h"
#include "kv_events/state_publisher.h"
#include "kv_events/state_source.h"

namespace kvwire {

// The first block on which a walk over an engine's pool and the events recorded so far disagree.
struct Divergence {
  enum class Kind : std::uint8_t {
    kNotAnnounced,  // resident, but the events do not say so
    kNotResident,   // announced, but the walk did not meet it
    kWrongParent,   // resident, but announced under another parent
  };
  Kind kind = Kind::kNotAnnounced;
  BlockHash hash;
  std::uint32_t group = 0;
  std::string medium;
  std::string message;  // names the block, the group, the medium and what differs
};

// How an engine with a block pool of its own tells what its pool does: store, reuse, remove and clear as they happen,
// EndStep once per step. Events of a step leave in one batch, stamped with the wall clock.
//
// With options.track_state the recorder keeps the set it announced, which gives digest() and Audit(), and applies the
// removal rule: under Removals::kExact a hash that was stored n times (each copy, each reuse report) is removed only
// when its last copy goes, and then n times, so that consumers that count and consumers that keep a set both agree with
// the pool at every batch. Under Removals::kPerCopy, and without tracking, what is called is what is published.
//
// With track_state each batch also says what the stream holds behind it, and the recorder answers what the publisher
// wants of the state (StatePublisher): after a loss it clears the stream and announces again what is held, and it hands
// out snapshots. For that it needs the content of blocks, from one of two sources:
//   - a shadow: copies of what Store() and Reuse() said, up to options.shadow_bytes;
//   - the host, which describes a held block when it is asked (options.describe).
// A block whose content cannot be given is in no snapshot, and after a loss it stays unannounced: its removal is no
// event, until Store() or Reuse() announces it. Without either source that is every block.
// The host calls EndStep() also when it recorded nothing, as long as HasStateWork(); at rest it learns of that by
// PublisherOptions::on_state_wanted, and while StateWorkWaits() it lets a moment pass first.
//
// Threads: one thread at a time (the engine's step thread); the recorder calls back into the host only to have a block
//   described: within EndStep() and WalkSome(), and, while a loss is being healed, within Store() and Reuse(), which
//   announce the ancestors that the walk has not reached.
// Ownership: the publisher outlives the recorder. Neither copied nor moved.
// Errors: nothing throws but for lack of memory; a disabled recorder does nothing at all.
// Bounds: per held block some 150 bytes and its share of shadow_bytes; EndStep() walks over one chunk of blocks at
// most. While a loss is being healed, Store() and Reuse() take time in proportion to the ancestors that the walk has
// not reached, all of them if need be; a block is announced so once at most. (They cannot be left to the walk: whether
// it can tell a block's content is known only then.)
class EventRecorder final : public AnnouncedState {
 public:
  // What the host tells a block's content to: an event of this one block, with block_size tokens or none; any other is
  // passed over. The recorder sets its parent as it was announced.
  using TellBlock = std::function<void(const BlockStored& block)>;
  // Calls `tell` for a block that was announced and not removed, unless its content is not at hand. Must not call the
  // recorder.
  using DescribeBlock =
      std::function<void(const BlockHash& hash, std::uint32_t group, std::string_view medium, const TellBlock& tell)>;

  struct Options {
    bool enabled = true;
    bool track_state = true;
    Removals removals = Removals::kExact;
    const Clock* clock = &SystemClock::Get();
    std::size_t shadow_bytes = 0;  // of block contents to keep; 0: none. Ignored without track_state
    DescribeBlock describe;        // instead of a shadow; may be empty
    std::size_t blocks_per_chunk = StatePublisher::Options().blocks_per_chunk;
  };

  // REQUIRES: publisher is not null.
  EventRecorder(Options options, EventPublisher* publisher);
  ~EventRecorder() override;
  EventRecorder(const EventRecorder&) = delete;
  EventRecorder& operator=(const EventRecorder&) = delete;

  // Blocks became available: `stored` lists them in prefix order. An event without blocks is not recorded. An unset
  // medium means GPU, and GPU is written.
  void Store(const BlockStored& stored);

  // Blocks that were available already are announced again, for consumers that missed the first time. They do not
  // become copies; one that the recorder did not know counts as stored.
  void Reuse(const BlockStored& stored);

  // One physical copy of each listed block is gone; a hash listed twice lost two. A hash that is not held is passed on
  // once, as told.
  void Remove(const BlockRemoved& removed);

  // Every block is gone.
  void Clear();

  // Publishes what was recorded since the last call, if anything was, then does one piece of what the publisher wants
  // of the state. Also the flush after a change outside a step. The result is the publisher's of what was recorded;
  // kAccepted when that was nothing, or was dropped because a Clear is to come.
  PublishResult EndStep();

  // Whether EndStep() is to be called although nothing was recorded; whether it can do something now.
  bool HasStateWork() const noexcept { return stream_.HasStateWork(); }
  bool StateWorkWaits() const noexcept { return stream_.StateWorkWaits(); }
  // Between a loss and the end of the walk that heals it: blocks may be held and not announced.
  bool is_healing() const noexcept { return stream_.silent() || stream_.renewing(); }
  const StatePublisherStats& stream_stats() const noexcept { return stream_.stats(); }

  // Events recorded and not yet published.
  const KVEventBatch& pending() const noexcept { return pending_; }

  // Summary of what was announced since the stream was last cleared and has a copy left, pending events included. Empty
  // without track_state.
  const StateDigest& digest() const noexcept override { return digest_; }

  // AnnouncedState, for EndStep(). An era begins without what is pending. REQUIRES, of a walk: nothing is pending.
  // Walk() gives no tokens of blocks that are not in the shadow.
  void Walk(const std::function<void(const ResidentBlock&)>& visit) const override;
  void BeginEra() override;
  void BeginWalk(WalkKind kind) override;
  bool WalkSome(WalkKind kind, std::size_t max_blocks, const WalkVisitor& visit) override;

  // How many removals will take the block away at the consumers.
  std::uint32_t num_announced(const BlockHash& hash, std::uint32_t group, std::string_view medium) const;

  // Bytes of block contents in the shadow.
  std::size_t shadow_bytes() const noexcept { return shadow_bytes_; }

  // Compares the set announced so far, in whatever era, with the engine's own walk; nothing when they agree, or when
  // disabled. Takes time and memory in proportion to the blocks. "First" is by group, medium and hash, whatever the
  // order of the walk. REQUIRES: options.track_state.
  std::optional<Divergence> Audit(const StateSource& walk) const;

 private:
  struct Content {
    AttributeTable::Handle attributes = nullptr;
    std::vector<TokenId> token_ids;
    ExtraKeys extra_keys;
  };
  struct Held {
    std::uint32_t copies = 0;  // stores minus removals
    // In `era`. Under kExact stores plus reuse reports since the block was last absent, under kPerCopy announced
    // copies.
    std::uint32_t announced = 0;
    std::uint32_t era = 0;
    std::uint32_t place = 0;  // in places_
    std::optional<BlockHash> parent;
    std::unique_ptr<Content> content;  // null: not in the shadow
  };
  using ShelfKey = std::pair<std::uint32_t, std::string>;  // the medium is canonical
  // The blocks of one tier of one group.
  struct Shelf {
    std::uint32_t group = 0;
    std::string medium;
    std::unordered_map<BlockHash, Held> blocks;
  };
  using Entry = std::unordered_map<BlockHash, Held>::value_type;
  // Where a walk finds a block; empty if entry is null.
  struct Place {
    Shelf* shelf = nullptr;
    Entry* entry = nullptr;
  };
  struct BlockKey {
    Shelf* shelf = nullptr;
    BlockHash hash;
  };
  class WalkedBlocks;

  // A removal that is still to be announced `times` times.
  struct Leaving {
    BlockHash hash;
    std::uint32_t times = 0;
  };

  enum class Cause : std::uint8_t { kStore, kReuse };
  void Record(const BlockStored& stored, Cause cause);
  void RecordBlock(const BlockStored& event, std::size_t i, const std::optional<BlockHash>& parent, Shelf* shelf,
                   Cause cause);
  void Announce(const BlockHash& hash, Shelf* shelf, Held* held, std::uint32_t times);
  void Remember(const BlockStored& event, std::size_t i, Held* held);
  void ForgetContent(Held* held);
  static std::size_t BytesOf(const Content& content);
  void Erase(Shelf* shelf, Entry* entry);
  void TakeCopies(const BlockRemoved& removed, std::string_view medium);
  std::uint32_t TakeCopy(const BlockHash& hash, Shelf* shelf, Held* held);
  std::uint32_t AnnouncedNow(const Held& held) const { return held.era == era_ ? held.announced : 0; }
  std::uint32_t ToBeRenewed(const Held& held) const;
  void RenewAncestors(const std::optional<BlockHash>& parent, Shelf* shelf);
  void TellHeld(const Place& place, const TellBlock& tell) const;
  void AddRemovals(BlockRemoved removed);
  Shelf& ShelfOf(const std::optional<std::uint32_t>& group, std::string_view medium);

  const Options options_;
  StatePublisher stream_;
  KVEventBatch pending_;
  StateDigest digest_;
  std::map<ShelfKey, Shelf> shelves_;  // few
  std::vector<Place> places_{1};       // the first one is never used
  std::vector<std::uint32_t> free_places_;
  std::uint32_t era_ = 1;
  std::array<ResumableWalk<BlockKey>, 2> walks_;  // by kind
  AttributeTable attributes_;
  std::size_t shadow_bytes_ = 0;
  // Scratch of Remove(), kept for its memory.
  std::vector<Leaving> leaving_;
  std::vector<BlockHash> round_;
};

}  // namespace kvwire
