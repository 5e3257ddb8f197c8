// SPDX-License-Identifier: Apache-2.0
#include "scheduler/block_pool.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

#include <fmt/format.h>

// Invariants between calls:
//  - A registered block is in the ring of its hash's copies: next_copy leads from the head (registered first) to the
//    last, whose next_copy is 0; the head's prev_copy is the last. The index names the head of every resident hash.
//  - The ledger (copies, announced) of a hash is in its head's Meta and moves with the headship.
//  - A block is in the free queue if and only if it has no holder; a pending block has one.
//  - pending_[meta.place_or_era].block is the block, for every pending block.
//  - digest_ holds exactly the hashes whose ledger says announced > 0 in the present era of the stream.

namespace kvwire::scheduler {

namespace {

// How many blocks ahead of its use a place of the index is fetched: it is in no near cache, and the next ones are
// known.
constexpr std::size_t kPrefetched = 4;

std::size_t ContentBlocks(const BlockPoolOptions& options) {
  return options.enable_events && options.enable_caching ? options.num_blocks : 0;
}

std::uint32_t MaxBlockSize(const BlockPoolOptions& options) {
  std::uint32_t size = options.block_size;
  for (const GroupSpec& group : options.groups) size = std::max(size, group.block_size);
  return size;
}

}  // namespace

BlockPool::BlockPool(BlockPoolOptions options)
    : options_(std::move(options)),
      max_block_size_(MaxBlockSize(options_)),
      free_(options_.num_blocks),
      index_(options_.enable_caching ? options_.num_blocks : 0),
      meta_(options_.num_blocks),
      hashes_(options_.enable_caching ? options_.num_blocks : 0),
      parents_(ContentBlocks(options_)),
      ledger_eras_(ContentBlocks(options_)),
      // Not initialised: the pages of blocks that are never used are never touched.
      tokens_(new TokenId[ContentBlocks(options_) * max_block_size_]),
      num_tokens_(options_.partial_blocks && options_.enable_caching ? options_.num_blocks : 0) {}

std::uint32_t BlockPool::block_size(std::uint32_t group) const noexcept {
  const bool own = group < options_.groups.size() && options_.groups[group].block_size != 0;
  return own ? options_.groups[group].block_size : options_.block_size;
}

bool BlockPool::Allocate(std::size_t n, std::vector<BlockId>* blocks) {
  if (n > free_.size()) return false;
  BlockId ahead = free_.Front();
  for (std::size_t i = 0; i < std::min(n, kPrefetched); ++i) ahead = free_.After(ahead);
  for (std::size_t i = 0; i < n; ++i) {
    if (Has(ahead, kRegistered)) index_.Prefetch(BlockIndex::TagOf(hashes_[ahead], meta_[ahead].group));
    ahead = free_.After(ahead);
    const BlockId block = free_.PopFront();
    if (Has(block, kRegistered)) Unregister(block);
    meta_[block].references = 1;
    blocks->push_back(block);
  }
  return true;
}

void BlockPool::Touch(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    if (block == kNullBlock) continue;
    if (meta_[block].references++ == 0) free_.Remove(block);
  }
}

// The first cached block of the free queue, or one before it where many others come first.
BlockId BlockPool::NextVictim() const {
  constexpr int kMostSteps = 1024;
  BlockId block = free_.Front();
  for (int i = 0; i < kMostSteps && block != kNullBlock && !Has(block, kRegistered); ++i) block = free_.After(block);
  return block;
}

void BlockPool::Free(std::span<const BlockId> blocks, EvictionOrder order) {
  unhashed_.clear();
  const BlockId next = order == EvictionOrder::kLast ? kNullBlock : NextVictim();
  for (const BlockId block : blocks) {
    if (block == kNullBlock) continue;
    assert(meta_[block].references > 0);
    if (--meta_[block].references > 0) continue;
    if (Has(block, kPending)) Unregister(block);
    if (Has(block, kRegistered)) {
      free_.InsertBefore(next, block);
    } else {
      unhashed_.push_back(block);
    }
  }
  free_.PushFront(unhashed_);
  ++version_;
}

