// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv_events/announced_state.h"
#include "kv_events/batch.h"
#include "kv_events/config.h"
#include "kv_events/digest.h"
#include "kv_events/error.h"
#include "kv_events/hash/extra_keys.h"
#include "kv_events/log.h"
#include "kv_events/resumable_walk.h"
#include "scheduler/block_context.h"
#include "scheduler/block_index.h"
#include "scheduler/free_block_queue.h"
#include "scheduler/scheduler_output.h"

namespace kvwire::scheduler {

inline constexpr BlockId kNullBlock = 0;

// The identities of a request's tokens and what they are made of. A block of a group that holds several hash blocks has
// the hash of the last one.
struct BlockChain {
  std::span<const BlockHash> hashes;      // one per full hash block
  std::span<const TokenId> token_ids;     // at least a hash block of tokens per hash
  std::span<const ExtraKeys> extra_keys;  // one entry per hash, or empty when no block has any
  // What the extra keys come from; needed only for groups whose blocks hold several hash blocks.
  const BlockContent* content = nullptr;
  const LoraAdapter* lora = nullptr;
  std::uint32_t num_prompt_blocks = 0;  // leading blocks of the group that hold tokens of the prompt only
};

// Whether a block may be announced whose predecessor in the request is not.
enum class Parents : std::uint8_t {
  kRegistered,  // no: nothing is registered behind a block that is not
  kAny,         // yes: the group does not need all blocks before a hit
};

// What the blocks of a KV-cache group are.
struct GroupSpec {
  std::string kind = "full_attention";
  std::optional<std::uint32_t> sliding_window;
  std::uint32_t block_size = 0;  // tokens, a multiple of the pool's; 0: the pool's
  Parents parents = Parents::kRegistered;
};

struct BlockPoolOptions {
  std::uint32_t num_blocks = 0;   // the null block included; at least 1
  std::uint32_t block_size = 16;  // tokens per hash
  bool enable_caching = true;
  bool enable_events = false;
  Removals removals = Removals::kExact;
  // vLLM's own events: a store is recorded when the block is registered, not when it was computed, and one event for
  // each call of Register, whose tokens include those of blocks that were passed over.
  bool announce_at_registration = false;
  // Blocks of several hash blocks may be registered before they are full (RegisterPartial).
  bool partial_blocks = false;
  // Indexed by group. When empty, events say nothing about kinds.
  std::vector<GroupSpec> groups;
  LogSink log;
};

// Where a cached block that lost its last holder is in the order of eviction.
enum class EvictionOrder : std::uint8_t {
  kLast,
  kNext,  // before the other cached ones
};

// What a registered block holds. Views are valid until the pool changes.
struct BlockDescription {
  BlockHash hash;
  std::uint32_t group = 0;
  // With events only, as it is announced:
  BlockHash parent;  // empty: none
  std::span<const TokenId> token_ids;
  const BlockContext* context = nullptr;
};

// Counters since the start, in blocks unless said otherwise.
struct BlockPoolStats {
  std::uint64_t new_prompt_blocks = 0;  // prompt blocks registered whose hash was not resident
  std::uint64_t stored = 0;             // announced or left to a renewing walk, without reports
  std::uint64_t reported = 0;
  std::uint64_t removed = 0;  // BlockRemoved events
  std::uint64_t clears = 0;   // AllBlocksCleared events
};

// The physical blocks of a KV cache: who holds them, what they contain, and the events that their changes make.
//
// A block that holds a full, hashed run of tokens is *registered*: FindCached gives it to later requests. A hash may be
// in several blocks (copies). A store has two moments: Register, and AnnouncePending, which records BlockStored once
// the content was computed. A pending block that loses its last holder, or whose predecessor was evicted, is
// unregistered and was never announced.
//
// A block of several hash blocks may be registered when only some of these are full, as a *partial* one: its hash is
// that of the last full hash block. When it is registered with more tokens, the hash that it had leaves first. A
// partial block is announced alone, with all tokens of the block up to there and under the block before it; with
// announce_at_registration with those of the last hash block, under the hash before it.
//
// Under Removals::kExact a hash is removed when its last copy goes, as often as it was announced; under kPerCopy once
// for each announced copy. digest() and Walk() cover the hashes that are resident and announced. What was announced in
// an earlier era only counts as not announced: its removal is no event, until a renewing walk has met it. Of such a
// hash the walk announces, under kExact, one, under kPerCopy as many as there are computed copies that the new era has
// not. A store whose parent the walk has not reached is left to the walk, whose next piece goes there.
//
// Threads: the step thread.
// Bounds: about 185 bytes a block at block size 16 with events on, 4 more with partial blocks, taken at construction;
// no allocation per block later. Order: events are recorded in the order of the changes.
class BlockPool final : public AnnouncedState {
 public:
  explicit BlockPool(BlockPoolOptions options);

