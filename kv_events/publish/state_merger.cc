// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/state_merger.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "kv_events/digest.h"
#include "kv_events/events.h"
#include "kv_events/wire/msgpack_writer.h"

namespace kvwire {

namespace {

// Array of three, time: what stands before the array of events.
constexpr std::size_t kBeforeEvents = 10;

std::size_t ArrayHeadBytes(std::size_t count) { return count < 16 ? 1 : count <= 0xffff ? 3 : 5; }

bool SameAttributes(const BlockStored& a, const BlockStored& b) {
  return a.block_size == b.block_size && a.lora_id == b.lora_id && a.medium == b.medium && a.lora_name == b.lora_name &&
         a.extra_keys.absent == b.extra_keys.absent && a.group_idx == b.group_idx &&
         a.kv_cache_spec_kind == b.kv_cache_spec_kind &&
         a.kv_cache_spec_sliding_window == b.kv_cache_spec_sliding_window && a.locality == b.locality &&
         a.ownership == b.ownership && a.session_id == b.session_id;
}

}  // namespace

std::uint32_t StateMerger::MediumOf(const std::optional<std::string_view>& medium) {
  std::string name = CanonicalMedium(medium.value_or(std::string_view()));
  const auto found = std::ranges::find(media_, name);
  const auto index = static_cast<std::uint32_t>(found - media_.begin());
  if (found == media_.end()) media_.push_back(std::move(name));
  return index;
}

void StateMerger::Forget() {
  blocks_.clear();
  batches_.clear();
  bytes_ = 0;
  damaged_ = false;
}

void StateMerger::Add(KVEventBatch&& batch) {
  if (failed_ || !frame_.empty() || !Keep(batch)) return;
  bytes_ += batch.ByteSize();
  batches_.push_back(std::move(batch));
  if (bytes_ <= 2 * max_payload_bytes_) return;
  Forget();
  failed_ = true;
}

// Whether the batch has to stay for what it stores. Its place is behind those that are there.
bool StateMerger::Keep(const KVEventBatch& batch) {
  bool stores = false;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const KVEventBatch::Event event = batch.at(i);
    if (const auto* stored = std::get_if<BlockStored>(&event)) {
      const Key key{stored->group_idx.value_or(0), MediumOf(stored->medium), {}};
      for (std::uint32_t block = 0; block < stored->block_hashes.size(); ++block) {
        Key own = key;
        own.hash = stored->block_hashes[block];
        const Held held{static_cast<std::uint32_t>(batches_.size()), static_cast<std::uint32_t>(i), block, false};
        stores = blocks_.emplace(own, held).second || stores;
      }
    } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
      Key key{removed->group_idx.value_or(0), MediumOf(removed->medium), {}};
      for (const BlockHash& hash : removed->block_hashes) {
        key.hash = hash;
        blocks_.erase(key);
      }
    } else {
      Forget();
      stores = false;
    }
  }
  return stores;
}

void StateMerger::Finish(double ts, std::optional<std::int64_t> rank) {
  part_.ts = ts;
  part_.data_parallel_rank = rank;
  try {
    encode_(part_, &frame_);
  } catch (...) {
    failed_ = true;
  }
  failed_ = failed_ || damaged_;
  part_.Add(AllBlocksCleared{});
  at_ = blocks_.begin();
}

StateMerger::OneBlock StateMerger::BlockOf(const Held& held) const {
  const KVEventBatch::Event event = batches_[held.batch].at(held.event);
  OneBlock block;
  block.event = std::get<BlockStored>(event);
  const BlockStored& stored = block.event;
  block.hash = stored.block_hashes[held.block];
  block.parent = held.block == 0 ? stored.parent_block_hash : stored.block_hashes[held.block - 1];
  // Tokens that are not one block's worth per hash belong to no block.
  if (stored.token_ids.size() == stored.block_hashes.size() * stored.block_size) {
    block.tokens = stored.token_ids.subspan(std::size_t{held.block} * stored.block_size, stored.block_size);
  }
  if (!stored.extra_keys.per_block.empty()) block.extra_keys = &stored.extra_keys.per_block[held.block];
  return block;
}

