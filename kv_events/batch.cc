// SPDX-License-Identifier: Apache-2.0
#include "kv_events/batch.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

namespace kvwire {

namespace {

// Texts of a batch repeat (medium, kind, LoRA name). Beyond this many different ones a new text is appended unseen.
constexpr std::size_t kInternWindow = 16;

bool SameExtraKeys(const ExtraKeysView& a, const ExtraKeysView& b, std::size_t blocks) {
  if (a.absent != b.absent) return false;
  if (a.absent) return true;
  static const ExtraKeys kNoKeys;
  for (std::size_t i = 0; i < blocks; ++i) {
    const ExtraKeys& x = a.per_block.empty() ? kNoKeys : a.per_block[i];
    const ExtraKeys& y = b.per_block.empty() ? kNoKeys : b.per_block[i];
    if (x != y) return false;
  }
  return true;
}

bool Same(const BlockStored& a, const BlockStored& b) {
  return std::ranges::equal(a.block_hashes, b.block_hashes) && a.parent_block_hash == b.parent_block_hash &&
         std::ranges::equal(a.token_ids, b.token_ids) && a.block_size == b.block_size && a.lora_id == b.lora_id &&
         a.medium == b.medium && a.lora_name == b.lora_name &&
         SameExtraKeys(a.extra_keys, b.extra_keys, a.block_hashes.size()) && a.group_idx == b.group_idx &&
         a.kv_cache_spec_kind == b.kv_cache_spec_kind &&
         a.kv_cache_spec_sliding_window == b.kv_cache_spec_sliding_window && a.locality == b.locality &&
         a.ownership == b.ownership && a.session_id == b.session_id;
}

bool Same(const BlockRemoved& a, const BlockRemoved& b) {
  return std::ranges::equal(a.block_hashes, b.block_hashes) && a.medium == b.medium && a.group_idx == b.group_idx &&
         a.locality == b.locality && a.ownership == b.ownership;
}

bool Same(const AllBlocksCleared&, const AllBlocksCleared&) { return true; }

}  // namespace

KVEventBatch::KVEventBatch(KVEventBatch&& other) noexcept { *this = std::move(other); }

KVEventBatch& KVEventBatch::operator=(KVEventBatch&& other) noexcept {
  if (this == &other) return *this;
  ts = other.ts;
  data_parallel_rank = other.data_parallel_rank;
  digest = std::move(other.digest);
  has_digest = other.has_digest;
  records_ = std::move(other.records_);
  hashes_ = std::move(other.hashes_);
  tokens_ = std::move(other.tokens_);
  extras_ = std::move(other.extras_);
  texts_ = std::move(other.texts_);
  num_texts_ = other.num_texts_;
  num_events_ = other.num_events_;
  // The texts go with their count: one that stayed behind would name texts that are no longer there.
  other.Clear();
  return *this;
}

std::uint32_t KVEventBatch::Intern(const std::optional<std::string_view>& text) {
  if (!text) return kNone;
  const std::size_t known = std::min(num_texts_, kInternWindow);
  for (std::size_t i = 0; i < known; ++i) {
    if (texts_[i] == *text) return static_cast<std::uint32_t>(i);
  }
  if (num_texts_ == texts_.size()) texts_.emplace_back();
  texts_[num_texts_].assign(*text);
  return static_cast<std::uint32_t>(num_texts_++);
}

std::optional<std::string_view> KVEventBatch::Text(std::uint32_t index) const {
  if (index == kNone) return std::nullopt;
  return texts_[index];
}

void KVEventBatch::Add(const BlockStored& stored) {
  assert(stored.extra_keys.per_block.empty() || stored.extra_keys.per_block.size() == stored.block_hashes.size());
  Record& record = Append(Kind::kStored);
  if (stored.parent_block_hash) {
    record.has_parent = true;
    hashes_.push_back(*stored.parent_block_hash);
  }
  record.hashes = static_cast<std::uint32_t>(hashes_.size());
  record.num_hashes = static_cast<std::uint32_t>(stored.block_hashes.size());
  hashes_.insert(hashes_.end(), stored.block_hashes.begin(), stored.block_hashes.end());
  record.tokens = static_cast<std::uint32_t>(tokens_.size());
  record.num_tokens = static_cast<std::uint32_t>(stored.token_ids.size());
  tokens_.insert(tokens_.end(), stored.token_ids.begin(), stored.token_ids.end());
  record.block_size = stored.block_size;
  if (stored.lora_id) {
    record.has_lora_id = true;
    record.lora_id = *stored.lora_id;
  }
  if (!stored.extra_keys.absent) {
    record.extra = stored.extra_keys.per_block.empty() ? Extra::kAllNull : Extra::kListed;
    record.extras = static_cast<std::uint32_t>(extras_.size());
    extras_.insert(extras_.end(), stored.extra_keys.per_block.begin(), stored.extra_keys.per_block.end());
  }
  if (stored.group_idx) {
    record.has_group = true;
    record.group_idx = *stored.group_idx;
  }
  if (stored.kv_cache_spec_sliding_window) {
    record.has_window = true;
    record.sliding_window = *stored.kv_cache_spec_sliding_window;
  }
  record.medium = Intern(stored.medium);
  record.lora_name = Intern(stored.lora_name);
  record.kind_text = Intern(stored.kv_cache_spec_kind);
  record.locality = Intern(stored.locality);
  record.ownership = Intern(stored.ownership);
  record.session_id = Intern(stored.session_id);
}

void KVEventBatch::AppendBlock(const BlockHash& hash, std::span<const TokenId> token_ids, const ExtraKeys& extra_keys) {
  Record& record = records_.back();
  assert(record.kind == Kind::kStored && (record.extra != Extra::kAbsent || extra_keys.empty()));
  if (record.extra == Extra::kAllNull && !extra_keys.empty()) {
    record.extra = Extra::kListed;
    extras_.resize(record.extras + record.num_hashes);
  }
  if (record.extra == Extra::kListed) extras_.push_back(extra_keys);
  hashes_.push_back(hash);
  ++record.num_hashes;
  tokens_.insert(tokens_.end(), token_ids.begin(), token_ids.end());
  record.num_tokens += static_cast<std::uint32_t>(token_ids.size());
}

void KVEventBatch::RepeatStored(const std::optional<BlockHash>& parent) {
  Record record = records_.back();
  assert(record.kind == Kind::kStored && record.extra != Extra::kAbsent);
  record.has_parent = parent.has_value();
  if (parent) hashes_.push_back(*parent);
  record.hashes = static_cast<std::uint32_t>(hashes_.size());
  record.tokens = static_cast<std::uint32_t>(tokens_.size());
  record.num_hashes = record.num_tokens = 0;
  record.extra = Extra::kAllNull;
  record.extras = static_cast<std::uint32_t>(extras_.size());
  record.first_event = num_events_++;
  records_.push_back(record);
}

void KVEventBatch::Add(const BlockRemoved& removed) {
  Record record;
  record.kind = Kind::kRemoved;
  record.hashes = static_cast<std::uint32_t>(hashes_.size());
  record.num_hashes = static_cast<std::uint32_t>(removed.block_hashes.size());
  hashes_.insert(hashes_.end(), removed.block_hashes.begin(), removed.block_hashes.end());
  if (removed.group_idx) {
    record.has_group = true;
    record.group_idx = *removed.group_idx;
  }
  record.medium = Intern(removed.medium);
  record.locality = Intern(removed.locality);
  record.ownership = Intern(removed.ownership);
  if (!records_.empty() && Continues(records_.back(), record)) {
    ++records_.back().num_events;
    ++num_events_;
    return;
  }
  record.first_event = num_events_++;
  records_.push_back(record);
}

// Whether the removal `next`, whose hashes were just added, is like those before it.
bool KVEventBatch::Continues(const Record& removals, const Record& next) {
  return removals.kind == Kind::kRemoved && removals.num_hashes == next.num_hashes &&
         removals.has_group == next.has_group && removals.group_idx == next.group_idx &&
         removals.medium == next.medium && removals.locality == next.locality && removals.ownership == next.ownership;
}

void KVEventBatch::RepeatRemoval(const BlockHash& hash) {
  assert(records_.back().kind == Kind::kRemoved && records_.back().num_hashes == 1);
  hashes_.push_back(hash);
  ++records_.back().num_events;
  ++num_events_;
}

void KVEventBatch::Add(const AllBlocksCleared&) { Append(Kind::kCleared); }

KVEventBatch::Record& KVEventBatch::Append(Kind kind) {
  Record& record = records_.emplace_back();
  record.kind = kind;
  record.first_event = num_events_++;
  return record;
}

void KVEventBatch::Clear() noexcept {
  ts = 0;
  data_parallel_rank.reset();
  has_digest = false;
  records_.clear();
  hashes_.clear();
  tokens_.clear();
  extras_.clear();
  num_texts_ = 0;
  num_events_ = 0;
}

std::size_t KVEventBatch::ByteSize() const noexcept {
  std::size_t bytes = records_.size() * sizeof(Record) + hashes_.size() * sizeof(BlockHash) +
                      tokens_.size() * sizeof(TokenId) + extras_.size() * sizeof(ExtraKeys);
  for (const ExtraKeys& keys : extras_) bytes += keys.size() * sizeof(ExtraKey);
  for (std::size_t i = 0; i < num_texts_; ++i) bytes += texts_[i].size() + sizeof(std::string);
  return bytes;
}

KVEventBatch::Event KVEventBatch::at(std::size_t i) const {
  const auto behind = std::ranges::upper_bound(records_, i, {}, &Record::first_event);
  const Record& record = *std::prev(behind);
  return EventOf(record, static_cast<std::uint32_t>(i) - record.first_event);
}

KVEventBatch::Event KVEventBatch::EventOf(const Record& record, std::uint32_t event) const {
  if (record.kind == Kind::kCleared) return AllBlocksCleared{};
  const std::span<const BlockHash> hashes(hashes_.data() + record.hashes + std::size_t{event} * record.num_hashes,
                                          record.num_hashes);
  const std::optional<std::uint32_t> group =
      record.has_group ? std::optional<std::uint32_t>(record.group_idx) : std::nullopt;
  if (record.kind == Kind::kRemoved) {
    BlockRemoved removed;
    removed.block_hashes = hashes;
    removed.medium = Text(record.medium);
    removed.group_idx = group;
    removed.locality = Text(record.locality);
    removed.ownership = Text(record.ownership);
    return removed;
  }
  BlockStored stored;
  stored.block_hashes = hashes;
  if (record.has_parent) stored.parent_block_hash = hashes_[record.hashes - 1];
  stored.token_ids = {tokens_.data() + record.tokens, record.num_tokens};
  stored.block_size = record.block_size;
  if (record.has_lora_id) stored.lora_id = record.lora_id;
  stored.medium = Text(record.medium);
  stored.lora_name = Text(record.lora_name);
  stored.extra_keys.absent = record.extra == Extra::kAbsent;
  if (record.extra == Extra::kListed) {
    stored.extra_keys.per_block = {extras_.data() + record.extras, record.num_hashes};
  }
  stored.group_idx = group;
  stored.kv_cache_spec_kind = Text(record.kind_text);
  if (record.has_window) stored.kv_cache_spec_sliding_window = record.sliding_window;
  stored.locality = Text(record.locality);
  stored.ownership = Text(record.ownership);
  stored.session_id = Text(record.session_id);
  return stored;
}

bool operator==(const KVEventBatch& a, const KVEventBatch& b) {
  if (a.ts != b.ts || a.data_parallel_rank != b.data_parallel_rank || a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const KVEventBatch::Event x = a.at(i);
    const KVEventBatch::Event y = b.at(i);
    if (x.index() != y.index()) return false;
    const bool same =
        std::visit([&y](const auto& event) { return Same(event, std::get<std::decay_t<decltype(event)>>(y)); }, x);
    if (!same) return false;
  }
  return true;
}

}  // namespace kvwire
