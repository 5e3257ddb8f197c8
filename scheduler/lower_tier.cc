// SPDX-License-Identifier: Apache-2.0
#include "scheduler/lower_tier.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace kvwire::scheduler {

Result<std::unique_ptr<LowerTier>> LowerTier::Create(LowerTierOptions options) {
  constexpr std::uint32_t kMostBlocks = (1u << 30) - 1;  // what the aggregator takes
  if (options.num_blocks == 0 || options.num_blocks > kMostBlocks) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        fmt::format("{} is {}; allowed: 1 to {}", TraitsOf(options.tier).option, options.num_blocks, kMostBlocks));
  }
  if (options.num_workers == 0 || options.num_workers > WorkerEventAggregator::kMaxWorkers) {
    return MakeError(ErrorCode::kInvalidArgument, fmt::format("tensor_parallel_size is {}; allowed: 1 to {}",
                                                              options.num_workers, WorkerEventAggregator::kMaxWorkers));
  }
  std::unique_ptr<WorkerEventAggregator> aggregator;
  if (options.enable_events) {
    WorkerEventAggregatorOptions aggregation;
    aggregation.num_workers = options.num_workers;
    aggregation.clears = WorkerClears::kAsRemovals;
    // Every block it can ever hear of is one of the tier's.
    aggregation.max_pending_blocks = aggregation.max_complete_blocks = std::size_t{options.num_blocks} + 1;
    aggregation.max_pending_bytes = std::numeric_limits<std::size_t>::max();
    aggregation.log = options.log;
    auto created = WorkerEventAggregator::Create(std::move(aggregation));
    if (!created) return tl::unexpected<Error>(std::move(created).error());
    aggregator = *std::move(created);
  }
  return std::unique_ptr<LowerTier>(new LowerTier(std::move(options), std::move(aggregator)));
}

LowerTier::LowerTier(LowerTierOptions options, std::unique_ptr<WorkerEventAggregator> aggregator)
    : options_(std::move(options)),
      aggregator_(std::move(aggregator)),
      blocks_(std::size_t{options_.num_blocks} + 1),
      queue_(options_.num_blocks + 1) {}

// Resident ones only.
LowerTier::Place LowerTier::Find(const BlockHash& hash, std::uint32_t group) const {
  const auto found = index_.find(Key{hash, group});
  return found != index_.end() && blocks_[found->second].state == State::kResident ? found->second : 0;
}

HostBlockId LowerTier::FindBlock(const BlockHash& hash, std::uint32_t group) const {
  const Place place = Find(hash, group);
  return place == 0 ? kNoHostBlock : IdOf(place);
}

void LowerTier::Pin(HostBlockId block) {
  const Place place = PlaceOf(block);
  assert(blocks_[place].state == State::kResident);
  if (blocks_[place].pins++ == 0) queue_.Remove(place);
  ++stats_.loaded;
}

void LowerTier::Unpin(HostBlockId block) {
  const Place place = PlaceOf(block);
  assert(blocks_[place].pins > 0);
  if (--blocks_[place].pins > 0) return;
  if (blocks_[place].state == State::kResident) {
    queue_.PushBack(place);
  } else {
    queue_.PushFront({&place, 1});
  }
}

void LowerTier::Drop(HostBlockId block) {
  const Place place = PlaceOf(block);
  if (blocks_[place].state != State::kResident) return;
  Forget(place);
  if (blocks_[place].pins > 0) return;
  queue_.Remove(place);
  queue_.PushFront({&place, 1});
}

// The block is resident no more; its place in the queue is the caller's to settle.
void LowerTier::Forget(Place place) {
  for (std::uint32_t worker = 0; worker < options_.num_workers; ++worker) ReportRemoved(worker, place);
  Block& content = blocks_[place];
  if (aggregator_ != nullptr) {
    if (content.era == era_) {
      options_.digest->Remove(content.key.group, medium(), content.key.hash.Low64());
    } else {
      BlockRemoved untold;
      untold.block_hashes = {&content.key.hash, 1};
      untold.medium = medium();
      untold.group_idx = content.key.group;
      aggregator_->Retract(untold);
    }
  }
  index_.erase(content.key);
  content.state = State::kEmpty;
  --num_resident_;
  ++stats_.removed;
}

