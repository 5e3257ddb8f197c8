// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/state_merger.h"

#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/wire/decoder.h"
#include "kv_events/wire/encoder.h"

namespace kvwire::test {
namespace {

constexpr std::size_t kLimit = std::size_t{64} << 20;

StateMerger::EncodeFunction Encoder() {
  return [encoder = BatchEncoder({})](const KVEventBatch& batch, std::vector<std::uint8_t>* out) {
    encoder.Encode(batch, out);
  };
}

BlockHash H(std::uint64_t value) { return BlockHash::FromUint64(value); }

struct Stored {
  std::vector<std::uint64_t> hashes;
  std::uint64_t parent = 0;  // 0: none
  std::string medium = "GPU";
  std::uint32_t group = 0;
  std::vector<ExtraKeys> extra_keys = {};  // empty: absent
};

KVEventBatch Batch(const std::vector<Stored>& events) {
  KVEventBatch batch;
  for (const Stored& event : events) {
    std::vector<BlockHash> hashes;
    std::vector<TokenId> tokens;
    for (const std::uint64_t hash : event.hashes) {
      hashes.push_back(H(hash));
      tokens.insert(tokens.end(), {static_cast<TokenId>(hash), 7});
    }
    BlockStored stored;
    stored.block_hashes = hashes;
    if (event.parent != 0) stored.parent_block_hash = H(event.parent);
    stored.token_ids = tokens;
    stored.block_size = 2;
    stored.medium = event.medium;
    stored.group_idx = event.group;
    stored.extra_keys.absent = event.extra_keys.empty();
    stored.extra_keys.per_block = event.extra_keys;
    batch.Add(stored);
  }
  return batch;
}

KVEventBatch Removal(std::uint64_t hash, std::string_view medium, std::uint32_t group) {
  const BlockHash id = H(hash);
  BlockRemoved removed;
  removed.block_hashes = {&id, 1};
  removed.medium = medium;
  removed.group_idx = group;
  KVEventBatch batch;
  batch.Add(removed);
  return batch;
}

// The merged events, each as "group/medium parent: hashes", after the clear; the reason when there are none.
std::string Merged(StateMerger* merger, std::size_t blocks_per_call = 512) {
  merger->Finish(1700000000.5, 3);
  while (merger->AssembleSome(blocks_per_call)) {
  }
  if (merger->failed()) return "failed";
  const auto decoded = DecodeBatch(*merger->Take());
  if (!decoded) return decoded.error().message;
  if (decoded->rejected_total > 0) return decoded->rejected[0].error.message;
  const KVEventBatch& batch = decoded->batch;
  if (batch.ts != 1700000000.5 || batch.data_parallel_rank != 3) return "time or rank";
  if (batch.empty() || !std::holds_alternative<AllBlocksCleared>(batch.at(0))) return "no clear";
  std::string text;
  for (std::size_t i = 1; i < batch.size(); ++i) {
    const KVEventBatch::Event event = batch.at(i);
    const auto& stored = std::get<BlockStored>(event);
    if (i > 1) text += "; ";
    text += std::to_string(stored.group_idx.value_or(99)) + "/" + std::string(stored.medium.value_or("-"));
    if (stored.parent_block_hash) text += " " + std::to_string(stored.parent_block_hash->Low64());
    text += ":";
    for (std::size_t block = 0; block < stored.block_hashes.size(); ++block) {
      const std::uint64_t hash = stored.block_hashes[block].Low64();
      text += " " + std::to_string(hash);
      if (stored.token_ids.size() != 2 * stored.block_hashes.size() || stored.token_ids[2 * block] != hash)
        return "tokens";
    }
  }
  return text;
}

TEST_CASE("a merged state is one batch: a clear, then chains from their beginnings") {
  StateMerger merger(Encoder(), kLimit);
  merger.Add(Batch({{{3}, 2}, {{2}, 1}}));  // children first
  merger.Add(Batch({{{1}}}));
  CHECK(Merged(&merger) == "0/GPU: 1 2 3");
}

TEST_CASE("a merged state without blocks is a clear") {
  StateMerger merger(Encoder(), kLimit);
  CHECK(Merged(&merger) == "");
}

TEST_CASE("a removal takes one group and one medium, however the medium is spelled") {
  StateMerger merger(Encoder(), kLimit);
  merger.Add(Batch({{{1}}, {{1}, 0, "CPU"}, {{1}, 0, "GPU", 1}}));
  merger.Add(Removal(1, "cpu", 0));
  merger.Add(Removal(1, "GPU", 1));
  merger.Add(Removal(5, "GPU", 0));
  CHECK(Merged(&merger) == "0/GPU: 1");
}

TEST_CASE("a block that goes and comes again is there once, and a clear takes everything") {
  StateMerger merger(Encoder(), kLimit);
  merger.Add(Batch({{{9, 10}}}));
  KVEventBatch clear;
  clear.Add(AllBlocksCleared{});
  merger.NoteLoss();
  merger.Add(std::move(clear));
  merger.Add(Batch({{{1, 2}}}));
  merger.Add(Batch({{{1, 2}}}));
  merger.Add(Removal(2, "GPU", 0));
  merger.Add(Batch({{{2}, 1}}));
  CHECK(Merged(&merger) == "0/GPU: 1 2");
}

TEST_CASE("a parent in another medium comes first, too, and an orphan keeps its parent") {
  StateMerger merger(Encoder(), kLimit);
  merger.Add(Batch({{{2}, 1}}));
  merger.Add(Batch({{{1}, 0, "CPU"}}));
  CHECK(Merged(&merger) == "0/CPU: 1; 0/GPU 1: 2");
  StateMerger orphan(Encoder(), kLimit);
  orphan.Add(Batch({{{2}, 1}}));
  CHECK(Merged(&orphan) == "0/GPU 1: 2");
}

TEST_CASE("blocks that are each other's ancestors end all the same, each there once") {
  StateMerger merger(Encoder(), kLimit);
  merger.Add(Batch({{{1}, 2}, {{2}, 1}}));
  const std::string text = Merged(&merger);
  CHECK((text == "0/GPU 2: 1 2" || text == "0/GPU 1: 2 1"));
}

TEST_CASE("a chain is one event whatever the size of the slices, cut where the slices end") {
  std::vector<std::uint64_t> chain;
  for (std::uint64_t hash = 1; hash <= 10; ++hash) chain.push_back(hash);
  for (const std::size_t slice : {1u, 3u, 19u, 512u}) {
    StateMerger merger(Encoder(), kLimit);
    merger.Add(Batch({{chain}}));
    const std::string text = Merged(&merger, slice);
    CAPTURE(text);
    CHECK(text.starts_with("0/GPU: 1"));
    CHECK(text.ends_with(" 10"));
    if (slice == 512) CHECK(text == "0/GPU: 1 2 3 4 5 6 7 8 9 10");
  }
}

TEST_CASE("extra keys stay with their blocks, and absent ones are no nils") {
  StateMerger merger(Encoder(), kLimit);
  const ExtraKeys salt = {std::string("salt")};
  merger.Add(Batch({{{1, 2}, 0, "GPU", 0, {salt, {}}}}));
  merger.Add(Batch({{{3}, 2}}));
  merger.Finish(0, 0);
  while (merger.AssembleSome(512)) {
  }
  const auto decoded = DecodeBatch(*merger.Take());
  REQUIRE(decoded);
  REQUIRE(decoded->batch.size() == 3);
  const KVEventBatch::Event first = decoded->batch.at(1);
  const auto& with = std::get<BlockStored>(first);
  REQUIRE(with.extra_keys.per_block.size() == 2);
  CHECK(with.extra_keys.per_block[0] == salt);
  CHECK(with.extra_keys.per_block[1].empty());
  const KVEventBatch::Event second = decoded->batch.at(2);
  CHECK(std::get<BlockStored>(second).extra_keys.absent);
}

TEST_CASE("a state above its bounds, with a hole in it, or without an encoder that works, has failed") {
  StateMerger large(Encoder(), 1000);
  for (std::uint64_t i = 0; i < 100; ++i) large.Add(Batch({{{i + 1}}}));
  CHECK(large.failed());
  CHECK(Merged(&large) == "failed");
  std::vector<std::uint64_t> hashes;
  for (std::uint64_t i = 1; i < 40; ++i) hashes.push_back(i);
  StateMerger payload(Encoder(), 500);
  payload.Add(Batch({{hashes}}));
  CHECK(Merged(&payload) == "failed");
  StateMerger damaged(Encoder(), kLimit);
  damaged.Add(Batch({{{1}}}));
  damaged.NoteLoss();
  CHECK(Merged(&damaged) == "failed");
  StateMerger broken([](const KVEventBatch&, std::vector<std::uint8_t>*) { throw std::runtime_error("planted"); },
                     kLimit);
  broken.Add(Batch({{{1}}}));
  CHECK(Merged(&broken) == "failed");
}

}  // namespace
}  // namespace kvwire::test
