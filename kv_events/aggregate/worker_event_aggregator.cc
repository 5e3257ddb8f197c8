// SPDX-License-Identifier: Apache-2.0
#include "kv_events/aggregate/worker_event_aggregator.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "kv_events/aggregate/claim_table.h"
#include "kv_events/digest.h"
#include "kv_events/escape_text.h"

namespace kvwire {

namespace {

constexpr std::size_t kMaxBlocks = std::size_t{1} << 30;

tl::unexpected<Error> Invalid(std::string message) {
  return MakeError(ErrorCode::kInvalidArgument, std::move(message));
}

Status CheckReplication(std::string_view what, std::uint32_t factor, std::uint32_t num_workers) {
  if (factor != 0 && num_workers % factor == 0) return {};
  return Invalid(fmt::format("{} is {}, allowed are divisors of num_workers ({})", what, factor, num_workers));
}

Status CheckBound(std::string_view name, std::size_t value, std::size_t limit) {
  if (value >= 1 && value <= limit) return {};
  return Invalid(fmt::format("{} is {}, allowed are 1 to {}", name, value, limit));
}

Status Check(const WorkerEventAggregatorOptions& options) {
  const std::uint32_t num_workers = options.num_workers;
  Status status = CheckBound("num_workers", num_workers, WorkerEventAggregator::kMaxWorkers);
  if (status) status = CheckReplication("replication", options.replication, num_workers);
  for (auto entry = options.group_replication.begin(); status && entry != options.group_replication.end(); ++entry) {
    const auto same = [&entry](const GroupReplication& other) { return other.group == entry->group; };
    if (std::any_of(options.group_replication.begin(), entry, same)) {
      return Invalid(fmt::format("group_replication names group {} twice, allowed is once", entry->group));
    }
    status = CheckReplication(fmt::format("group_replication of group {}", entry->group), entry->factor, num_workers);
  }
  if (status) status = CheckBound("max_pending_blocks", options.max_pending_blocks, kMaxBlocks);
  if (status) status = CheckBound("max_pending_bytes", options.max_pending_bytes, SIZE_MAX);
  if (status) status = CheckBound("max_complete_blocks", options.max_complete_blocks, kMaxBlocks);
  return status;
}

// Why the event's blocks cannot be told apart; empty if they can.
std::string Malformation(const BlockStored& stored) {
  const std::size_t blocks = stored.block_hashes.size();
  const std::size_t tokens = stored.token_ids.size();
  for (std::size_t i = 0; i < blocks; ++i) {
    if (stored.block_hashes[i].empty()) {
      return fmt::format("block_hashes[{}] is empty, allowed are 1 to {} bytes", i, BlockHash::kMaxSize);
    }
  }
  if (tokens == 0 || tokens == blocks * stored.block_size) return {};
  return fmt::format("token_ids has {} tokens, allowed are {} ({} blocks of block_size {}) or none", tokens,
                     blocks * stored.block_size, blocks, stored.block_size);
}

// One BlockRemoved can name blocks of both.
bool SameRemoval(const BlockAttributes& a, const BlockAttributes& b) {
  return a.medium == b.medium && a.group_idx == b.group_idx && a.locality == b.locality && a.ownership == b.ownership;
}

// Collects blocks that follow each other into one BlockStored.
class StoredRun {
 public:
  // REQUIRES: nothing is collected; the batch stays until Flush().
  void Begin(KVEventBatch* batch) { batch_ = batch; }

  // `order`: when the first worker said it; blocks of one event have numbers that follow each other.
  void Add(const BlockHash& hash, const Claim& claim, std::uint64_t order) {
    const bool follows = attributes_ == claim.attributes && order == last_order_ + 1 && claim.parent == hashes_.back();
    if (!follows) {
      Flush();
      attributes_ = claim.attributes;
      parent_ = claim.parent;
    }
    last_order_ = order;
    hashes_.push_back(hash);
    tokens_.insert(tokens_.end(), claim.token_ids.begin(), claim.token_ids.end());
    extra_keys_.push_back(claim.extra_keys);
  }

