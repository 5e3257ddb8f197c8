// SPDX-License-Identifier: Apache-2.0
#include "kv_events/batch.h"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/allocation_counter.h"
#include "tests/unit/kv_events/event_builders.h"

namespace kvwire {
namespace {

// Every optional field set.
struct FullStored {
  std::vector<BlockHash> hashes = Hashes({1, 2});
  std::vector<TokenId> tokens = {10, 11, 20, 21};
  std::vector<ExtraKeys> extra_keys = {
      ExtraKeys{std::string("lora"), MultimodalKey{"image", -3}, std::vector<std::uint8_t>{1, 2}, OpaqueKey{"\xc3"}},
      ExtraKeys{}};

  BlockStored view() const {
    BlockStored stored;
    stored.block_hashes = hashes;
    stored.parent_block_hash = BlockHash::FromUint64(9);
    stored.token_ids = tokens;
    stored.block_size = 2;
    stored.lora_id = -4;
    stored.medium = "CPU";
    stored.lora_name = "lora";
    stored.extra_keys = {false, extra_keys};
    stored.group_idx = 3;
    stored.kv_cache_spec_kind = "sliding_window";
    stored.kv_cache_spec_sliding_window = 128;
    stored.locality = "LOCAL";
    stored.ownership = "kvcr";
    stored.session_id = "s";
    return stored;
  }
};

TEST_CASE("A new batch is empty") {
  const KVEventBatch batch;
  CHECK(batch.empty());
  CHECK(batch.size() == 0);
  CHECK(batch.ts == 0);
  CHECK_FALSE(batch.data_parallel_rank.has_value());
  CHECK(batch.ByteSize() == 0);
}

TEST_CASE("Every field of a stored event comes back") {
  KVEventBatch batch;
  {
    const FullStored source;
    batch.Add(source.view());
  }
  const auto stored = std::get<BlockStored>(batch.at(0));
  CHECK(std::vector<BlockHash>(stored.block_hashes.begin(), stored.block_hashes.end()) == Hashes({1, 2}));
  CHECK(stored.parent_block_hash == BlockHash::FromUint64(9));
  CHECK(std::vector<TokenId>(stored.token_ids.begin(), stored.token_ids.end()) == std::vector<TokenId>{10, 11, 20, 21});
  CHECK(stored.block_size == 2);
  CHECK(stored.lora_id == -4);
  CHECK(stored.medium == "CPU");
  CHECK(stored.lora_name == "lora");
  CHECK_FALSE(stored.extra_keys.absent);
  REQUIRE(stored.extra_keys.per_block.size() == 2);
  CHECK(stored.extra_keys.per_block[0] == FullStored().extra_keys[0]);
  CHECK(stored.extra_keys.per_block[1].empty());
  CHECK(stored.group_idx == 3);
  CHECK(stored.kv_cache_spec_kind == "sliding_window");
  CHECK(stored.kv_cache_spec_sliding_window == 128);
  CHECK(stored.locality == "LOCAL");
  CHECK(stored.ownership == "kvcr");
  CHECK(stored.session_id == "s");
}

TEST_CASE("A field that was not set comes back unset") {
  KVEventBatch batch;
  batch.Add(BlockStored{});
  batch.Add(BlockRemoved{});
  const auto stored = std::get<BlockStored>(batch.at(0));
  CHECK(stored.block_hashes.empty());
  CHECK_FALSE(stored.parent_block_hash.has_value());
  CHECK(stored.token_ids.empty());
  CHECK_FALSE(stored.lora_id.has_value());
  CHECK_FALSE(stored.medium.has_value());
  CHECK(stored.extra_keys.absent);
  CHECK_FALSE(stored.group_idx.has_value());
  CHECK_FALSE(stored.kv_cache_spec_sliding_window.has_value());
  CHECK_FALSE(stored.session_id.has_value());
  const auto removed = std::get<BlockRemoved>(batch.at(1));
  CHECK_FALSE(removed.medium.has_value());
  CHECK_FALSE(removed.group_idx.has_value());
  CHECK_FALSE(removed.ownership.has_value());
}

TEST_CASE("Zero is not the same as unset, nor is an empty text") {
  BlockStored zeros;
  zeros.lora_id = 0;
  zeros.group_idx = 0;
  zeros.kv_cache_spec_sliding_window = 0;
  zeros.medium = "";
  KVEventBatch set;
  set.Add(zeros);
  KVEventBatch unset;
  unset.Add(BlockStored{});
  CHECK(set != unset);
  CHECK(std::get<BlockStored>(set.at(0)).group_idx == 0);
  CHECK(std::get<BlockStored>(set.at(0)).medium == "");
}

TEST_CASE("A visitor meets the events in the order they were added") {
  KVEventBatch batch;
  batch.Add(StoredEvent({1}).view());
  batch.Add(AllBlocksCleared{});
  batch.Add(RemovedEvent({2}).view());
  batch.Add(StoredEvent({3}, 1).view());
  struct Visitor {
    std::string* text;
    void operator()(const BlockStored& stored) { *text += "S" + std::to_string(stored.block_hashes[0].Low64()); }
    void operator()(const BlockRemoved& removed) { *text += "R" + std::to_string(removed.block_hashes[0].Low64()); }
    void operator()(const AllBlocksCleared&) { *text += "C"; }
  };
  std::string text;
  batch.Visit(Visitor{&text});
  CHECK(text == "S1CR2S3");
  CHECK(batch.size() == 4);
}

// A batch as text; removals with medium, group and hashes.
std::string Describe(const KVEventBatch::Event& event) {
  if (std::holds_alternative<BlockStored>(event)) return "S ";
  const auto* const removed = std::get_if<BlockRemoved>(&event);
  if (removed == nullptr) return "C ";
  std::string text = "R" + std::string(removed->medium.value_or("-"));
  text += removed->group_idx ? std::to_string(*removed->group_idx) : "-";
  for (const BlockHash& hash : removed->block_hashes) text += ":" + std::to_string(hash.Low64());
  return text + ' ';
}

TEST_CASE("Removals in a row stay events of their own, alike or not") {
  KVEventBatch batch;
  const auto remove = [&batch](std::initializer_list<std::uint64_t> hashes, std::optional<std::string_view> medium,
                               std::optional<std::uint32_t> group) {
    const RemovedEvent event(hashes);
    BlockRemoved removed = event.view();
    removed.medium = medium;
    removed.group_idx = group;
    batch.Add(removed);
  };
  remove({1}, "GPU", 0);
  remove({2}, "GPU", 0);
  remove({3, 4}, "GPU", 0);
  remove({5, 6}, "GPU", 0);
  remove({7}, "GPU", 1);
  remove({8}, "GPU", 1);
  remove({9}, "CPU", 1);
  remove({10}, std::nullopt, 1);
  remove({11}, "GPU", 0);
  remove({12}, "GPU", std::nullopt);
  batch.Add(StoredEvent({3}).view());
  remove({13}, "GPU", std::nullopt);
  remove({14}, "GPU", std::nullopt);
  batch.Add(AllBlocksCleared{});
  remove({15}, "GPU", std::nullopt);
  const std::string expected =
      "RGPU0:1 RGPU0:2 RGPU0:3:4 RGPU0:5:6 RGPU1:7 RGPU1:8 RCPU1:9 R-1:10 RGPU0:11 RGPU-:12 S RGPU-:13 RGPU-:14 C "
      "RGPU-:15 ";
  std::string visited;
  batch.Visit([&visited](const auto& event) { visited += Describe(event); });
  CHECK(visited == expected);
  std::string indexed;
  for (std::size_t i = 0; i < batch.size(); ++i) indexed += Describe(batch.at(i));
  CHECK(indexed == expected);
  CHECK(batch.size() == 15);
}

TEST_CASE("A removal like the one before takes the room of its hash") {
  KVEventBatch batch;
  batch.Add(RemovedEvent({1}).view());
  const std::size_t one = batch.ByteSize();
  batch.Add(RemovedEvent({2}).view());
  CHECK(batch.ByteSize() == one + sizeof(BlockHash));
}

TEST_CASE("A repeated stored event is like the one before but for its parent and its blocks") {
  const ExtraKeys some{std::string("salt")};
  FullStored source;
  BlockStored stored = source.view();
  KVEventBatch repeated;
  repeated.Add(stored);
  KVEventBatch added = repeated;
  const std::vector<ExtraKeys> keys{some, {}};
  const auto tokens = stored.token_ids;
  for (const std::optional<BlockHash>& parent : {std::optional(BlockHash::FromUint64(9)), std::optional<BlockHash>()}) {
    stored.parent_block_hash = parent;
    stored.extra_keys = {false, keys};
    added.Add(stored);
    repeated.RepeatStored(parent);
    for (std::size_t i = 0; i < 2; ++i) {
      repeated.AppendBlock(stored.block_hashes[i], tokens.subspan(2 * i, 2), keys[i]);
    }
  }
  CHECK(repeated == added);
  CHECK(repeated.ByteSize() == added.ByteSize());
}

TEST_CASE("A repeated removal is like the one before") {
  KVEventBatch added;
  KVEventBatch repeated;
  for (const std::uint64_t hash : {1u, 2u, 3u}) added.Add(RemovedEvent({hash}).view());
  repeated.Add(RemovedEvent({1}).view());
  repeated.RepeatRemoval(BlockHash::FromUint64(2));
  repeated.RepeatRemoval(BlockHash::FromUint64(3));
  CHECK(repeated == added);
  CHECK(repeated.ByteSize() == added.ByteSize());
}

// The same event added at once and block by block, in the midst of others.
void CheckInParts(const std::vector<ExtraKeys>& keys) {
  const StoredEvent source({1, 2, 3}, 9);
  BlockStored stored = source.view();
  stored.extra_keys = {false, keys};
  KVEventBatch at_once;
  at_once.Add(stored);
  at_once.Add(RemovedEvent({7}).view());
  at_once.Add(stored);
  KVEventBatch in_parts;
  in_parts.Add(stored);
  in_parts.Add(RemovedEvent({7}).view());
  BlockStored first = stored;
  first.block_hashes = {};
  first.token_ids = {};
  first.extra_keys.per_block = {};
  in_parts.Add(first);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(in_parts != at_once);
    in_parts.AppendBlock(stored.block_hashes[i], stored.token_ids.subspan(2 * i, 2),
                         keys.empty() ? ExtraKeys() : keys[i]);
  }
  CHECK(in_parts == at_once);
}

TEST_CASE("A stored event may be added block by block") {
  const ExtraKeys some{std::string("salt")};
  CheckInParts({});
  CheckInParts({some, {}, {}});
  CheckInParts({{}, {}, some});
  CheckInParts({some, some, some});
}

TEST_CASE("A copy is independent of its original") {
  KVEventBatch original;
  original.Add(FullStored().view());
  KVEventBatch copy = original;
  CHECK(copy == original);
  original.Add(AllBlocksCleared{});
  CHECK(copy != original);
  original.Clear();
  CHECK(copy.size() == 1);
  CHECK(std::get<BlockStored>(copy.at(0)).lora_name == "lora");
}

TEST_CASE("A moved batch carries its content along") {
  KVEventBatch original;
  original.ts = 2;
  original.Add(FullStored().view());
  const KVEventBatch copy = original;
  const KVEventBatch moved = std::move(original);
  CHECK(moved == copy);
}

// Everything that a batch shows of itself is what a new one shows, and stays so while both record the same.
void CheckLikeNew(KVEventBatch* batch) {
  KVEventBatch fresh;
  for (int round = 0; round < 2; ++round) {
    CHECK(*batch == fresh);
    CHECK(batch->empty() == fresh.empty());
    CHECK(batch->ts == fresh.ts);
    CHECK(batch->data_parallel_rank == fresh.data_parallel_rank);
    CHECK(batch->ByteSize() == fresh.ByteSize());
    for (KVEventBatch* each : {batch, &fresh}) {
      each->Add(FullStored().view());
      each->Add(RemovedEvent({1}).view());
      each->Add(AllBlocksCleared{});
    }
  }
}

// Texts of its own, so that a text that survives a move does not hide behind an equal one.
KVEventBatch UsedBatch() {
  KVEventBatch batch;
  batch.ts = 2;
  batch.data_parallel_rank = 3;
  const FullStored source;
  BlockStored stored = source.view();
  stored.medium = "A";
  stored.lora_name = "B";
  stored.locality = "C";
  batch.Add(stored);
  batch.Add(RemovedEvent({7}).view());
  return batch;
}

TEST_CASE("A batch that was moved away is like a new one") {
  KVEventBatch constructed_from = UsedBatch();
  const KVEventBatch first = std::move(constructed_from);
  CHECK(first == UsedBatch());
  CheckLikeNew(&constructed_from);  // NOLINT(bugprone-use-after-move)

  KVEventBatch assigned_from = UsedBatch();
  KVEventBatch second;
  second.Add(FullStored().view());
  second = std::move(assigned_from);
  CHECK(second == UsedBatch());
  CheckLikeNew(&assigned_from);  // NOLINT(bugprone-use-after-move)
}

TEST_CASE("A batch that is moved or assigned to itself keeps its content") {
  KVEventBatch batch = UsedBatch();
  KVEventBatch& itself = batch;
  batch = std::move(itself);
  CHECK(batch == UsedBatch());
  batch = itself;
  CHECK(batch == UsedBatch());
}

TEST_CASE("Equality looks at content, not at layout") {
  // The same events, but in one batch texts and arrays were laid out by others that came and went before.
  KVEventBatch used;
  const StoredEvent source({7, 8, 9});
  BlockStored other = source.view();
  other.locality = "REMOTE";
  other.medium = "STORAGE";
  used.Add(other);
  used.Clear();
  KVEventBatch fresh;
  for (KVEventBatch* batch : {&used, &fresh}) {
    batch->ts = 3;
    batch->Add(FullStored().view());
    batch->Add(RemovedEvent({1}).view());
  }
  CHECK(used == fresh);
}

TEST_CASE("A list of empty extra keys equals no list of them, but not the absent field") {
  const std::vector<ExtraKeys> none(2);
  const StoredEvent source({1, 2});
  BlockStored listed = source.view();
  listed.extra_keys = {false, none};
  BlockStored all_null = source.view();
  all_null.extra_keys = {false, {}};
  KVEventBatch a;
  a.Add(listed);
  KVEventBatch b;
  b.Add(all_null);
  KVEventBatch c;
  c.Add(source.view());
  CHECK(a == b);
  CHECK(a != c);
}

TEST_CASE("One differing field makes batches differ") {
  const FullStored source;
  const auto differs = [&](auto change) {
    KVEventBatch a;
    a.Add(source.view());
    BlockStored changed = source.view();
    change(changed);
    KVEventBatch b;
    b.Add(changed);
    return a != b;
  };
  const auto other_hashes = Hashes({1, 3});
  const std::vector<TokenId> other_tokens = {10, 11, 20, 22};
  const std::vector<ExtraKeys> other_keys = {ExtraKeys{std::string("lora")}, ExtraKeys{}};
  CHECK_FALSE(differs([](BlockStored&) {}));
  CHECK(differs([&](BlockStored& s) { s.block_hashes = other_hashes; }));
  CHECK(differs([](BlockStored& s) { s.parent_block_hash.reset(); }));
  CHECK(differs([&](BlockStored& s) { s.token_ids = other_tokens; }));
  CHECK(differs([](BlockStored& s) { s.block_size = 4; }));
  CHECK(differs([](BlockStored& s) { s.lora_id = 5; }));
  CHECK(differs([](BlockStored& s) { s.medium = "GPU"; }));
  CHECK(differs([](BlockStored& s) { s.lora_name = "x"; }));
  CHECK(differs([&](BlockStored& s) { s.extra_keys.per_block = other_keys; }));
  CHECK(differs([](BlockStored& s) { s.extra_keys = {}; }));
  CHECK(differs([](BlockStored& s) { s.group_idx = 0; }));
  CHECK(differs([](BlockStored& s) { s.kv_cache_spec_kind = "mamba"; }));
  CHECK(differs([](BlockStored& s) { s.kv_cache_spec_sliding_window = 64; }));
  CHECK(differs([](BlockStored& s) { s.locality = "REMOTE"; }));
  CHECK(differs([](BlockStored& s) { s.ownership.reset(); }));
  CHECK(differs([](BlockStored& s) { s.session_id = "t"; }));

  KVEventBatch stored;
  stored.Add(StoredEvent({1}).view());
  KVEventBatch removed;
  removed.Add(RemovedEvent({1}).view());
  CHECK(stored != removed);
  KVEventBatch later = stored;
  later.ts = 1;
  CHECK(stored != later);
  KVEventBatch ranked = stored;
  ranked.data_parallel_rank = 0;
  CHECK(stored != ranked);
}

TEST_CASE("Many different texts in one batch stay apart") {
  KVEventBatch batch;
  for (int i = 0; i < 40; ++i) {
    const std::string medium = "TIER" + std::to_string(i);
    BlockRemoved removed;
    const auto hashes = Hashes({static_cast<std::uint64_t>(i)});
    removed.block_hashes = hashes;
    removed.medium = medium;
    batch.Add(removed);
  }
  for (std::size_t i = 0; i < 40; ++i) {
    CHECK(std::get<BlockRemoved>(batch.at(i)).medium == "TIER" + std::to_string(i));
  }
}

TEST_CASE("Clear forgets events, time and rank") {
  KVEventBatch batch;
  batch.ts = 5;
  batch.data_parallel_rank = 1;
  batch.Add(FullStored().view());
  CHECK(batch.ByteSize() > 0);
  batch.Clear();
  CHECK(batch == KVEventBatch());
  CHECK(batch.ByteSize() == 0);
}

TEST_CASE("ByteSize grows with tokens, hashes and texts") {
  KVEventBatch one;
  one.Add(StoredEvent({1}).view());
  KVEventBatch two;
  two.Add(StoredEvent({1, 2}).view());
  CHECK(two.ByteSize() >= one.ByteSize() + sizeof(BlockHash) + 2 * sizeof(TokenId));
  KVEventBatch named = one;
  const std::string long_name(1000, 'x');
  BlockStored stored;
  stored.lora_name = long_name;
  named.Add(stored);
  CHECK(named.ByteSize() > one.ByteSize() + 1000);
}

TEST_CASE("Recording into a batch that was cleared allocates nothing") {
  const StoredEvent stored({1, 2, 3, 4}, 9);
  const RemovedEvent removed({5});
  BlockStored event = stored.view();
  event.extra_keys.absent = false;
  event.lora_name = "a name that does not fit into a short string";
  KVEventBatch batch;
  const auto record = [&] {
    for (int i = 0; i < 1000; ++i) {
      batch.Add(removed.view());
      batch.Add(event);
      batch.Add(AllBlocksCleared{});
    }
  };
  const std::size_t start = test::AllocationCount();
  record();
  const std::size_t first = test::AllocationCount() - start;
  batch.Clear();
  record();
  CHECK(first > 0);
  CHECK(test::AllocationCount() - start == first);

  // Moving it out and back, as publishing and taking a spare do, costs nothing either.
  KVEventBatch published = std::move(batch);
  published.Clear();
  batch = std::move(published);
  record();
  CHECK(test::AllocationCount() - start == first);
  CHECK(batch.size() == 3000);
}

}  // namespace
}  // namespace kvwire
