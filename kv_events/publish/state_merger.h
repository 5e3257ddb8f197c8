// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv_events/batch.h"
#include "kv_events/transport/frame_link.h"

namespace kvwire {

// Puts the chunks of a walk and the live batches between them together to one batch: AllBlocksCleared, then every block
// that is held after the last chunk, once, parents first. A block is held from the first event that stores it to the
// first that removes it, as for a consumer that keeps a set.
//
// Use: Add in the order of the queue, Finish, AssembleSome until it says false, then Take.
// Threads: one.
// Bounds: the batches kept take up to twice max_payload_bytes; beyond that, or with a larger payload, it has failed.
// Errors: failed(); nothing throws but for lack of memory.
class StateMerger {
 public:
  // Appends the payload of a batch; may throw. REQUIRES: an array of three, with the events of the batch as its second
  //   element, each encoded by itself.
  using EncodeFunction = std::function<void(const KVEventBatch&, std::vector<std::uint8_t>*)>;

  StateMerger(EncodeFunction encode, std::size_t max_payload_bytes)
      : encode_(std::move(encode)), max_payload_bytes_(max_payload_bytes) {}

  void Add(KVEventBatch&& batch);
  // Some batches before the next one are missing. Only an AllBlocksCleared that follows mends it.
  void NoteLoss() { damaged_ = true; }
  // What is held now is the state, under this time and rank. Add changes nothing any more.
  void Finish(double ts, std::optional<std::int64_t> rank);

  // Encodes up to max_blocks more. True while there is more to do.
  bool AssembleSome(std::size_t max_blocks);
  // The payload. REQUIRES: AssembleSome said false, and it has not failed.
  SharedBytes Take();

  bool failed() const noexcept { return failed_; }

 private:
  struct Key {
    std::uint32_t group = 0;
    std::uint32_t medium = 0;  // index of media_
    BlockHash hash;

    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept {
      return std::hash<BlockHash>()(key.hash) ^ (std::size_t{key.group} << 32 | key.medium) * 0x9e3779b97f4a7c15u;
    }
  };
  struct Held {
    std::uint32_t batch = 0;
    std::uint32_t event = 0;
    std::uint32_t block = 0;
    bool assembled = false;
  };
  using Blocks = std::unordered_map<Key, Held, KeyHash>;
  // A block as an event of its own.
  struct OneBlock {
    BlockStored event;  // without blocks
    BlockHash hash;
    std::optional<BlockHash> parent;
    std::span<const TokenId> tokens;
    const ExtraKeys* extra_keys = nullptr;  // null: none
  };

  std::uint32_t MediumOf(const std::optional<std::string_view>& medium);
  bool Keep(const KVEventBatch& batch);
  void Forget();
  OneBlock BlockOf(const Held& held) const;
  Blocks::iterator ParentOf(const Key& key, const std::optional<BlockHash>& parent);
  void AppendToRun(const OneBlock& block);
  bool Continues(const OneBlock& block) const;
  void EndRun();
  void EncodePart();

  const EncodeFunction encode_;
  const std::size_t max_payload_bytes_;
  std::vector<KVEventBatch> batches_;
  std::size_t bytes_ = 0;
  std::vector<std::string> media_;  // canonical
  Blocks blocks_;
  bool damaged_ = false;
  bool failed_ = false;

  // While it is put together.
  Blocks::iterator at_;
  std::vector<Blocks::iterator> path_;  // of a block up to its first ancestor that is not assembled yet
  OneBlock run_;
  std::vector<BlockHash> run_hashes_;
  std::vector<TokenId> run_tokens_;
  std::vector<ExtraKeys> run_extras_;
  KVEventBatch part_;
  std::vector<std::uint8_t> frame_;   // payload of a batch without events
  std::vector<std::uint8_t> events_;  // encoded
  std::uint32_t num_events_ = 0;
  std::vector<std::uint8_t> scratch_;
};

}  // namespace kvwire