BlockDescription BlockPool::Describe(BlockId block) const {
  assert(Has(block, kRegistered));
  BlockDescription description;
  description.hash = hashes_[block];
  description.group = meta_[block].group;
  if (!options_.enable_events) return description;
  description.parent = parents_[block];
  description.token_ids = TokensOf(block);
  description.context = &contexts_.at(meta_[block].context);
  return description;
}

BlockId BlockPool::FindCached(const BlockHash& hash, std::uint32_t group) const {
  if (!options_.enable_caching) return kNullBlock;
  return index_.Find(BlockIndex::TagOf(hash, group),
                     [&](BlockId block) { return hashes_[block] == hash && meta_[block].group == group; });
}

BlockId BlockPool::FindComputed(const BlockHash& hash, std::uint32_t group) const {
  BlockId block = FindCached(hash, group);
  while (block != kNullBlock && Has(block, kFresh)) block = meta_[block].next_copy;
  return block;
}

bool BlockPool::is_full(BlockId block) const {
  return Has(block, kRegistered) && (num_tokens_.empty() || num_tokens_[block] == block_size(meta_[block].group));
}

std::size_t BlockPool::CountUnheld(std::span<const BlockId> blocks) const {
  return static_cast<std::size_t>(std::count_if(blocks.begin(), blocks.end(), [this](BlockId block) {
    return block != kNullBlock && meta_[block].references == 0;
  }));
}

BlockId BlockPool::HeadOf(BlockId block) const {
  return Has(block, kHead) ? block : FindCached(hashes_[block], meta_[block].group);
}

std::span<const TokenId> BlockPool::TokensOf(BlockId block) const {
  return {tokens_.get() + std::size_t{block} * max_block_size_,
          num_tokens_.empty() ? block_size(meta_[block].group) : num_tokens_[block]};
}

bool BlockPool::NeedsPredecessor(std::uint32_t group) const {
  return !options_.announce_at_registration &&
         (group >= options_.groups.size() || options_.groups[group].parents == Parents::kRegistered);
}

void BlockPool::Register(const BlockChain& chain, std::span<const BlockId> table, std::uint32_t first,
                         std::uint32_t last, std::uint32_t group) {
  if (!options_.enable_caching || first >= last) return;
  assert(std::size_t{last} * (block_size(group) / options_.block_size) <= chain.hashes.size() && last <= table.size());
  const std::uint32_t size = block_size(group);
  const bool needs_predecessor = NeedsPredecessor(group);
  const std::size_t hashes = size / options_.block_size;
  Run run{pending_.size(), pending_.size(), false};
  event_positions_.clear();
  for (std::uint32_t i = first; i < last; ++i) {
    if (const std::size_t ahead = (i + kPrefetched + 1) * hashes - 1; ahead < chain.hashes.size()) {
      index_.Prefetch(BlockIndex::TagOf(chain.hashes[ahead], group));
    }
    const BlockId block = table[i];
    const BlockId predecessor = i == 0 || !needs_predecessor ? kNullBlock : table[i - 1];
    if (predecessor != kNullBlock && !is_full(predecessor)) break;
    if (block == kNullBlock) {
      if (run.begin != run.end) runs_.push_back(run);
      run.begin = run.end;
      continue;
    }
    assert(!is_full(block));
    Enter(chain, block, group, i * size, (i + 1) * size);
    JoinCopies(block, i < chain.num_prompt_blocks);
    if (options_.announce_at_registration) {
      event_positions_.push_back(i);
      continue;
    }
    Enqueue(block, predecessor, &run);
  }
  if (run.begin != run.end) runs_.push_back(run);
  ++version_;
  if (options_.announce_at_registration && options_.enable_events) {
    const bool waits = !event_positions_.empty() && AwaitsParent(table[event_positions_.front()]);
    for (const std::uint32_t i : event_positions_) waits ? LeaveToWalk(table[i]) : CountAnnouncement(table[i]);
    if (!waits) RecordPositions(chain, event_positions_, first, last, group);
    stats_.stored += event_positions_.size();
  }
}

