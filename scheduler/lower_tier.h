// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv_events/aggregate/worker_event_aggregator.h"
#include "kv_events/announced_state.h"
#include "kv_events/batch.h"
#include "kv_events/digest.h"
#include "kv_events/error.h"
#include "kv_events/log.h"
#include "kv_events/resumable_walk.h"
#include "scheduler/block_context.h"
#include "scheduler/block_pool.h"
#include "scheduler/free_block_queue.h"
#include "scheduler/kv_connector.h"

namespace kvwire::scheduler {

struct LowerTierOptions {
  Tier tier = Tier::kHost;
  std::uint32_t num_blocks = 0;          // at least 1
  HostBlockId first_block = 1;           // the id of its first block; the others follow
  std::uint32_t num_workers = 1;         // each copies its part of every block; up to the aggregator's bound
  std::size_t max_stores_in_flight = 1;  // how many device blocks it holds at most
  bool enable_events = false;
  std::vector<GroupSpec> groups;  // as the pool has them
  StateDigest* digest = nullptr;  // of the stream, with events only; outlives the tier
  LogSink log;
};

// Blocks below the device, in host memory (medium "CPU") or on a disk ("DISK"). It takes what the device would evict
// next, and gives up what was used least recently. A block is found, and announced, from the step on in which the last
// worker has stored its part; a store that fails for one worker was none. It takes full blocks only: partial ones stay
// on the device. What was announced in an earlier era stays, and its removal is no event, until a renewing walk has met
// it: the workers need not say it again.
//
// Threads: the step thread.
// Bounds: about 200 bytes a block and 8 a worker; with events also twice its tokens. A hash is in at most one block.
class LowerTier final : public AnnouncedState {
 public:
  // Errors: kInvalidArgument names the option, its value and what is allowed.
  static Result<std::unique_ptr<LowerTier>> Create(LowerTierOptions options);

  // Blocks of this tier, and stores of its own jobs. The rest is as KVConnector has it.
  bool Has(HostBlockId block) const noexcept {
    return block >= options_.first_block && block - options_.first_block < options_.num_blocks;
  }
  Tier tier() const noexcept { return options_.tier; }

  bool IsAnnounced(HostBlockId block) const { return aggregator_ != nullptr && blocks_[PlaceOf(block)].era == era_; }
  HostBlockId FindBlock(const BlockHash& hash, std::uint32_t group) const;
  void Pin(HostBlockId block);
  void Unpin(HostBlockId block);
  void Drop(HostBlockId block);
  // `victims`: what the device would take next, whether it is registered or not. Jobs are numbered from *next_job on.
  void PlanStores(BlockPool* pool, std::span<const BlockId> victims, StoreJobId* next_job,
                  std::vector<StoreBlock>* stores);
  bool CancelStore(BlockPool* pool);
  std::size_t num_storing() const noexcept { return num_storing_; }
  void OnWorkerOutput(std::span<const StoreResult> results, BlockPool* pool);
  const KVEventBatch& TakeEvents();
  void Reset(TierReset policy);
  KVConnectorStats stats() const noexcept;

  // AnnouncedState; the digest is that of the whole stream. An era begins without what is recorded. REQUIRES, of a
  // walk: the events are taken.
  void Walk(const std::function<void(const ResidentBlock&)>& visit) const override;
  const StateDigest& digest() const override;
  void BeginEra() override;
  void BeginWalk(WalkKind kind) override;
  bool WalkSome(WalkKind kind, std::size_t max_blocks, const WalkVisitor& visit) override;

  // Blocks that a store may take.
  std::size_t num_available() const noexcept { return queue_.size(); }

 private:
  using Place = std::uint32_t;  // of a block within the tier, from 1 on; 0 is none

  enum class State : std::uint8_t { kEmpty, kStoring, kResident };
  struct Key {
    BlockHash hash;
    std::uint32_t group = 0;

    friend bool operator==(const Key&, const Key&) = default;
  };
  struct HashOfKey {
    std::size_t operator()(const Key& key) const noexcept {
      return key.hash.Low64() ^ (key.group * 0x9e3779b97f4a7c15u);
    }
  };
  // A block that is neither pinned nor written to by a worker is in the queue.
  struct Block {
    State state = State::kEmpty;
    std::uint32_t pins = 0;
    std::uint32_t era = 0;  // of a resident one: the last in which it was announced
    Key key;
    BlockHash parent;  // empty: none
    std::vector<TokenId> token_ids;
    BlockContext context;
  };
  struct Job {
    BlockId device_block = 0;
    Place place = 0;
    std::uint32_t num_results = 0;
    bool failed = false;
    bool cancelled = false;
    std::vector<bool> has_result;  // by worker
  };

  LowerTier(LowerTierOptions options, std::unique_ptr<WorkerEventAggregator> aggregator);

  Place PlaceOf(HostBlockId block) const noexcept { return block - options_.first_block + 1; }
  HostBlockId IdOf(Place place) const noexcept { return options_.first_block + place - 1; }
  std::string_view medium() const noexcept { return TraitsOf(options_.tier).medium; }
  Place Find(const BlockHash& hash, std::uint32_t group) const;
  Place TakePlace();
  void StartStore(BlockPool* pool, BlockId device_block, StoreJobId id, std::vector<StoreBlock>* stores);
  void EndStore(Job* job);
  void Forget(Place place);
  void ReportStored(std::uint32_t worker, Place place);
  void ReportRemoved(std::uint32_t worker, Place place);
  void Announce(Place place);
  BlockStored StoredOf(Place place) const;
  std::vector<Place> ParentsFirst() const;

  const LowerTierOptions options_;
  const std::unique_ptr<WorkerEventAggregator> aggregator_;  // null without events
  std::vector<Block> blocks_;                                // by place; entry 0 is none
  FreeBlockQueue queue_;                                     // empty ones, then resident ones by use
  std::unordered_map<Key, Place, HashOfKey> index_;          // resident ones and those being stored
  std::map<StoreJobId, Job> jobs_;                           // until every worker has reported
  std::size_t num_storing_ = 0;
  std::size_t num_resident_ = 0;
  std::uint32_t era_ = 1;
  class WalkedBlocks;
  std::array<ResumableWalk<Key>, 2> walks_;  // by kind
  KVEventBatch events_;
  KVConnectorStats stats_;

  // Reused between calls.
  std::vector<BlockId> victims_;
  std::vector<BlockId> returned_;  // device blocks of stores that ended
  KVEventBatch report_;
};

}  // namespace kvwire::scheduler