  // Tokens per block of the group.
  std::uint32_t block_size(std::uint32_t group = 0) const noexcept;
  std::uint32_t num_blocks() const noexcept { return options_.num_blocks; }
  std::size_t num_free() const noexcept { return free_.size(); }
  const FreeBlockQueue& free_queue() const noexcept { return free_; }
  std::uint32_t num_references(BlockId block) const { return meta_[block].references; }

  // Appends n blocks from the front of the free queue to *blocks, each with one holder; what they cached is evicted.
  // False, and nothing happens, if there are not enough.
  bool Allocate(std::size_t n, std::vector<BlockId>* blocks);

  // One more holder for each block.
  void Touch(std::span<const BlockId> blocks);

  // One holder less for each block, in the order in which they shall be evicted. Blocks without a hash will be reused
  // first, cached ones as `order` says.
  void Free(std::span<const BlockId> blocks, EvictionOrder order = EvictionOrder::kLast);

  // REQUIRES: the block is registered.
  BlockDescription Describe(BlockId block) const;

  // The copy that was registered first, or kNullBlock.
  BlockId FindCached(const BlockHash& hash, std::uint32_t group) const;

  // The first copy, or kNullBlock, of a hash of partial blocks that was computed before the step being planned: what
  // the step may copy from.
  BlockId FindComputed(const BlockHash& hash, std::uint32_t group) const;

  // How many of the blocks have nobody holding them.
  std::size_t CountUnheld(std::span<const BlockId> blocks) const;

  // Registers the full blocks [first, last) of a chain in `table`. Null blocks are passed over. Under
  // Parents::kRegistered it stops at a block whose predecessor is no longer registered: nothing could find it, and its
  // parent may never have been announced.
  // REQUIRES: the chain has the hashes and tokens of `last` blocks, the table `last` entries, of which those from
  // first - 1 on are read; the blocks are not registered, or as partial ones.
  void Register(const BlockChain& chain, std::span<const BlockId> table, std::uint32_t first, std::uint32_t last,
                std::uint32_t group);

  // Registers the block in `table` that has the last of the first num_tokens tokens, as a partial one. Nothing if it is
  // null or has this hash already, or if Register would stop at it.
  // REQUIRES: partial_blocks; num_tokens is a multiple of the hash block, not of the group's; the chain has their
  // hashes.
  void RegisterPartial(const BlockChain& chain, std::span<const BlockId> table, std::uint32_t num_tokens,
                       std::uint32_t group);

  // Announces again the first blocks of a prompt, which a request found cached and holds, but for null blocks; changes
  // no residency.
  void Report(std::span<const BlockId> blocks);

  // Records at once, as vLLM does, one BlockStored for the first `count` positions of the chain, whatever is there.
  void ReportPositions(const BlockChain& chain, std::uint32_t count, std::uint32_t group);

  // What was registered and reported since the last call was computed: record it, in the order of the calls.
  void AnnouncePending();

  // Takes the blocks' hashes away, whoever holds the blocks.
  // Errors: kInvalidArgument for an id outside the pool; then nothing was evicted.
  Status EvictBlocks(std::span<const BlockId> blocks);