  void Flush() {
    if (attributes_ == nullptr) return;
    BlockStored stored = attributes_->first.ToStored();
    stored.block_hashes = hashes_;
    if (!parent_.empty()) stored.parent_block_hash = parent_;
    stored.token_ids = tokens_;
    const bool some = std::ranges::any_of(extra_keys_, [](const ExtraKeys& keys) { return !keys.empty(); });
    if (some) stored.extra_keys.per_block = extra_keys_;
    batch_->Add(stored);
    attributes_ = nullptr;
    hashes_.clear();
    tokens_.clear();
    extra_keys_.clear();
  }

 private:
  KVEventBatch* batch_ = nullptr;
  AttributeTable::Handle attributes_ = nullptr;  // null: nothing is collected
  BlockHash parent_;
  std::uint64_t last_order_ = 0;
  std::vector<BlockHash> hashes_;
  std::vector<TokenId> tokens_;
  std::vector<ExtraKeys> extra_keys_;
};

}  // namespace

// Every block is settled between two calls: its place, flags, bytes and lists follow from its claims and from what was
// announced, as Settle() computes them. Lists: pending_ and established_ hold the blocks of these places, the one that
// came there first at the front; due_ holds the blocks that the next Take() speaks of. A block is erased as soon as it
// has no claims and is not announced.
class WorkerEventAggregator::Impl {
 public:
  explicit Impl(WorkerEventAggregatorOptions options)
      : options_(std::move(options)), table_(options_.num_workers), workers_(options_.num_workers) {}

  Status Add(std::uint32_t worker, const KVEventBatch& report);
  KVEventBatch Take(KVEventBatch batch);
  void Retract(const BlockRemoved& blocks);
  Status LoseWorker(std::uint32_t worker);
  WorkerEventStats stats() const noexcept;

 private:
  struct Worker {
    std::size_t held = 0;  // blocks
    bool cleared = false;  // since all had last cleared
  };
  // The blocks of one medium of one group.
  struct Shelf {
    std::uint32_t group = 0;
    std::string medium;        // canonical
    std::uint32_t needed = 0;  // workers
  };
  struct Ready {
    std::uint64_t order = 0;
    BlockId id = kNoId;
  };

  Status CheckWorker(std::uint32_t worker) const;
  std::uint32_t ShelfOf(const std::optional<std::uint32_t>& group, const std::optional<std::string_view>& medium);

  void Store(std::uint32_t worker, const BlockStored& stored);
  void StoreBlock(std::uint32_t worker, std::uint32_t shelf, const BlockHash& hash, const BlockContent& content);
  void Remove(std::uint32_t worker, const BlockRemoved& removed);
  void Clear(std::uint32_t worker);

  void LetGo(BlockId id, ClaimId claim, std::uint32_t worker);
  void LetGoOfAll(std::uint32_t worker);
  void Forget(BlockId id);
  void Unannounce(Block* block);
  void Settle(BlockId id);
  void MoveTo(BlockId id, BlockPlace place);
  void EnforceBounds();

  void TakeRemovals(KVEventBatch* batch);
  void TakeStores(KVEventBatch* batch);
  void TakeWithAncestors(BlockId id);
  BlockId AncestorToTakeFirst(BlockId id);
  void TakeStore(BlockId id);

  void TellDisagreement(BlockId id, const BlockContent& content, std::uint32_t worker);
  void TellDrops();
  void EndEpisodes();

  const WorkerEventAggregatorOptions options_;
  ClaimTable table_;
  std::vector<Worker> workers_;
  std::vector<Shelf> shelves_;  // few
  BlockList<&Block::age> pending_{&table_};
  BlockList<&Block::age> established_{&table_};
  BlockList<&Block::due_links> due_{&table_};
  std::uint64_t next_order_ = 1;
  bool clear_due_ = false;
  WorkerEventStats stats_;  // without the sizes of lists

  // Counters at the start of the episode.
  std::optional<std::uint64_t> dropped_before_;
  std::optional<std::uint64_t> disagreements_before_;

