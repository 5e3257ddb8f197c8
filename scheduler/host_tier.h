// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv_events/aggregate/worker_event_aggregator.h"
#include "kv_events/batch.h"
#include "kv_events/digest.h"
#include "scheduler/block_context.h"
#include "scheduler/block_pool.h"
#include "scheduler/free_block_queue.h"
#include "scheduler/kv_connector.h"

namespace kvwire::scheduler {

struct HostTierOptions {
  std::uint32_t num_blocks = 0;          // at least 1
  std::uint32_t num_workers = 1;         // each copies its part of every block; up to the aggregator's bound
  std::size_t max_stores_in_flight = 1;  // how many device blocks it holds at most
  std::uint32_t lookahead = 256;         // how many of the next victims it looks at in a step
  bool enable_events = false;
  std::vector<GroupSpec> groups;  // as the pool has them
  StateDigest* digest = nullptr;  // of the stream, with events only; outlives the tier
  LogSink log;
};

// Blocks in host memory, medium "CPU". It takes what the device would evict next, and gives up what was used least
// recently. A block is found, and announced, from the step on in which the last worker has stored its part; a store
// that fails for one worker was none. It takes full blocks only: partial ones stay on the device.
//
// Threads: the step thread.
// Bounds: about 200 bytes a block and 8 a worker; with events also twice its tokens. A hash is in at most one block.
class HostTier final : public KVConnector {
 public:
  // Errors: kInvalidArgument names the option, its value and what is allowed.
  static Result<std::unique_ptr<HostTier>> Create(HostTierOptions options);

  HostBlockId FindBlock(const BlockHash& hash, std::uint32_t group) const override;
  void Pin(HostBlockId block) override;
  void Unpin(HostBlockId block) override;
  void Drop(HostBlockId block) override;
  void PlanStores(BlockPool* pool, std::vector<StoreBlock>* stores) override;
  bool CancelStore(BlockPool* pool) override;
  std::size_t num_storing() const noexcept override { return num_storing_; }
  void OnWorkerOutput(std::span<const StoreResult> results, BlockPool* pool) override;
  const KVEventBatch& TakeEvents() override;
  void Reset(HostReset policy) override;
  KVConnectorStats stats() const noexcept override { return stats_; }
  void Walk(const std::function<void(const ResidentBlock&)>& visit) const override;

  std::size_t num_resident() const noexcept { return num_resident_; }
  // Blocks that a store may take.
  std::size_t num_available() const noexcept { return queue_.size(); }

 private:
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
    Key key;
    BlockHash parent;  // empty: none
    std::vector<TokenId> token_ids;
    BlockContext context;
  };
  struct Job {
    BlockId device_block = 0;
    HostBlockId host_block = kNoHostBlock;
    std::uint32_t num_results = 0;
    bool failed = false;
    bool cancelled = false;
    std::vector<bool> has_result;  // by worker
  };

  HostTier(HostTierOptions options, std::unique_ptr<WorkerEventAggregator> aggregator);

  HostBlockId TakeBlock();
  void StartStore(BlockPool* pool, BlockId device_block, std::vector<StoreBlock>* stores);
  void EndStore(Job* job);
  void Forget(HostBlockId block);
  void ReportStored(std::uint32_t worker, HostBlockId block);
  void ReportRemoved(std::uint32_t worker, HostBlockId block);
  std::vector<HostBlockId> ParentsFirst() const;

  const HostTierOptions options_;
  const std::unique_ptr<WorkerEventAggregator> aggregator_;  // null without events
  std::vector<Block> blocks_;                                // entry 0 is none
  FreeBlockQueue queue_;                                     // empty ones, then resident ones by use
  std::unordered_map<Key, HostBlockId, HashOfKey> index_;    // resident ones and those being stored
  std::map<StoreJobId, Job> jobs_;                           // until every worker has reported
  StoreJobId next_job_ = 1;
  std::size_t num_storing_ = 0;
  std::size_t num_resident_ = 0;
  KVEventBatch events_;
  KVConnectorStats stats_;

  // Reused between calls.
  std::vector<BlockId> victims_;
  std::vector<BlockId> returned_;  // device blocks of stores that ended
  KVEventBatch report_;
};

}  // namespace kvwire::scheduler