  // Every copy of the hash; returns how many there were.
  std::size_t EvictHash(const BlockHash& hash, std::uint32_t group);

  // Forgets every hash and records AllBlocksCleared. False, and nothing happens, while a block is held.
  bool Reset();

  // Events recorded and not taken yet.
  const KVEventBatch& recorded() const noexcept { return recorded_; }
  // `spare` is used for the following events. REQUIRES: spare is empty.
  KVEventBatch TakeEvents(KVEventBatch spare = {});

  // AnnouncedState. An era begins without what is recorded. REQUIRES, of a walk: nothing is recorded.
  const StateDigest& digest() const noexcept override { return digest_; }
  void BeginEra() override;
  void BeginWalk(WalkKind kind) override;
  bool WalkSome(WalkKind kind, std::size_t max_blocks, const WalkVisitor& visit) override;

  // Whoever else adds events to the pool's stream (a lower tier) keeps the digest up as well; Reset() and BeginEra()
  // clear all of it, as AllBlocksCleared takes back the whole stream.
  StateDigest* stream_digest() noexcept { return &digest_; }
  void Walk(const std::function<void(const ResidentBlock&)>& visit) const override;

  // How often the hash was announced in this era since it was last absent (kExact), or how many copies announced in it
  // are resident (kPerCopy).
  std::uint32_t num_announced(const BlockHash& hash, std::uint32_t group) const;
  std::uint32_t num_copies(const BlockHash& hash, std::uint32_t group) const;
  bool is_registered(BlockId block) const { return (meta_[block].flags & kRegistered) != 0; }
  // Registered, with all of its tokens.
  bool is_full(BlockId block) const;

  const BlockPoolOptions& options() const noexcept { return options_; }

  // How many times the pool was cleared.
  std::uint64_t era() const noexcept { return era_; }
  // Changes whenever a lookup or a free count may have become better.
  std::uint64_t version() const noexcept { return version_; }
  const BlockPoolStats& stats() const noexcept { return stats_; }

 private:
  enum Flag : std::uint8_t {
    kRegistered = 1,
    kPending = 2,  // registered, not announced
    kHead = 4,     // the copy that the index names; it carries the ledger of the hash
    kFresh = 8,    // partial, registered since the last AnnouncePending
  };
  struct Meta {
    std::uint32_t references = 0;
    BlockId next_copy = 0;        // 0 after the last
    BlockId prev_copy = 0;        // of the head: the last copy
    std::uint32_t copies = 0;     // ledger, head only
    std::uint32_t announced = 0;  // ledger, head only; in the era that ledger_eras_ says
    std::uint32_t context = BlockContextTable::kPlain;
    std::uint32_t place_or_era = 0;  // its place in pending_, if kPending; else the era that announced this copy last
    std::uint16_t group = 0;
    std::uint8_t flags = 0;
  };
  // Names a hash in a walk, whichever block is its head.
  struct BlockKey {
    BlockHash hash;
    std::uint32_t group = 0;
  };
  using BlockWalk = ResumableWalk<BlockKey>;
  class WalkedBlocks;
  // A block to announce; block 0 if it is no longer to be.
  struct Pending {
    BlockId block = 0;
    BlockId predecessor = 0;  // 0: none, or the null block
  };
  // Consecutive entries of pending_ that make one event.
  struct Run {
    std::size_t begin = 0;
    std::size_t end = 0;
    bool report = false;
  };

