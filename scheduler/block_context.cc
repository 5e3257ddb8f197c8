// SPDX-License-Identifier: Apache-2.0
#include "scheduler/block_context.h"

#include <functional>
#include <variant>

namespace kvwire::scheduler {

namespace {

void Mix(std::size_t* seed, std::size_t value) { *seed = (*seed ^ value) * 0x9e3779b97f4a7c15u + (*seed >> 29); }

struct KeyHash {
  std::size_t operator()(const std::string& text) const { return std::hash<std::string>()(text); }
  std::size_t operator()(const MultimodalKey& item) const {
    std::size_t seed = std::hash<std::string>()(item.identifier);
    Mix(&seed, static_cast<std::size_t>(item.offset));
    return seed;
  }
  std::size_t operator()(const std::vector<std::uint8_t>& bytes) const {
    std::size_t seed = bytes.size();
    for (const std::uint8_t byte : bytes) Mix(&seed, byte);
    return seed;
  }
  std::size_t operator()(const OpaqueKey& opaque) const { return std::hash<std::string>()(opaque.msgpack); }
};

std::size_t HashOf(const BlockContext& context) {
  std::size_t seed = context.extra_keys.size();
  for (const ExtraKey& key : context.extra_keys) {
    Mix(&seed, key.index());
    Mix(&seed, std::visit(KeyHash(), key));
  }
  if (context.lora) {
    Mix(&seed, static_cast<std::size_t>(context.lora->id));
    Mix(&seed, std::hash<std::string>()(context.lora->name));
  }
  return seed;
}

}  // namespace

std::uint32_t BlockContextTable::Acquire(const ExtraKeys& extra_keys, const LoraAdapter* lora) {
  if (extra_keys.empty() && lora == nullptr) return kPlain;
  BlockContext context{extra_keys, lora == nullptr ? std::nullopt : std::optional<LoraAdapter>(*lora)};
  const std::size_t hash = HashOf(context);
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    Entry& known = entries_[it->second];
    if (known.context == context) {
      ++known.references;
      return it->second;
    }
  }
  std::uint32_t index = static_cast<std::uint32_t>(entries_.size());
  if (unused_.empty()) {
    entries_.emplace_back();
  } else {
    index = unused_.back();
    unused_.pop_back();
  }
  entries_[index] = Entry{std::move(context), hash, 1};
  by_hash_.emplace(hash, index);
  return index;
}

void BlockContextTable::Release(std::uint32_t index) {
  if (index == kPlain) return;
  Entry& entry = entries_[index];
  if (--entry.references > 0) return;
  const auto [begin, end] = by_hash_.equal_range(entry.hash);
  for (auto it = begin; it != end; ++it) {
    if (it->second == index) {
      by_hash_.erase(it);
      break;
    }
  }
  entry = Entry{};
  unused_.push_back(index);
}

}  // namespace kvwire::scheduler
