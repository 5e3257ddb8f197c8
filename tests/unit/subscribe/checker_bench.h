// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/subscribe/stream_checker.h"
#include "kv_events/wire/decoder.h"
#include "tests/unit/subscribe/stream_fixture.h"

namespace kvwire::test {

using Hashes = std::vector<std::uint64_t>;

// Builds batches and hands them to a checker, encoded and decoded as on the wire.
struct Bench {
  explicit Bench(StreamChecker::Options options = {})
      : checker(options, [this](const Violation& violation) { violations.push_back(violation); }) {}

  void Store(const Hashes& hashes, std::optional<std::uint64_t> parent = std::nullopt, std::size_t tokens_off = 0,
             std::optional<std::string_view> medium = std::nullopt) {
    std::vector<BlockHash> blocks;
    for (const std::uint64_t hash : hashes) blocks.push_back(BlockHash::FromUint64(hash));
    const std::vector<TokenId> tokens(2 * hashes.size() + tokens_off, 5);
    BlockStored stored;
    stored.block_hashes = blocks;
    if (parent) stored.parent_block_hash = BlockHash::FromUint64(*parent);
    stored.token_ids = tokens;
    stored.block_size = 2;
    stored.medium = medium;
    batch.Add(stored);
  }
  void Remove(const Hashes& hashes, std::optional<std::string_view> medium = std::nullopt) {
    std::vector<BlockHash> blocks;
    for (const std::uint64_t hash : hashes) blocks.push_back(BlockHash::FromUint64(hash));
    BlockRemoved removed;
    removed.block_hashes = blocks;
    removed.medium = medium;
    batch.Add(removed);
  }
  void Clear() { batch.Add(AllBlocksCleared{}); }

  // Ends the batch and delivers it.
  void End() {
    Deliver(number++, Encode(batch));
    batch.Clear();
  }
  void Deliver(SequenceNumber sequence, const Bytes& payload) {
    const StreamMessage message{sequence, "kv", payload, MessageOrigin::kLive};
    const auto decoded = DecodeBatch(payload);
    if (decoded) {
      checker.OnBatch(message, *decoded);
    } else {
      checker.OnUndecodable(message, decoded.error());
    }
  }

  // The only violation's rule.
  CheckRule Only() const {
    REQUIRE(violations.size() == 1);
    CHECK(checker.Verdict() == CheckVerdict::kViolated);
    return violations[0].rule;
  }

  std::vector<Violation> violations;
  StreamChecker checker;
  KVEventBatch batch;
  SequenceNumber number = 0;
};

}  // namespace kvwire::test
