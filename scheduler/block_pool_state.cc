// SPDX-License-Identifier: Apache-2.0
// What the pool's stream says of its blocks: eras and walks.
#include <algorithm>

#include "scheduler/block_pool.h"

namespace kvwire::scheduler {

// The heads of the hashes, for a walk of one kind.
class BlockPool::WalkedBlocks {
 public:
  WalkedBlocks(BlockPool* pool, WalkKind kind, const WalkVisitor& visit) : pool_(*pool), kind_(kind), visit_(visit) {}

  bool Wants(BlockId block) const {
    if (!pool_.Has(block, kHead)) return false;
    return kind_ == WalkKind::kSnapshot ? pool_.IsAnnounced(block) : pool_.IsToBeRenewed(block);
  }
  BlockKey KeyOf(BlockId block) const { return {pool_.hashes_[block], pool_.meta_[block].group}; }
  BlockId Find(const BlockKey& key, BlockId last_seen) const {
    const bool is_there = pool_.Has(last_seen, kHead) && pool_.meta_[last_seen].group == key.group &&
                          pool_.hashes_[last_seen] == key.hash;
    return is_there ? last_seen : pool_.FindCached(key.hash, key.group);
  }
  BlockId ParentOf(BlockId block) const { return pool_.ParentOf(block); }
  void Visit(BlockId head) {
    if (kind_ == WalkKind::kRenew) {
      const std::uint32_t announcements = pool_.RenewCopies(head);
      pool_.AddAnnouncements(head, announcements);
      pool_.TellBlock(head, announcements, visit_);
    } else {
      pool_.TellBlock(head, pool_.meta_[head].announced, visit_);
    }
  }

 private:
  BlockPool& pool_;
  const WalkKind kind_;
  const WalkVisitor& visit_;
};

void BlockPool::BeginEra() {
  ++stream_era_;
  recorded_.Clear();
  last_removal_ = last_stored_ = kNoEvent;
  digest_.Clear();
  digest_slot_.reset();
}

void BlockPool::BeginWalk(WalkKind kind) {
  walks_[static_cast<std::size_t>(kind)].Begin(ledger_eras_.empty() ? 0 : ledger_eras_.size() - 1);
}

bool BlockPool::WalkSome(WalkKind kind, std::size_t max_blocks, const WalkVisitor& visit) {
  return walks_[static_cast<std::size_t>(kind)].Some(max_blocks, WalkedBlocks(this, kind, visit));
}

bool BlockPool::IsToBeRenewed(BlockId head) const {
  switch (options_.removals) {
    case Removals::kExact:
      return meta_[head].announced > 0 && ledger_eras_[head] != stream_era_;
    case Removals::kPerCopy:
      for (BlockId copy = head; copy != kNullBlock; copy = meta_[copy].next_copy) {
        if (IsStaleCopy(copy)) return true;
      }
      break;
  }
  return false;
}

// How many announcements bring the hash into the present era.
std::uint32_t BlockPool::RenewCopies(BlockId head) {
  std::uint32_t copies = 0;
  for (BlockId copy = head; copy != kNullBlock; copy = meta_[copy].next_copy) {
    if (!IsStaleCopy(copy)) continue;
    meta_[copy].place_or_era = stream_era_;
    ++copies;
  }
  return options_.removals == Removals::kExact ? 1 : copies;
}

// Whether the parent is there and the stream does not know it yet: it is announced by the renewing walk, and consumers
// do not take a block before its parent.
bool BlockPool::AwaitsParent(BlockId block) const {
  if (walks_[static_cast<std::size_t>(WalkKind::kRenew)].IsOver()) return false;
  const BlockId parent = ParentOf(block);
  return parent != kNullBlock && !IsAnnounced(parent) && IsToBeRenewed(parent);
}

// The block counts as announced in an earlier era, and the renewing walk goes there next.
void BlockPool::LeaveToWalk(BlockId block) {
  meta_[block].place_or_era = stream_era_ - 1;
  const BlockId head = HeadOf(block);
  if (options_.removals == Removals::kExact && !IsAnnounced(head)) {
    meta_[head].announced = std::max(meta_[head].announced, 1u);
    ledger_eras_[head] = stream_era_ - 1;
  }
  walks_[static_cast<std::size_t>(WalkKind::kRenew)].Add(head);
}

void BlockPool::TellBlock(BlockId head, std::uint32_t announcements, const WalkVisitor& visit) {
  const BlockContext& context = contexts_.at(meta_[head].context);
  BlockStored stored;
  stored.block_hashes = {&hashes_[head], 1};
  if (!parents_[head].empty()) stored.parent_block_hash = parents_[head];
  stored.token_ids = TokensOf(head);
  stored.block_size = static_cast<std::uint32_t>(stored.token_ids.size());
  stored.medium = kMediumGpu;
  stored.group_idx = meta_[head].group;
  stored.extra_keys.absent = false;
  if (!context.extra_keys.empty()) stored.extra_keys.per_block = {&context.extra_keys, 1};
  if (context.lora) {
    stored.lora_id = context.lora->id;
    stored.lora_name = context.lora->name;
  }
  Annotate(&stored);
  visit(stored, announcements);
}

std::uint32_t BlockPool::num_announced(const BlockHash& hash, std::uint32_t group) const {
  const BlockId head = FindCached(hash, group);
  return head == kNullBlock || ledger_eras_.empty() || !IsAnnounced(head) ? 0 : meta_[head].announced;
}

std::uint32_t BlockPool::num_copies(const BlockHash& hash, std::uint32_t group) const {
  const BlockId head = FindCached(hash, group);
  return head == kNullBlock ? 0 : meta_[head].copies;
}

void BlockPool::Walk(const std::function<void(const ResidentBlock&)>& visit) const {
  if (ledger_eras_.empty()) return;
  std::vector<bool> visited(options_.num_blocks);
  std::vector<BlockId> ancestry;
  for (BlockId start = 1; start < options_.num_blocks; ++start) {
    if (!Has(start, kHead)) continue;
    for (BlockId block = start; block != kNullBlock && !visited[block] && IsAnnounced(block);) {
      visited[block] = true;
      ancestry.push_back(block);
      block = parents_[block].empty() ? kNullBlock : FindCached(parents_[block], meta_[block].group);
    }
    for (; !ancestry.empty(); ancestry.pop_back()) {
      const BlockId block = ancestry.back();
      ResidentBlock resident;
      resident.hash = hashes_[block];
      if (!parents_[block].empty()) resident.parent = parents_[block];
      resident.token_ids = TokensOf(block);
      resident.group = meta_[block].group;
      visit(resident);
    }
  }
}

}  // namespace kvwire::scheduler