  // Scratch, kept for its memory.
  std::vector<Ready> ready_;
  std::vector<BlockId> climb_;
  std::vector<BlockHash> run_;
  StoredRun stores_;
};

Status WorkerEventAggregator::Impl::CheckWorker(std::uint32_t worker) const {
  if (worker < options_.num_workers) return {};
  return Invalid(fmt::format("worker {} does not exist, allowed are 0 to {}", worker, options_.num_workers - 1));
}

std::uint32_t WorkerEventAggregator::Impl::ShelfOf(const std::optional<std::uint32_t>& group,
                                                   const std::optional<std::string_view>& medium) {
  const std::string name = CanonicalMedium(medium.value_or(std::string_view()));
  const std::uint32_t number = group.value_or(0);
  for (std::size_t i = 0; i < shelves_.size(); ++i) {
    if (shelves_[i].group == number && shelves_[i].medium == name) return static_cast<std::uint32_t>(i);
  }
  std::uint32_t factor = options_.replication;
  for (const GroupReplication& replication : options_.group_replication) {
    if (replication.group == number) factor = replication.factor;
  }
  shelves_.push_back({number, name, options_.num_workers / factor});
  return static_cast<std::uint32_t>(shelves_.size() - 1);
}

Status WorkerEventAggregator::Impl::Add(std::uint32_t worker, const KVEventBatch& report) {
  if (Status known = CheckWorker(worker); !known) return known;
  Status status;
  for (std::size_t i = 0; i < report.size(); ++i) {
    const KVEventBatch::Event event = report.at(i);
    if (const auto* stored = std::get_if<BlockStored>(&event)) {
      if (const std::string why = Malformation(*stored); !why.empty()) {
        ++stats_.malformed;
        if (status) status = Invalid(fmt::format("event {} of worker {}: {}", i, worker, why));
        continue;
      }
      Store(worker, *stored);
    } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
      Remove(worker, *removed);
    } else {
      Clear(worker);
    }
  }
  return status;
}

void WorkerEventAggregator::Impl::Store(std::uint32_t worker, const BlockStored& stored) {
  static const ExtraKeys kNoKeys;
  const std::uint32_t shelf = ShelfOf(stored.group_idx, stored.medium);
  const std::size_t tokens = stored.token_ids.empty() ? 0 : stored.block_size;
  BlockContent content;
  content.attributes = table_.attributes().Acquire(stored);
  if (stored.parent_block_hash) content.parent = *stored.parent_block_hash;
  for (std::size_t i = 0; i < stored.block_hashes.size(); ++i) {
    content.token_ids = stored.token_ids.subspan(i * tokens, tokens);
    content.extra_keys = stored.extra_keys.per_block.empty() ? &kNoKeys : &stored.extra_keys.per_block[i];
    StoreBlock(worker, shelf, stored.block_hashes[i], content);
    content.parent = stored.block_hashes[i];
  }
  table_.attributes().Release(content.attributes);
  // A gap between events, so that their blocks do not follow each other.
  ++next_order_;
}

void WorkerEventAggregator::Impl::StoreBlock(std::uint32_t worker, std::uint32_t shelf, const BlockHash& hash,
                                             const BlockContent& content) {
  ++stats_.reported;
  const std::uint64_t order = next_order_++;
  BlockId id = table_.Find(shelf, hash);
  if (id == kNoId) id = table_.Add(shelf, hash);
  ClaimId claim = table_.With(id, content);
  const ClaimId before = table_.HeldBy(id, worker);
  if (before != kNoId && before == claim) {
    ++stats_.duplicates;
    return;
  }
  if (before != kNoId) LetGo(id, before, worker);
  if (claim == kNoId) claim = table_.AddClaim(id, content);
  if (table_.claim(table_.block(id).claims).next != kNoId) TellDisagreement(id, content, worker);
  table_.Hold(claim, worker, order);
  ++workers_[worker].held;
  Settle(id);
  EnforceBounds();
}

void WorkerEventAggregator::Impl::Remove(std::uint32_t worker, const BlockRemoved& removed) {
  const std::uint32_t shelf = ShelfOf(removed.group_idx, removed.medium);
  for (const BlockHash& hash : removed.block_hashes) {
    const BlockId id = table_.Find(shelf, hash);
    const ClaimId claim = id == kNoId ? kNoId : table_.HeldBy(id, worker);
    if (claim == kNoId) {
      ++stats_.unknown_removals;
      continue;
    }
    LetGo(id, claim, worker);
    Settle(id);
  }
  // What was disputed may be established now.
  EnforceBounds();
}