// In the same medium, or else in another.
StateMerger::Blocks::iterator StateMerger::ParentOf(const Key& key, const std::optional<BlockHash>& parent) {
  if (!parent) return blocks_.end();
  auto found = blocks_.find(Key{key.group, key.medium, *parent});
  for (std::uint32_t medium = 0; found == blocks_.end() && medium < media_.size(); ++medium) {
    found = blocks_.find(Key{key.group, medium, *parent});
  }
  return found;
}

bool StateMerger::AssembleSome(std::size_t max_blocks) {
  if (failed_) return false;
  for (std::size_t done = 0; done < max_blocks && !failed_; ++done) {
    while (path_.empty() && at_ != blocks_.end() && at_->second.assembled) ++at_;
    if (path_.empty()) {
      if (at_ == blocks_.end()) {
        EndRun();
        EncodePart();
        return false;
      }
      path_.push_back(at_);
    }
    // Climbing counts, too: a path may be long.
    const auto top = path_.back();
    if (top->second.assembled) {
      path_.pop_back();
      continue;
    }
    const OneBlock block = BlockOf(top->second);
    const auto parent = ParentOf(top->first, block.parent);
    // A path without end would need a hash of its own hash.
    if (parent != blocks_.end() && !parent->second.assembled && path_.size() <= blocks_.size()) {
      path_.push_back(parent);
      continue;
    }
    top->second.assembled = true;
    path_.pop_back();
    AppendToRun(block);
  }
  EndRun();
  EncodePart();
  return !failed_;
}

bool StateMerger::Continues(const OneBlock& block) const {
  return !run_hashes_.empty() && block.parent == run_hashes_.back() && SameAttributes(run_.event, block.event) &&
         run_.tokens.empty() == block.tokens.empty() && (run_.extra_keys == nullptr) == (block.extra_keys == nullptr);
}

void StateMerger::AppendToRun(const OneBlock& block) {
  if (!Continues(block)) {
    EndRun();
    run_ = block;
  }
  run_hashes_.push_back(block.hash);
  run_tokens_.insert(run_tokens_.end(), block.tokens.begin(), block.tokens.end());
  if (block.extra_keys != nullptr) run_extras_.push_back(*block.extra_keys);
}

void StateMerger::EndRun() {
  if (run_hashes_.empty()) return;
  BlockStored stored = run_.event;
  stored.block_hashes = run_hashes_;
  stored.parent_block_hash = run_.parent;
  stored.token_ids = run_tokens_;
  stored.extra_keys.per_block = run_extras_;
  part_.Add(stored);
  run_hashes_.clear();
  run_tokens_.clear();
  run_extras_.clear();
}

// The events of a part, without what stands around them.
void StateMerger::EncodePart() {
  if (failed_ || part_.empty()) return;
  const double ts = part_.ts;
  const std::optional<std::int64_t> rank = part_.data_parallel_rank;
  try {
    const std::size_t tail = frame_.size() - kBeforeEvents - ArrayHeadBytes(0);
    scratch_.clear();
    encode_(part_, &scratch_);
    const std::size_t head = kBeforeEvents + ArrayHeadBytes(part_.size());
    events_.insert(events_.end(), scratch_.begin() + static_cast<std::ptrdiff_t>(head),
                   scratch_.end() - static_cast<std::ptrdiff_t>(tail));
  } catch (...) {
    failed_ = true;
  }
  num_events_ += static_cast<std::uint32_t>(part_.size());
  failed_ = failed_ || events_.size() > max_payload_bytes_;
  part_.Clear();
  part_.ts = ts;
  part_.data_parallel_rank = rank;
}

SharedBytes StateMerger::Take() {
  const auto events_at = frame_.begin() + kBeforeEvents;
  std::uint8_t head[MsgpackWriter::kMaxHead];
  MsgpackWriter writer(head);
  writer.Array(num_events_);
  std::vector<std::uint8_t> payload;
  payload.reserve(frame_.size() + sizeof(head) + events_.size());
  payload.assign(frame_.begin(), events_at);
  payload.insert(payload.end(), head, writer.at());
  payload.insert(payload.end(), events_.begin(), events_.end());
  payload.insert(payload.end(), events_at + 1, frame_.end());
  return std::make_shared<const std::vector<std::uint8_t>>(std::move(payload));
}

}  // namespace kvwire
