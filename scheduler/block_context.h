// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kv_events/events.h"

namespace kvwire::scheduler {

// An adapter of a request: the id and the name that events carry. The name is part of the blocks' identity.
struct LoraAdapter {
  std::int64_t id = 0;
  std::string name;

  friend bool operator==(const LoraAdapter&, const LoraAdapter&) = default;
};

// What a cached block is announced with besides hash, parent and tokens.
struct BlockContext {
  ExtraKeys extra_keys;
  std::optional<LoraAdapter> lora;

  friend bool operator==(const BlockContext&, const BlockContext&) = default;
};

// Contexts of the blocks of a pool, each kept once however many blocks share it. Most blocks have none: index kPlain.
// Bounds: one entry per distinct context in use; entries are reused.
class BlockContextTable {
 public:
  static constexpr std::uint32_t kPlain = 0;

  BlockContextTable() : entries_(1) {}

  // The index of the context, with one more reference. `lora` null: none.
  std::uint32_t Acquire(const ExtraKeys& extra_keys, const LoraAdapter* lora);

  // Gives a reference back. REQUIRES: it came from Acquire.
  void Release(std::uint32_t index);

  // Valid until the next Acquire.
  const BlockContext& at(std::uint32_t index) const { return entries_[index].context; }

  // Distinct contexts in use, without the plain one.
  std::size_t size() const noexcept { return by_hash_.size(); }

 private:
  struct Entry {
    BlockContext context;
    std::size_t hash = 0;
    std::uint32_t references = 0;
  };

  std::vector<Entry> entries_;  // the first one is the plain context
  std::vector<std::uint32_t> unused_;
  std::unordered_multimap<std::size_t, std::uint32_t> by_hash_;
};

}  // namespace kvwire::scheduler
