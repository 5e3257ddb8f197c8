// SPDX-License-Identifier: Apache-2.0
#include "kv_events/block_attributes.h"

#include <functional>

namespace kvwire {

namespace {

template <class T>
void Mix(std::size_t* seed, const std::optional<T>& value) noexcept {
  const std::size_t hash = value ? std::hash<T>()(*value) + 1 : 0;
  *seed ^= hash + 0x9e3779b97f4a7c15u + (*seed << 6) + (*seed >> 2);
}

}  // namespace

void BlockAttributes::Assign(const BlockStored& stored) {
  block_size = stored.block_size;
  lora_id = stored.lora_id;
  medium = stored.medium;
  lora_name = stored.lora_name;
  extra_keys_absent = stored.extra_keys.absent;
  group_idx = stored.group_idx;
  kv_cache_spec_kind = stored.kv_cache_spec_kind;
  kv_cache_spec_sliding_window = stored.kv_cache_spec_sliding_window;
  locality = stored.locality;
  ownership = stored.ownership;
  session_id = stored.session_id;
}

BlockStored BlockAttributes::ToStored() const {
  BlockStored stored;
  stored.block_size = block_size;
  stored.lora_id = lora_id;
  stored.medium = medium;
  stored.lora_name = lora_name;
  stored.extra_keys.absent = extra_keys_absent;
  stored.group_idx = group_idx;
  stored.kv_cache_spec_kind = kv_cache_spec_kind;
  stored.kv_cache_spec_sliding_window = kv_cache_spec_sliding_window;
  stored.locality = locality;
  stored.ownership = ownership;
  stored.session_id = session_id;
  return stored;
}

BlockRemoved BlockAttributes::ToRemoved() const {
  BlockRemoved removed;
  removed.medium = medium;
  removed.group_idx = group_idx;
  removed.locality = locality;
  removed.ownership = ownership;
  return removed;
}

std::string_view DifferentField(const BlockAttributes& a, const BlockAttributes& b) {
  if (a.block_size != b.block_size) return "block_size";
  if (a.lora_id != b.lora_id) return "lora_id";
  if (a.lora_name != b.lora_name) return "lora_name";
  if (a.extra_keys_absent != b.extra_keys_absent) return "extra_keys";
  if (a.kv_cache_spec_kind != b.kv_cache_spec_kind) return "kv_cache_spec_kind";
  if (a.kv_cache_spec_sliding_window != b.kv_cache_spec_sliding_window) return "kv_cache_spec_sliding_window";
  if (a.locality != b.locality) return "locality";
  if (a.ownership != b.ownership) return "ownership";
  return {};
}

std::size_t AttributeTable::Hash::operator()(const BlockAttributes& attributes) const noexcept {
  std::size_t seed = attributes.block_size;
  Mix(&seed, attributes.lora_id);
  Mix(&seed, attributes.medium);
  Mix(&seed, attributes.lora_name);
  Mix(&seed, attributes.group_idx);
  Mix(&seed, attributes.session_id);
  return seed;
}

AttributeTable::Handle AttributeTable::Acquire(const BlockStored& stored) {
  scratch_.Assign(stored);
  auto found = map_.find(scratch_);
  if (found == map_.end()) found = map_.emplace(scratch_, 0).first;
  return Share(&*found);
}

void AttributeTable::Release(Handle handle) {
  if (--handle->second > 0 || map_.size() <= kKept) return;
  map_.erase(map_.find(handle->first));
}

}  // namespace kvwire