void BlockPool::RegisterPartial(const BlockChain& chain, std::span<const BlockId> table, std::uint32_t num_tokens,
                                std::uint32_t group) {
  if (!options_.enable_caching) return;
  const std::uint32_t position = num_tokens / block_size(group);
  assert(!num_tokens_.empty() && num_tokens % options_.block_size == 0 && num_tokens % block_size(group) != 0);
  const BlockId block = table[position];
  if (block == kNullBlock) return;
  if (Has(block, kRegistered) && hashes_[block] == chain.hashes[num_tokens / options_.block_size - 1]) return;
  const BlockId predecessor = position == 0 || !NeedsPredecessor(group) ? kNullBlock : table[position - 1];
  if (predecessor != kNullBlock && !is_full(predecessor)) return;
  Enter(chain, block, group,
        options_.announce_at_registration ? num_tokens - options_.block_size : position * block_size(group),
        num_tokens);
  JoinCopies(block, false);
  meta_[block].flags |= kFresh;
  fresh_.push_back(block);
  ++version_;
  if (!options_.announce_at_registration) {
    Run run{pending_.size(), pending_.size(), false};
    Enqueue(block, predecessor, &run);
    runs_.push_back(run);
  } else if (options_.enable_events) {
    AnnounceStore(block);
    RecordStored(false);
  }
}

// The block has the hash of the chain's token `end`, and is announced with the tokens from `begin` on. What it was
// registered as before leaves first.
void BlockPool::Enter(const BlockChain& chain, BlockId block, std::uint32_t group, std::uint32_t begin,
                      std::uint32_t end) {
  if (Has(block, kRegistered)) Unregister(block);
  meta_[block].group = static_cast<std::uint16_t>(group);
  meta_[block].flags = kRegistered;
  StoreContent(chain, block, begin, end);
}

// To be announced at the end of the run. REQUIRES: the run ends where pending_ does.
void BlockPool::Enqueue(BlockId block, BlockId predecessor, Run* run) {
  meta_[block].flags |= kPending;
  meta_[block].place_or_era = static_cast<std::uint32_t>(pending_.size());
  pending_.push_back(Pending{block, predecessor});
  run->end = pending_.size();
}

void BlockPool::StoreContent(const BlockChain& chain, BlockId block, std::uint32_t begin, std::uint32_t end) {
  hashes_[block] = chain.hashes[end / options_.block_size - 1];
  if (!num_tokens_.empty()) num_tokens_[block] = end - begin;
  if (!options_.enable_events) return;
  parents_[block] = begin == 0 ? BlockHash() : chain.hashes[begin / options_.block_size - 1];
  std::copy_n(chain.token_ids.data() + begin, end - begin, tokens_.get() + std::size_t{block} * max_block_size_);
  if (chain.extra_keys.empty() && chain.lora == nullptr) return;
  meta_[block].context = contexts_.Acquire(KeysOf(chain, begin, end), chain.lora);
}

// The extra keys of these tokens; valid until the next call.
const ExtraKeys& BlockPool::KeysOf(const BlockChain& chain, std::uint32_t begin, std::uint32_t end) {
  if (!chain.extra_keys.empty() && end - begin == options_.block_size) {
    return chain.extra_keys[begin / options_.block_size];
  }
  keys_ = chain.extra_keys.empty() ? ExtraKeys() : ExtraKeysOf(*chain.content, begin, end);
  return keys_;
}

void BlockPool::JoinCopies(BlockId block, bool prompt) {
  Meta& meta = meta_[block];
  meta.next_copy = kNullBlock;
  const BlockId head = FindCached(hashes_[block], meta.group);
  if (head == kNullBlock) {
    if (prompt) ++stats_.new_prompt_blocks;
    meta.flags |= kHead;
    meta.prev_copy = block;
    meta.copies = 1;
    meta.announced = 0;
    index_.Insert(BlockIndex::TagOf(hashes_[block], meta.group), block);
    return;
  }
  Meta& ledger = meta_[head];
  meta.prev_copy = ledger.prev_copy;
  meta_[ledger.prev_copy].next_copy = block;
  ledger.prev_copy = block;
  ++ledger.copies;
}