  bool Has(BlockId block, std::uint8_t flags) const { return (meta_[block].flags & flags) == flags; }
  BlockId HeadOf(BlockId block) const;
  std::span<const TokenId> TokensOf(BlockId block) const;
  const ExtraKeys& KeysOf(const BlockChain& chain, std::uint32_t begin, std::uint32_t end);
  bool NeedsPredecessor(std::uint32_t group) const;
  void Enter(const BlockChain& chain, BlockId block, std::uint32_t group, std::uint32_t begin, std::uint32_t end);
  void StoreContent(const BlockChain& chain, BlockId block, std::uint32_t begin, std::uint32_t end);
  void Enqueue(BlockId block, BlockId predecessor, Run* run);
  void JoinCopies(BlockId block, bool prompt);
  BlockId NextVictim() const;
  void LeaveCopies(BlockId block, BlockId head);
  void Unregister(BlockId block);
  void SettleLedger(BlockId head, const BlockHash& hash, bool counts);
  void RecordRuns();
  void AnnounceStores(const Run& run);
  void AnnounceStore(BlockId block);
  void AnnounceReport(const Run& run);
  void CountAnnouncement(BlockId block);
  void AddAnnouncements(BlockId head, std::uint32_t announcements);
  bool IsAnnounced(BlockId head) const { return meta_[head].announced > 0 && ledger_eras_[head] == stream_era_; }
  bool IsStaleCopy(BlockId block) const { return !Has(block, kPending) && meta_[block].place_or_era != stream_era_; }
  BlockId ParentOf(BlockId block) const {
    return parents_[block].empty() ? kNullBlock : FindCached(parents_[block], meta_[block].group);
  }
  bool IsToBeRenewed(BlockId head) const;
  bool AwaitsParent(BlockId block) const;
  void LeaveToWalk(BlockId block);
  std::uint32_t RenewCopies(BlockId head);
  void TellBlock(BlockId head, std::uint32_t announcements, const WalkVisitor& visit);
  std::size_t DigestSlot(std::uint32_t group);
  void RecordStored(bool report);
  void BeginStored(BlockId first);
  void RecordPositions(const BlockChain& chain, std::span<const std::uint32_t> positions, std::uint32_t first,
                       std::uint32_t last, std::uint32_t group);
  void RecordRemoved(const BlockHash& hash, std::uint32_t group, std::uint32_t times);
  void Annotate(BlockStored* stored);

  const BlockPoolOptions options_;
  const std::uint32_t max_block_size_;  // over all groups
  FreeBlockQueue free_;
  BlockIndex index_;
  BlockContextTable contexts_;
  std::vector<Meta> meta_;
  std::vector<BlockHash> hashes_;
  std::vector<BlockHash> parents_;          // with events only, as the next
  std::vector<std::uint32_t> ledger_eras_;  // by head
  std::unique_ptr<TokenId[]> tokens_;       // with events only: max_block_size_ per block
  std::vector<std::uint32_t> num_tokens_;   // in tokens_, of registered blocks; with partial blocks only
  std::vector<BlockId> fresh_;
  std::vector<Pending> pending_;
  std::vector<Run> runs_;
  KVEventBatch recorded_;
  static constexpr std::size_t kNoEvent = std::numeric_limits<std::size_t>::max();
  std::size_t last_removal_ = kNoEvent;  // recorded_.size() when it ended with a removal
  std::uint32_t last_removal_group_ = 0;
  std::size_t last_stored_ = kNoEvent;  // the same of a stored event without an adapter
  std::uint32_t last_stored_group_ = 0;
  std::uint32_t last_stored_size_ = 0;
  StateDigest digest_;
  std::optional<std::size_t> digest_slot_;  // of digest_group_
  std::uint32_t digest_group_ = 0;
  std::uint32_t stream_era_ = 1;    // eras of the stream, begun by BeginEra()
  std::array<BlockWalk, 2> walks_;  // by kind
  std::uint64_t era_ = 0;
  std::uint64_t version_ = 0;
  BlockPoolStats stats_;
  bool warned_group_ = false;

  // Reused between calls.
  std::vector<BlockId> unhashed_;
  std::vector<BlockId> event_blocks_;
  std::vector<std::uint32_t> event_positions_;
  ExtraKeys keys_;
  std::vector<BlockHash> event_hashes_;
  std::vector<ExtraKeys> event_keys_;
};

}  // namespace kvwire::scheduler
