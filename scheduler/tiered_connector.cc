// SPDX-License-Identifier: Apache-2.0
#include "scheduler/tiered_connector.h"

namespace kvwire::scheduler {

Result<std::unique_ptr<TieredConnector>> TieredConnector::Create(const TieredConnectorOptions& options, BlockPool* pool,
                                                                 const LogSink& log) {
  std::vector<std::unique_ptr<LowerTier>> tiers;
  HostBlockId first_block = 1;
  for (std::size_t i = 0; i < kNumTiers; ++i) {
    if (options.num_blocks[i] == 0) continue;
    LowerTierOptions own;
    own.tier = static_cast<Tier>(i);
    own.num_blocks = options.num_blocks[i];
    own.first_block = first_block;
    own.num_workers = options.num_workers;
    own.max_stores_in_flight = options.max_stores_in_flight;
    own.enable_events = options.enable_events;
    own.groups = pool->options().groups;
    own.digest = pool->stream_digest();
    own.log = log;
    auto tier = LowerTier::Create(std::move(own));
    if (!tier) return tl::unexpected<Error>(std::move(tier).error());
    tiers.push_back(*std::move(tier));
    first_block += options.num_blocks[i];
  }
  return std::unique_ptr<TieredConnector>(new TieredConnector(options.lookahead, std::move(tiers)));
}

HostBlockId TieredConnector::FindBlock(const BlockHash& hash, std::uint32_t group) const {
  for (const auto& tier : tiers_) {
    if (const HostBlockId block = tier->FindBlock(hash, group); block != kNoHostBlock) return block;
  }
  return kNoHostBlock;
}

// The victims are chosen once: a tier takes the blocks that it stores out of the queue.
void TieredConnector::PlanStores(BlockPool* pool, std::vector<StoreBlock>* stores) {
  pool->free_queue().First(lookahead_, &victims_);
  for (const auto& tier : tiers_) tier->PlanStores(pool, victims_, &next_job_, stores);
}

bool TieredConnector::CancelStore(BlockPool* pool) {
  for (std::size_t i = tiers_.size(); i-- > 0;) {
    if (tiers_[i]->CancelStore(pool)) return true;
  }
  return false;
}

std::size_t TieredConnector::num_storing() const noexcept {
  std::size_t num_storing = 0;
  for (const auto& tier : tiers_) num_storing += tier->num_storing();
  return num_storing;
}

void TieredConnector::OnWorkerOutput(std::span<const StoreResult> results, BlockPool* pool) {
  for (const auto& tier : tiers_) tier->OnWorkerOutput(results, pool);
}

const KVEventBatch& TieredConnector::TakeEvents() {
  if (tiers_.size() == 1) return tiers_.front()->TakeEvents();
  events_.Clear();
  for (const auto& tier : tiers_) {
    tier->TakeEvents().Visit([this](const auto& event) { events_.Add(event); });
  }
  return events_;
}

void TieredConnector::Reset(TierReset policy) {
  for (const auto& tier : tiers_) tier->Reset(policy);
}

KVConnectorStats TieredConnector::stats(Tier tier) const noexcept {
  const LowerTier* const asked = this->tier(tier);
  return asked == nullptr ? KVConnectorStats() : asked->stats();
}

void TieredConnector::Walk(const std::function<void(const ResidentBlock&)>& visit) const {
  for (const auto& tier : tiers_) tier->Walk(visit);
}

void TieredConnector::BeginEra() {
  for (const auto& tier : tiers_) tier->BeginEra();
}

void TieredConnector::BeginWalk(WalkKind kind) {
  walked_tiers_[static_cast<std::size_t>(kind)] = 0;
  for (const auto& tier : tiers_) tier->BeginWalk(kind);
}

bool TieredConnector::WalkSome(WalkKind kind, std::size_t max_blocks, const WalkVisitor& visit) {
  std::size_t& walked = walked_tiers_[static_cast<std::size_t>(kind)];
  if (walked < tiers_.size() && !tiers_[walked]->WalkSome(kind, max_blocks, visit)) ++walked;
  return walked < tiers_.size();
}

const LowerTier* TieredConnector::tier(Tier tier) const noexcept {
  for (const auto& one : tiers_) {
    if (one->tier() == tier) return one.get();
  }
  return nullptr;
}

}  // namespace kvwire::scheduler
