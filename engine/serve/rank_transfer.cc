// SPDX-License-Identifier: Apache-2.0
// What a rank's step thread does with blocks that go from engine to engine.
#include <algorithm>
#include <cassert>
#include <utility>

#include <fmt/format.h>

#include "engine/serve/rank_life.h"

namespace kvwire::engine {

using scheduler::BlockId;
using scheduler::KeptBlocks;
using scheduler::Reception;
using scheduler::RequestId;

std::optional<std::size_t> RankLife::RoomFor(const Reception& reception) const {
  if (!engine_->scheduler().is_receiving(reception.request)) return std::nullopt;
  std::size_t words = 0;
  for (std::size_t group = 0; group < reception.parts.size(); ++group) {
    words += reception.parts[group].blocks.size() * BlockSize(group);
  }
  return words;
}

void RankLife::BeginReceptions(const scheduler::SchedulerOutput& step) {
  for (const Reception& reception : step.receptions) {
    std::optional<KVTransferParams> source;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = waiting_.find(reception.request);
      if (found != waiting_.end()) source = std::exchange(found->second.source, std::nullopt);
    }
    // Whoever took the request away has released what is held for it, and aborts it.
    if (!source) continue;
    if (reception.parts.empty()) {
      around_.transfer->Release(*std::move(source));
    } else {
      around_.transfer->Begin(around_.index, reception, *std::move(source));
    }
  }
}

void RankLife::EndReception(const Reception& reception, const std::vector<std::uint64_t>* words) {
  // Its blocks may be somebody else's by now.
  if (!engine_->scheduler().is_receiving(reception.request)) return;
  if (words != nullptr) {
    assert(words->size() == RoomFor(reception));
    std::span<const std::uint64_t> left(*words);
    for (std::size_t group = 0; group < reception.parts.size(); ++group) {
      for (const BlockId block : reception.parts[group].blocks) {
        memory_->WriteBlock(block, left.first(BlockSize(group)));
        left = left.subspan(BlockSize(group));
      }
    }
  }
  engine_->OnReceived(reception.request,
                      words != nullptr ? scheduler::Arrival::kComplete : scheduler::Arrival::kFailed);
}

ApiResult<std::vector<std::uint64_t>> RankLife::TakeKept(RequestId id,
                                                         const std::vector<std::vector<BlockId>>& blocks) {
  const KeptBlocks* const kept = engine_->scheduler().FindKept(id);
  if (kept == nullptr) {
    return tl::unexpected(
        NotFound("request_id", fmt::format("request_id is \"{}\", of which nothing is held: it was "
                                           "fetched, held too long, or given up",
                                           NameOf({around_.index, id}, around_.transfer->config().life))));
  }
  if (blocks.size() > kept->block_tables.size()) {
    return tl::unexpected(BadRequest("block_ids", fmt::format("block_ids has {} lists, expected at most {}",
                                                              blocks.size(), kept->block_tables.size())));
  }
  std::vector<std::uint64_t> words;
  for (std::size_t group = 0; group < blocks.size(); ++group) {
    const std::vector<BlockId>& table = kept->block_tables[group];
    if (blocks[group].size() > table.size()) {
      return tl::unexpected(BadRequest("block_ids", fmt::format("block_ids[{}] has {} ids, expected at most {}", group,
                                                                blocks[group].size(), table.size())));
    }
    for (const BlockId block : blocks[group]) {
      if (block == scheduler::kNullBlock || std::find(table.begin(), table.end(), block) == table.end()) {
        return tl::unexpected(
            BadRequest("block_ids", fmt::format("block_ids[{}] has {}, which request {} does not hold", group, block,
                                                NameOf({around_.index, id}, around_.transfer->config().life))));
      }
      for (std::uint32_t offset = 0; offset < BlockSize(group); ++offset) {
        words.push_back(memory_->WordAt(block, offset));
      }
    }
  }
  engine_->ReleaseKept(id);
  return words;
}

void RankLife::HoldFor(const scheduler::FinishedRequest& finished, bool is_awaited) {
  if (finished.kept.num_tokens == 0) return;
  if (is_awaited && around_.transfer != nullptr) {
    around_.transfer->Hold({around_.index, finished.id});
  } else {
    engine_->ReleaseKept(finished.id);
  }
}

}  // namespace kvwire::engine