void WorkerEventAggregator::Impl::Clear(std::uint32_t worker) {
  LetGoOfAll(worker);
  if (options_.clears == WorkerClears::kAsRemovals) return;
  workers_[worker].cleared = true;
  if (!std::ranges::all_of(workers_, &Worker::cleared)) return;
  for (Worker& each : workers_) each.cleared = false;
  // The clear takes back everything that was announced; what is available nevertheless becomes due again.
  clear_due_ = true;
  for (BlockId id = 0; id < table_.end(); ++id) {
    if (!table_.Exists(id) || table_.block(id).announced == nullptr) continue;
    Unannounce(&table_.block(id));
    Settle(id);
  }
}

void WorkerEventAggregator::Impl::Retract(const BlockRemoved& blocks) {
  const std::uint32_t shelf = ShelfOf(blocks.group_idx, blocks.medium);
  for (const BlockHash& hash : blocks.block_hashes) {
    const BlockId id = table_.Find(shelf, hash);
    if (id == kNoId || table_.block(id).announced == nullptr) continue;
    Unannounce(&table_.block(id));
    Settle(id);
  }
}

Status WorkerEventAggregator::Impl::LoseWorker(std::uint32_t worker) {
  if (Status known = CheckWorker(worker); !known) return known;
  ++stats_.lost_workers;
  workers_[worker].cleared = false;
  LetGoOfAll(worker);
  return {};
}

void WorkerEventAggregator::Impl::LetGo(BlockId id, ClaimId claim, std::uint32_t worker) {
  table_.LetGo(id, claim, worker);
  --workers_[worker].held;
}

void WorkerEventAggregator::Impl::LetGoOfAll(std::uint32_t worker) {
  for (BlockId id = 0; id < table_.end() && workers_[worker].held > 0; ++id) {
    const ClaimId claim = table_.Exists(id) ? table_.HeldBy(id, worker) : kNoId;
    if (claim == kNoId) continue;
    LetGo(id, claim, worker);
    Settle(id);
  }
  EnforceBounds();
}

// No worker holds the block any longer.
void WorkerEventAggregator::Impl::Forget(BlockId id) {
  while (table_.block(id).claims != kNoId) {
    const ClaimId claim = table_.block(id).claims;
    LetGo(id, claim, table_.FirstHolder(claim));
  }
  Settle(id);
}

void WorkerEventAggregator::Impl::Unannounce(Block* block) {
  table_.attributes().Release(block->announced);
  block->announced = nullptr;
  block->announced_claim = kNoId;
}

void WorkerEventAggregator::Impl::Settle(BlockId id) {
  Block& block = table_.block(id);
  const bool held = block.claims != kNoId;
  const bool agreed = held && table_.claim(block.claims).next == kNoId;
  const bool available = agreed && table_.claim(block.claims).holders >= shelves_[block.shelf].needed;
  stats_.available += static_cast<std::uint64_t>(available) - static_cast<std::uint64_t>(block.available);
  block.available = available;
  stats_.disputed += static_cast<std::uint64_t>(held && !agreed) - static_cast<std::uint64_t>(block.disputed);
  block.disputed = held && !agreed;

  BlockPlace place = BlockPlace::kNowhere;
  if (available || (held && block.place == BlockPlace::kEstablished)) {
    place = BlockPlace::kEstablished;
  } else if (held) {
    place = BlockPlace::kPending;
  }
  MoveTo(id, place);

  const bool said_right = available && block.announced_claim == block.claims;
  const bool due = block.announced != nullptr ? !said_right : available;
  if (due && !block.due) due_.PushBack(id);
  if (!due && block.due) due_.Erase(id);
  block.due = due;
  if (!held && block.announced == nullptr) table_.Erase(id);
}

