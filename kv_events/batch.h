// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kv_events/digest.h"
#include "kv_events/events.h"

namespace kvwire {

// The events of one scheduler step, in the order they happened, under one time stamp. The layout is hidden: flat arrays
// of hashes, tokens and extra keys that small event records point into, so that Clear() keeps the memory and recording
// a block costs no allocation at steady state. Removals of the same shape in a row share a record. Walk it with
// Visit().
//
// A value: copyable, comparable (by content, not by layout). A batch that was moved away is empty, like a new one.
// Const methods may be called from several threads.
class KVEventBatch {
 public:
  using Event = std::variant<BlockStored, BlockRemoved, AllBlocksCleared>;

  double ts = 0;                                   // Unix seconds
  std::optional<std::int64_t> data_parallel_rank;  // stamped by the publisher when unset
  // What the stream holds after this batch, as its producer knows it, if has_digest. Not on the wire, and no part of a
  // comparison.
  StateDigest digest;
  bool has_digest = false;

  KVEventBatch() = default;
  KVEventBatch(const KVEventBatch&) = default;
  KVEventBatch& operator=(const KVEventBatch&) = default;
  KVEventBatch(KVEventBatch&& other) noexcept;
  KVEventBatch& operator=(KVEventBatch&& other) noexcept;  // to itself: nothing happens
  ~KVEventBatch() = default;

  // Appends a copy. REQUIRES: stored.extra_keys.per_block is empty or as long as stored.block_hashes.
  void Add(const BlockStored& stored);
  void Add(const BlockRemoved& removed);
  void Add(const AllBlocksCleared&);

  // One more block for the event that was added last. REQUIRES: it is a BlockStored; without extra keys if its own are
  // absent.
  void AppendBlock(const BlockHash& hash, std::span<const TokenId> token_ids, const ExtraKeys& extra_keys);

  // One more stored event like the one that was added last, but for its parent and its blocks, of which it has none
  // yet. REQUIRES: the last one is a BlockStored whose extra keys are not absent.
  void RepeatStored(const std::optional<BlockHash>& parent);

  // One more removal, of one hash, like the event that was added last. REQUIRES: it is a BlockRemoved of one hash.
  void RepeatRemoval(const BlockHash& hash);

  // Forgets events, time and rank; keeps the memory.
  void Clear() noexcept;

  bool empty() const noexcept { return records_.empty(); }
  std::size_t size() const noexcept { return num_events_; }

  // Bytes of memory that the content takes, for queue bounds.
  std::size_t ByteSize() const noexcept;

  // The i-th event; its views are valid until the batch changes. REQUIRES: i < size().
  Event at(std::size_t i) const;

  // Calls visitor(event) for each event in order, with a BlockStored, BlockRemoved or AllBlocksCleared that is valid
  // only during the call.
  template <class Visitor>
  void Visit(Visitor&& visitor) const {
    for (const Record& record : records_) {
      for (std::uint32_t i = 0; i < record.num_events; ++i) std::visit(visitor, EventOf(record, i));
    }
  }

  friend bool operator==(const KVEventBatch& a, const KVEventBatch& b);

 private:
  enum class Kind : std::uint8_t { kStored, kRemoved, kCleared };
  enum class Extra : std::uint8_t { kAbsent, kAllNull, kListed };
  static constexpr std::uint32_t kNone = 0xffffffff;

  // Offsets and counts into the arrays below; texts are indexes into texts_ or kNone. Of several events, which only
  // removals have, the hashes follow each other.
  struct Record {
    Kind kind = Kind::kCleared;
    Extra extra = Extra::kAbsent;
    bool has_parent = false;  // it stands before the hashes
    bool has_lora_id = false;
    bool has_group = false;
    bool has_window = false;
    std::uint32_t first_event = 0, num_events = 1;
    std::uint32_t hashes = 0, num_hashes = 0;
    std::uint32_t tokens = 0, num_tokens = 0;
    std::uint32_t extras = 0;
    std::uint32_t block_size = 0;
    std::uint32_t group_idx = 0;
    std::uint32_t sliding_window = 0;
    std::uint32_t medium = kNone, lora_name = kNone, kind_text = kNone;
    std::uint32_t locality = kNone, ownership = kNone, session_id = kNone;
    std::int64_t lora_id = 0;
  };

  Record& Append(Kind kind);
  static bool Continues(const Record& removals, const Record& next);
  Event EventOf(const Record& record, std::uint32_t event) const;
  std::uint32_t Intern(const std::optional<std::string_view>& text);
  std::optional<std::string_view> Text(std::uint32_t index) const;

  std::vector<Record> records_;
  std::vector<BlockHash> hashes_;
  std::vector<TokenId> tokens_;
  std::vector<ExtraKeys> extras_;
  std::vector<std::string> texts_;  // the first num_texts_ are in use; the rest keep their memory
  std::size_t num_texts_ = 0;
  std::uint32_t num_events_ = 0;
};

}  // namespace kvwire