// Takes a block that is not the only one out of the ring.
void BlockPool::LeaveCopies(BlockId block, BlockId head) {
  Meta& meta = meta_[block];
  if (block != head) {
    meta_[meta.prev_copy].next_copy = meta.next_copy;
    meta_[meta.next_copy == kNullBlock ? head : meta.next_copy].prev_copy = meta.prev_copy;
    return;
  }
  const BlockId next = meta.next_copy;
  Meta& heir = meta_[next];
  heir.flags |= kHead;
  heir.prev_copy = meta.prev_copy == next ? next : meta.prev_copy;
  heir.copies = meta.copies;
  heir.announced = meta.announced;
  if (!ledger_eras_.empty()) ledger_eras_[next] = ledger_eras_[block];
  for (BlockWalk& walk : walks_) walk.Move(block, next);
  index_.Replace(BlockIndex::TagOf(hashes_[block], meta.group), block, next);
}

void BlockPool::Unregister(BlockId block) {
  Meta& meta = meta_[block];
  if (Has(block, kPending)) pending_[meta.place_or_era].block = kNullBlock;
  const BlockId head = HeadOf(block);
  --meta_[head].copies;
  if (options_.enable_events) {
    SettleLedger(head, hashes_[block], !Has(block, kPending) && meta.place_or_era == stream_era_);
  }
  if (meta_[head].copies == 0) {
    index_.Erase(BlockIndex::TagOf(hashes_[block], meta.group), block);
  } else {
    LeaveCopies(block, head);
  }
  contexts_.Release(meta.context);
  meta.context = BlockContextTable::kPlain;
  meta.flags = 0;
  ++version_;
}

// A copy has left, which the present era has announced or not; records the removals that this means.
void BlockPool::SettleLedger(BlockId head, const BlockHash& hash, bool counts) {
  Meta& ledger = meta_[head];
  std::uint32_t removals = 0;
  switch (options_.removals) {
    case Removals::kExact:
      if (ledger.copies == 0 && IsAnnounced(head)) removals = ledger.announced;
      break;
    case Removals::kPerCopy:
      if (counts) removals = 1;
      break;
  }
  if (removals == 0) return;
  ledger.announced -= removals;
  if (ledger.announced == 0) digest_.Remove(DigestSlot(ledger.group), hash.Low64());
  RecordRemoved(hash, ledger.group, removals);
}

void BlockPool::Report(std::span<const BlockId> blocks) {
  if (!options_.enable_events || !options_.enable_caching) return;
  Run run{pending_.size(), pending_.size(), true};
  for (const BlockId block : blocks) {
    // An event has blocks of one size.
    if (run.begin != run.end && (block == kNullBlock || !is_full(block))) {
      runs_.push_back(run);
      run.begin = run.end;
    }
    if (block == kNullBlock) continue;
    pending_.push_back(Pending{block, kNullBlock});
    run.end = pending_.size();
  }
  if (run.begin != run.end) runs_.push_back(run);
  if (options_.announce_at_registration) RecordRuns();
}

void BlockPool::ReportPositions(const BlockChain& chain, std::uint32_t count, std::uint32_t group) {
  if (!options_.enable_events || !options_.enable_caching || count == 0) return;
  event_positions_.resize(count);
  std::iota(event_positions_.begin(), event_positions_.end(), 0);
  RecordPositions(chain, event_positions_, 0, count, group);
  stats_.reported += count;
  // In the first era all that is there was announced.
  const std::size_t hashes = block_size(group) / options_.block_size;
  for (std::uint32_t i = 0; i < count && stream_era_ > 1; ++i) {
    const BlockId head = FindCached(chain.hashes[(i + 1) * hashes - 1], group);
    if (head != kNullBlock && !IsAnnounced(head)) CountAnnouncement(head);
  }
}