void WorkerEventAggregator::Impl::MoveTo(BlockId id, BlockPlace place) {
  Block& block = table_.block(id);
  const std::size_t bytes = place == BlockPlace::kNowhere ? 0 : table_.Bytes(id);
  stats_.held_bytes += bytes - block.bytes;
  if (block.place == BlockPlace::kPending) stats_.pending_bytes -= block.bytes;
  if (place == BlockPlace::kPending) stats_.pending_bytes += bytes;
  block.bytes = bytes;
  if (place == block.place) return;
  if (block.place == BlockPlace::kPending) pending_.Erase(id);
  if (block.place == BlockPlace::kEstablished) established_.Erase(id);
  if (place == BlockPlace::kPending) pending_.PushBack(id);
  if (place == BlockPlace::kEstablished) established_.PushBack(id);
  block.place = place;
}

void WorkerEventAggregator::Impl::EnforceBounds() {
  while (pending_.size() > options_.max_pending_blocks || stats_.pending_bytes > options_.max_pending_bytes) {
    TellDrops();
    ++stats_.dropped;
    Forget(pending_.front());
  }
  while (established_.size() > options_.max_complete_blocks) {
    ++stats_.expired;
    Forget(established_.front());
  }
}

KVEventBatch WorkerEventAggregator::Impl::Take(KVEventBatch batch) {
  batch.Clear();
  if (options_.late_workers == LateWorkers::kDiscard) {
    for (; pending_.size() > 0; ++stats_.discarded) Forget(pending_.front());
  }
  if (clear_due_) {
    clear_due_ = false;
    ++stats_.cleared;
    batch.Add(AllBlocksCleared{});
  }
  TakeRemovals(&batch);
  TakeStores(&batch);
  EndEpisodes();
  return batch;
}

// Afterwards every due block is available and not announced.
void WorkerEventAggregator::Impl::TakeRemovals(KVEventBatch* batch) {
  AttributeTable::Handle last = nullptr;
  const auto flush = [&] {
    if (last == nullptr) return;
    BlockRemoved removed = last->first.ToRemoved();
    removed.block_hashes = run_;
    batch->Add(removed);
    run_.clear();
    table_.attributes().Release(last);
    last = nullptr;
  };
  for (BlockId id = due_.front(), next = kNoId; id != kNoId; id = next) {
    next = due_.After(id);
    Block& block = table_.block(id);
    if (block.announced == nullptr) continue;
    if (last != nullptr && !SameRemoval(last->first, block.announced->first)) flush();
    if (last == nullptr) last = AttributeTable::Share(block.announced);
    run_.push_back(block.hash);
    ++stats_.removed;
    Unannounce(&block);
    Settle(id);
  }
  flush();
}

void WorkerEventAggregator::Impl::TakeStores(KVEventBatch* batch) {
  ready_.clear();
  for (BlockId id = due_.front(); id != kNoId; id = due_.After(id)) {
    const ClaimId claim = table_.block(id).claims;
    ready_.push_back({table_.Order(claim, table_.FirstHolder(claim)), id});
    table_.block(id).mark = TakeMark::kReady;
  }
  std::ranges::sort(ready_, {}, &Ready::order);
  stores_.Begin(batch);
  for (const Ready& ready : ready_) TakeWithAncestors(ready.id);
  stores_.Flush();
}

void WorkerEventAggregator::Impl::TakeWithAncestors(BlockId id) {
  if (table_.block(id).mark != TakeMark::kReady) return;
  climb_.assign(1, id);
  while (!climb_.empty()) {
    const BlockId top = climb_.back();
    table_.block(top).mark = TakeMark::kClimbing;
    const BlockId ancestor = AncestorToTakeFirst(top);
    if (ancestor != kNoId) {
      climb_.push_back(ancestor);
      continue;
    }
    climb_.pop_back();
    TakeStore(top);
  }
}

