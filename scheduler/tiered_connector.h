// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kv_events/batch.h"
#include "kv_events/error.h"
#include "kv_events/log.h"
#include "scheduler/kv_connector.h"
#include "scheduler/lower_tier.h"

namespace kvwire::scheduler {

struct TieredConnectorOptions {
  // By tier; 0: there is none. At least one of them is more.
  std::array<std::uint32_t, kNumTiers> num_blocks{};
  std::uint32_t num_workers = 1;
  std::size_t max_stores_in_flight = 1;  // of each tier
  std::uint32_t lookahead = 256;         // how many of the next victims it looks at in a step
  bool enable_events = false;
};

// The host tier, the disk tier, or both, behind one seam. Each takes what the device would evict next, so that a block
// is stored to both and leaves each on its own; lookups take the host's.
//
// Threads: the step thread. Order: in everything, the host comes before the disk.
// Bounds: those of its tiers.
class TieredConnector final : public KVConnector {
 public:
  // `pool` outlives the connector. Errors: as LowerTier::Create.
  static Result<std::unique_ptr<TieredConnector>> Create(const TieredConnectorOptions& options, BlockPool* pool,
                                                         const LogSink& log);

  HostBlockId FindBlock(const BlockHash& hash, std::uint32_t group) const override;
  Tier TierOf(HostBlockId block) const override { return At(block).tier(); }
  bool IsAnnounced(HostBlockId block) const override { return At(block).IsAnnounced(block); }
  void Pin(HostBlockId block) override { At(block).Pin(block); }
  void Unpin(HostBlockId block) override { At(block).Unpin(block); }
  void Drop(HostBlockId block) override { At(block).Drop(block); }
  void PlanStores(BlockPool* pool, std::vector<StoreBlock>* stores) override;
  bool CancelStore(BlockPool* pool) override;
  std::size_t num_storing() const noexcept override;
  void OnWorkerOutput(std::span<const StoreResult> results, BlockPool* pool) override;
  const KVEventBatch& TakeEvents() override;
  void Reset(TierReset policy) override;
  KVConnectorStats stats(Tier tier) const noexcept override;
  void Walk(const std::function<void(const ResidentBlock&)>& visit) const override;
  const StateDigest& digest() const override { return tiers_.front()->digest(); }
  void BeginEra() override;
  void BeginWalk(WalkKind kind) override;
  bool WalkSome(WalkKind kind, std::size_t max_blocks, const WalkVisitor& visit) override;

  // Null if there is none.
  const LowerTier* tier(Tier tier) const noexcept;

 private:
  TieredConnector(std::uint32_t lookahead, std::vector<std::unique_ptr<LowerTier>> tiers)
      : lookahead_(lookahead), tiers_(std::move(tiers)) {}

  LowerTier& At(HostBlockId block) const { return *(tiers_.front()->Has(block) ? tiers_.front() : tiers_.back()); }

  const std::uint32_t lookahead_;
  const std::vector<std::unique_ptr<LowerTier>> tiers_;  // one or two
  StoreJobId next_job_ = 1;
  std::array<std::size_t, 2> walked_tiers_{};  // by kind: those whose walk is over
  KVEventBatch events_;
  std::vector<BlockId> victims_;  // reused between calls
};

}  // namespace kvwire::scheduler