void LowerTier::PlanStores(BlockPool* pool, std::span<const BlockId> victims, StoreJobId* next_job,
                           std::vector<StoreBlock>* stores) {
  // Not more than the tier can hold, or it would drive its own blocks out in turn.
  victims = victims.first(std::min<std::size_t>(victims.size(), options_.num_blocks - num_storing_));
  victims_.assign(victims.begin(), victims.end());
  std::erase_if(victims_, [pool](BlockId block) { return !pool->is_full(block); });
  // What the device is about to lose shall stay here: it is used, the next victim last.
  for (std::size_t i = victims_.size(); i-- > 0;) {
    const BlockDescription victim = pool->Describe(victims_[i]);
    const Place place = Find(victim.hash, victim.group);
    if (place == 0 || blocks_[place].pins > 0) continue;
    queue_.Remove(place);
    queue_.PushBack(place);
  }
  for (const BlockId victim : victims_) {
    if (num_storing_ >= options_.max_stores_in_flight || queue_.size() == 0) return;
    const BlockDescription description = pool->Describe(victim);
    // Nothing if the tier has the block, or is about to.
    if (index_.contains(Key{description.hash, description.group})) continue;
    StartStore(pool, victim, (*next_job)++, stores);
  }
}

void LowerTier::StartStore(BlockPool* pool, BlockId device_block, StoreJobId id, std::vector<StoreBlock>* stores) {
  const BlockDescription description = pool->Describe(device_block);
  const Key key{description.hash, description.group};
  const Place place = TakePlace();
  Block& block = blocks_[place];
  block.state = State::kStoring;
  block.key = key;
  block.parent = description.parent;
  block.token_ids.assign(description.token_ids.begin(), description.token_ids.end());
  block.context = description.context == nullptr ? BlockContext() : *description.context;
  index_.emplace(key, place);
  pool->Touch({&device_block, 1});
  ++num_storing_;
  jobs_[id] = Job{device_block, place, 0, false, false, std::vector<bool>(options_.num_workers)};
  stores->push_back({id, device_block, IdOf(place), key.group, pool->block_size(key.group)});
}

// REQUIRES: the queue is not empty.
LowerTier::Place LowerTier::TakePlace() {
  const Place place = queue_.PopFront();
  if (blocks_[place].state == State::kResident) Forget(place);
  return place;
}

bool LowerTier::CancelStore(BlockPool* pool) {
  const auto last = std::find_if(jobs_.rbegin(), jobs_.rend(), [](const auto& job) { return !job.second.cancelled; });
  if (last == jobs_.rend()) return false;
  Job& job = last->second;
  job.cancelled = true;
  for (std::uint32_t worker = 0; worker < options_.num_workers; ++worker) {
    if (job.has_result[worker]) ReportRemoved(worker, job.place);
  }
  // The block stays empty and out of the queue until no worker can write to it any more.
  index_.erase(blocks_[job.place].key);
  blocks_[job.place].state = State::kEmpty;
  pool->Free({&job.device_block, 1}, EvictionOrder::kNext);
  --num_storing_;
  ++stats_.cancelled_stores;
  return true;
}

void LowerTier::OnWorkerOutput(std::span<const StoreResult> results, BlockPool* pool) {
  returned_.clear();
  for (const StoreResult& result : results) {
    const auto found = jobs_.find(result.job);
    if (found == jobs_.end() || result.worker >= options_.num_workers) continue;
    Job& job = found->second;
    if (job.has_result[result.worker]) continue;
    job.has_result[result.worker] = true;
    job.failed = job.failed || !result.ok;
    if (result.ok && !job.cancelled) ReportStored(result.worker, job.place);
    if (++job.num_results < options_.num_workers) continue;
    EndStore(&job);
    jobs_.erase(found);
  }
  if (!returned_.empty()) pool->Free(returned_, EvictionOrder::kNext);
}