// One event as vLLM shapes it: the hashes of these positions, the tokens of all of [first, last).
void BlockPool::RecordPositions(const BlockChain& chain, std::span<const std::uint32_t> positions, std::uint32_t first,
                                std::uint32_t last, std::uint32_t group) {
  const std::size_t size = block_size(group);
  const std::size_t hashes = size / options_.block_size;
  event_hashes_.clear();
  event_keys_.clear();
  for (const std::uint32_t position : positions) {
    event_hashes_.push_back(chain.hashes[(position + 1) * hashes - 1]);
    if (chain.extra_keys.empty()) continue;
    const auto begin = static_cast<std::uint32_t>(position * size);
    event_keys_.push_back(KeysOf(chain, begin, begin + static_cast<std::uint32_t>(size)));
  }
  BlockStored stored;
  stored.block_hashes = event_hashes_;
  if (first > 0) stored.parent_block_hash = chain.hashes[first * hashes - 1];
  stored.token_ids = chain.token_ids.subspan(first * size, (last - first) * size);
  stored.block_size = static_cast<std::uint32_t>(size);
  stored.medium = kMediumGpu;
  stored.group_idx = group;
  stored.extra_keys.absent = positions.empty();
  const bool has_keys =
      std::any_of(event_keys_.begin(), event_keys_.end(), [](const ExtraKeys& keys) { return !keys.empty(); });
  if (has_keys) stored.extra_keys.per_block = event_keys_;
  if (chain.lora != nullptr) {
    stored.lora_id = chain.lora->id;
    stored.lora_name = chain.lora->name;
  }
  Annotate(&stored);
  recorded_.Add(stored);
}

void BlockPool::AnnouncePending() {
  for (const BlockId block : fresh_) meta_[block].flags &= static_cast<std::uint8_t>(~kFresh);
  if (!fresh_.empty()) ++version_;
  fresh_.clear();
  RecordRuns();
}

void BlockPool::RecordRuns() {
  for (const Run& run : runs_) {
    if (run.report) {
      AnnounceReport(run);
    } else {
      AnnounceStores(run);
    }
  }
  runs_.clear();
  pending_.clear();
}

void BlockPool::AnnounceStores(const Run& run) {
  event_blocks_.clear();
  for (std::size_t i = run.begin; i < run.end; ++i) {
    const auto [block, predecessor] = pending_[i];
    if (block == kNullBlock) {
      RecordStored(false);
      continue;
    }
    if (predecessor != kNullBlock && (!is_full(predecessor) || Has(predecessor, kPending))) {
      Unregister(block);
      RecordStored(false);
      continue;
    }
    meta_[block].flags &= static_cast<std::uint8_t>(~kPending);
    if (options_.enable_events) AnnounceStore(block);
  }
  RecordStored(false);
}

// Puts it into the event being made, or leaves it to the walk if it would be the event's first and its parent waits.
void BlockPool::AnnounceStore(BlockId block) {
  if (event_blocks_.empty() && AwaitsParent(block)) {
    LeaveToWalk(block);
    ++stats_.stored;
    return;
  }
  CountAnnouncement(block);
  event_blocks_.push_back(block);
}

// Up to the first block that is no longer there.
void BlockPool::AnnounceReport(const Run& run) {
  event_blocks_.clear();
  for (std::size_t i = run.begin; i < run.end; ++i) {
    const BlockId block = pending_[i].block;
    if ((meta_[block].flags & (kRegistered | kPending)) != kRegistered) break;
    if (event_blocks_.empty() && AwaitsParent(block)) continue;  // the walk announces it, if nobody did
    if (options_.removals == Removals::kExact || IsStaleCopy(block)) CountAnnouncement(block);
    event_blocks_.push_back(block);
  }
  RecordStored(true);
}

void BlockPool::CountAnnouncement(BlockId block) {
  meta_[block].place_or_era = stream_era_;
  AddAnnouncements(HeadOf(block), 1);
}

void BlockPool::AddAnnouncements(BlockId head, std::uint32_t announcements) {
  Meta& ledger = meta_[head];
  if (ledger_eras_[head] != stream_era_) ledger.announced = 0;
  ledger_eras_[head] = stream_era_;
  if (ledger.announced == 0) digest_.Add(DigestSlot(ledger.group), hashes_[head].Low64());
  ledger.announced += announcements;
}

std::size_t BlockPool::DigestSlot(std::uint32_t group) {
  if (!digest_slot_ || digest_group_ != group) {
    digest_slot_ = digest_.SlotOf(group, kMediumGpu);
    digest_group_ = group;
  }
  return *digest_slot_;
}