// The parent, if it is ready and another worker is its first: one worker's own order is kept.
BlockId WorkerEventAggregator::Impl::AncestorToTakeFirst(BlockId id) {
  const Block& block = table_.block(id);
  const Claim& claim = table_.claim(block.claims);
  if (shelves_[block.shelf].needed == options_.num_workers || claim.parent.empty()) return kNoId;
  const BlockId parent = table_.Find(block.shelf, claim.parent);
  if (parent == kNoId || table_.block(parent).mark != TakeMark::kReady) return kNoId;
  const bool same_worker = table_.FirstHolder(table_.block(parent).claims) == table_.FirstHolder(block.claims);
  return same_worker ? kNoId : parent;
}

void WorkerEventAggregator::Impl::TakeStore(BlockId id) {
  Block& block = table_.block(id);
  const Claim& claim = table_.claim(block.claims);
  stores_.Add(block.hash, claim, table_.Order(block.claims, table_.FirstHolder(block.claims)));
  ++stats_.published;
  block.mark = TakeMark::kNone;
  block.announced = AttributeTable::Share(claim.attributes);
  block.announced_claim = block.claims;
  Settle(id);
}

void WorkerEventAggregator::Impl::TellDisagreement(BlockId id, const BlockContent& content, std::uint32_t worker) {
  const bool starts = !disagreements_before_;
  if (starts) disagreements_before_ = stats_.disagreements;
  ++stats_.disagreements;
  if (!starts) return;
  const Block& block = table_.block(id);
  ClaimId other = block.claims;
  while (DifferentField(content, table_.claim(other)).empty()) other = table_.claim(other).next;
  Log(options_.log, LogLevel::kWarning,
      fmt::format("workers disagree: block {} of group {} in {} has another {} at worker {} than at worker {}; such "
                  "blocks are not published",
                  block.hash.ToHex(), shelves_[block.shelf].group, EscapeText(shelves_[block.shelf].medium),
                  DifferentField(content, table_.claim(other)), worker, table_.FirstHolder(other)));
}

void WorkerEventAggregator::Impl::TellDrops() {
  if (dropped_before_) return;
  dropped_before_ = stats_.dropped;
  Log(options_.log, LogLevel::kWarning,
      fmt::format("workers lag: more than {} blocks or {} bytes are reported and not by enough workers; the oldest are "
                  "dropped",
                  options_.max_pending_blocks, options_.max_pending_bytes));
}

void WorkerEventAggregator::Impl::EndEpisodes() {
  const bool few = pending_.size() <= options_.max_pending_blocks / 2;
  if (dropped_before_ && few && stats_.pending_bytes <= options_.max_pending_bytes / 2) {
    Log(options_.log, LogLevel::kInfo,
        fmt::format("workers caught up after {} dropped blocks", stats_.dropped - *dropped_before_));
    dropped_before_.reset();
  }
  if (disagreements_before_ && stats_.disputed == 0) {
    Log(options_.log, LogLevel::kInfo,
        fmt::format("workers agree again after {} disagreements", stats_.disagreements - *disagreements_before_));
    disagreements_before_.reset();
  }
}

WorkerEventStats WorkerEventAggregator::Impl::stats() const noexcept {
  WorkerEventStats stats = stats_;
  stats.pending = pending_.size();
  return stats;
}

WorkerEventAggregator::WorkerEventAggregator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WorkerEventAggregator::~WorkerEventAggregator() = default;

Result<std::unique_ptr<WorkerEventAggregator>> WorkerEventAggregator::Create(WorkerEventAggregatorOptions options) {
  if (const Status allowed = Check(options); !allowed) return tl::unexpected<Error>(allowed.error());
  auto impl = std::make_unique<Impl>(std::move(options));
  return std::unique_ptr<WorkerEventAggregator>(new WorkerEventAggregator(std::move(impl)));
}

Status WorkerEventAggregator::Add(std::uint32_t worker, const KVEventBatch& report) {
  return impl_->Add(worker, report);
}

KVEventBatch WorkerEventAggregator::Take(KVEventBatch spare) { return impl_->Take(std::move(spare)); }

void WorkerEventAggregator::Retract(const BlockRemoved& blocks) { impl_->Retract(blocks); }

Status WorkerEventAggregator::LoseWorker(std::uint32_t worker) { return impl_->LoseWorker(worker); }

WorkerEventStats WorkerEventAggregator::stats() const noexcept { return impl_->stats(); }

}  // namespace kvwire