// Every worker has reported.
void LowerTier::EndStore(Job* job) {
  Block& block = blocks_[job->place];
  if (job->cancelled) {
    queue_.PushFront({&job->place, 1});
    return;
  }
  returned_.push_back(job->device_block);
  --num_storing_;
  if (job->failed) {
    for (std::uint32_t worker = 0; worker < options_.num_workers; ++worker) ReportRemoved(worker, job->place);
    index_.erase(block.key);
    block.state = State::kEmpty;
    queue_.PushFront({&job->place, 1});
    ++stats_.failed_stores;
    return;
  }
  block.state = State::kResident;
  queue_.PushBack(job->place);
  Announce(job->place);
  ++num_resident_;
  ++stats_.stored;
}

// It is, or will be by the next TakeEvents().
void LowerTier::Announce(Place place) {
  if (aggregator_ == nullptr) return;
  Block& block = blocks_[place];
  block.era = era_;
  options_.digest->Add(block.key.group, medium(), block.key.hash.Low64());
}

// As it is announced; valid until the tier changes.
BlockStored LowerTier::StoredOf(Place place) const {
  const Block& block = blocks_[place];
  BlockStored stored;
  stored.block_hashes = {&block.key.hash, 1};
  if (!block.parent.empty()) stored.parent_block_hash = block.parent;
  stored.token_ids = block.token_ids;
  stored.block_size = static_cast<std::uint32_t>(block.token_ids.size());
  stored.medium = medium();
  stored.group_idx = block.key.group;
  stored.extra_keys.absent = false;
  if (!block.context.extra_keys.empty()) stored.extra_keys.per_block = {&block.context.extra_keys, 1};
  if (block.context.lora) {
    stored.lora_id = block.context.lora->id;
    stored.lora_name = block.context.lora->name;
  }
  if (block.key.group < options_.groups.size()) {
    stored.kv_cache_spec_kind = options_.groups[block.key.group].kind;
    stored.kv_cache_spec_sliding_window = options_.groups[block.key.group].sliding_window;
  }
  return stored;
}

void LowerTier::ReportStored(std::uint32_t worker, Place place) {
  if (aggregator_ == nullptr) return;
  report_.Clear();
  report_.Add(StoredOf(place));
  [[maybe_unused]] const Status taken = aggregator_->Add(worker, report_);
  assert(taken.has_value());
}

void LowerTier::ReportRemoved(std::uint32_t worker, Place place) {
  if (aggregator_ == nullptr) return;
  BlockRemoved removed;
  removed.block_hashes = {&blocks_[place].key.hash, 1};
  removed.medium = medium();
  removed.group_idx = blocks_[place].key.group;
  report_.Clear();
  report_.Add(removed);
  [[maybe_unused]] const Status taken = aggregator_->Add(worker, report_);
  assert(taken.has_value());
}

const KVEventBatch& LowerTier::TakeEvents() {
  if (aggregator_ != nullptr) {
    events_.Clear();
    events_ = aggregator_->Take(std::move(events_));
  }
  return events_;
}

void LowerTier::Reset(TierReset policy) {
  assert(num_storing_ == 0);
  // Whatever stays is announced by events.
  for (ResumableWalk<Key>& walk : walks_) walk.End();
  if (aggregator_ != nullptr) {
    // AllBlocksCleared has said it, and whatever was not yet published with it.
    report_.Clear();
    report_.Add(AllBlocksCleared{});
    for (std::uint32_t worker = 0; worker < options_.num_workers; ++worker) {
      [[maybe_unused]] const Status taken = aggregator_->Add(worker, report_);
    }
    TakeEvents();
  }
  switch (policy) {
    case TierReset::kKeep:
      if (aggregator_ == nullptr) return;
      for (const Place block : ParentsFirst()) {
        Announce(block);
        for (std::uint32_t worker = 0; worker < options_.num_workers; ++worker) ReportStored(worker, block);
      }
      return;
    case TierReset::kClear:
      index_.clear();
      for (Place block = 1; block < blocks_.size(); ++block) {
        if (blocks_[block].state != State::kResident) continue;
        blocks_[block].state = State::kEmpty;
        if (blocks_[block].pins > 0) continue;
        queue_.Remove(block);
        queue_.PushFront({&block, 1});
      }
      num_resident_ = 0;
      return;
  }
}