// One event for event_blocks_, which it empties.
void BlockPool::RecordStored(bool report) {
  if (event_blocks_.empty()) return;
  BeginStored(event_blocks_.front());
  for (const BlockId block : event_blocks_) {
    recorded_.AppendBlock(hashes_[block], TokensOf(block), contexts_.at(meta_[block].context).extra_keys);
  }
  (report ? stats_.reported : stats_.stored) += event_blocks_.size();
  event_blocks_.clear();
}

// A stored event that begins with the block and has no blocks yet.
void BlockPool::BeginStored(BlockId first) {
  const std::uint32_t group = meta_[first].group;
  const std::optional<LoraAdapter>& lora = contexts_.at(meta_[first].context).lora;
  const auto size = static_cast<std::uint32_t>(TokensOf(first).size());
  const bool repeats =
      last_stored_ == recorded_.size() && last_stored_group_ == group && last_stored_size_ == size && !lora;
  last_stored_ = lora ? kNoEvent : recorded_.size() + 1;
  last_stored_group_ = group;
  last_stored_size_ = size;
  const std::optional<BlockHash> parent =
      parents_[first].empty() ? std::nullopt : std::optional<BlockHash>(parents_[first]);
  if (repeats) return recorded_.RepeatStored(parent);
  BlockStored stored;
  stored.parent_block_hash = parent;
  stored.block_size = size;
  stored.medium = kMediumGpu;
  stored.group_idx = group;
  stored.extra_keys.absent = false;
  if (lora) {
    stored.lora_id = lora->id;
    stored.lora_name = lora->name;
  }
  Annotate(&stored);
  recorded_.Add(stored);
}

void BlockPool::RecordRemoved(const BlockHash& hash, std::uint32_t group, std::uint32_t times) {
  stats_.removed += times;
  for (; times > 0; --times) {
    if (last_removal_ == recorded_.size() && last_removal_group_ == group) {
      recorded_.RepeatRemoval(hash);
    } else {
      BlockRemoved removed;
      removed.block_hashes = {&hash, 1};
      removed.medium = kMediumGpu;
      removed.group_idx = group;
      recorded_.Add(removed);
    }
    last_removal_ = recorded_.size();
    last_removal_group_ = group;
  }
}

void BlockPool::Annotate(BlockStored* stored) {
  if (options_.groups.empty()) return;
  const std::uint32_t group = *stored->group_idx;
  if (group < options_.groups.size()) {
    stored->kv_cache_spec_kind = options_.groups[group].kind;
    stored->kv_cache_spec_sliding_window = options_.groups[group].sliding_window;
    return;
  }
  if (warned_group_) return;
  warned_group_ = true;
  Log(options_.log, LogLevel::kWarning, fmt::format("Group index `{}` not in KV cache metadata", group));
}

Status BlockPool::EvictBlocks(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    if (block >= options_.num_blocks) {
      return MakeError(ErrorCode::kInvalidArgument,
                       fmt::format("block id is {}; allowed: 0 to {}", block, options_.num_blocks - 1));
    }
  }
  for (const BlockId block : blocks) {
    if (Has(block, kRegistered)) Unregister(block);
  }
  return {};
}

std::size_t BlockPool::EvictHash(const BlockHash& hash, std::uint32_t group) {
  std::size_t copies = 0;
  // The argument may be a view of a block that is about to forget it.
  const BlockHash wanted = hash;
  for (BlockId block = FindCached(wanted, group); block != kNullBlock; block = FindCached(wanted, group)) {
    Unregister(block);
    ++copies;
  }
  return copies;
}

bool BlockPool::Reset() {
  if (free_.size() + 1 != options_.num_blocks) return false;
  index_.Clear();
  for (Meta& meta : meta_) {
    contexts_.Release(meta.context);
    meta = Meta{};
  }
  runs_.clear();
  pending_.clear();
  fresh_.clear();
  digest_.Clear();
  digest_slot_.reset();
  for (BlockWalk& walk : walks_) walk.End();
  ++era_;
  ++version_;
  if (options_.enable_events) {
    recorded_.Add(AllBlocksCleared{});
    ++stats_.clears;
  }
  return true;
}

KVEventBatch BlockPool::TakeEvents(KVEventBatch spare) {
  assert(spare.empty());
  last_removal_ = last_stored_ = kNoEvent;
  return std::exchange(recorded_, std::move(spare));
}

}  // namespace kvwire::scheduler