// The resident blocks.
std::vector<LowerTier::Place> LowerTier::ParentsFirst() const {
  std::vector<Place> order;
  order.reserve(num_resident_);
  std::vector<bool> visited(blocks_.size());
  std::vector<Place> ancestry;
  for (Place start = 1; start < blocks_.size(); ++start) {
    if (blocks_[start].state != State::kResident) continue;
    for (Place block = start; block != 0 && !visited[block];) {
      visited[block] = true;
      ancestry.push_back(block);
      const Block& content = blocks_[block];
      block = content.parent.empty() ? 0 : Find(content.parent, content.key.group);
    }
    order.insert(order.end(), ancestry.rbegin(), ancestry.rend());
    ancestry.clear();
  }
  return order;
}

KVConnectorStats LowerTier::stats() const noexcept {
  KVConnectorStats stats = stats_;
  stats.resident = num_resident_;
  return stats;
}

void LowerTier::Walk(const std::function<void(const ResidentBlock&)>& visit) const {
  if (aggregator_ == nullptr) return;
  for (const Place place : ParentsFirst()) {
    const Block& block = blocks_[place];
    if (block.era != era_) continue;
    ResidentBlock resident;
    resident.hash = block.key.hash;
    if (!block.parent.empty()) resident.parent = block.parent;
    resident.token_ids = block.token_ids;
    resident.group = block.key.group;
    resident.medium = medium();
    visit(resident);
  }
}

class LowerTier::WalkedBlocks {
 public:
  WalkedBlocks(LowerTier* tier, WalkKind kind, const WalkVisitor& visit) : tier_(*tier), kind_(kind), visit_(visit) {}

  bool Wants(Place place) const {
    const Block& block = tier_.blocks_[place];
    return block.state == State::kResident && (block.era == tier_.era_) == (kind_ == WalkKind::kSnapshot);
  }
  Key KeyOf(Place place) const { return tier_.blocks_[place].key; }
  Place Find(const Key& key, Place /*last_seen*/) const { return tier_.Find(key.hash, key.group); }
  Place ParentOf(Place place) const {
    const Block& block = tier_.blocks_[place];
    return block.parent.empty() ? 0 : tier_.Find(block.parent, block.key.group);
  }
  void Visit(Place place) {
    if (kind_ == WalkKind::kRenew) tier_.Announce(place);
    visit_(tier_.StoredOf(place), 1);
  }

 private:
  LowerTier& tier_;
  const WalkKind kind_;
  const WalkVisitor& visit_;
};

const StateDigest& LowerTier::digest() const {
  static const StateDigest kNothing;
  return options_.digest == nullptr ? kNothing : *options_.digest;
}

void LowerTier::BeginEra() {
  if (aggregator_ == nullptr) return;
  TakeEvents();
  events_.Clear();
  ++era_;
  options_.digest->ClearMedium(medium());
}

void LowerTier::BeginWalk(WalkKind kind) {
  walks_[static_cast<std::size_t>(kind)].Begin(aggregator_ == nullptr ? 0 : options_.num_blocks);
}

bool LowerTier::WalkSome(WalkKind kind, std::size_t max_blocks, const WalkVisitor& visit) {
  return walks_[static_cast<std::size_t>(kind)].Some(max_blocks, WalkedBlocks(this, kind, visit));
}

}  // namespace kvwire::scheduler
