// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/held_blocks.h"

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/subscribe/block_history.h"

namespace kvwire {
namespace {

std::vector<std::string> Dumped(const HeldBlocks& held) {
  std::vector<std::string> lines;
  held.Dump([&lines](std::string_view line) { lines.emplace_back(line); });
  return lines;
}

TEST_CASE("a block is gone when as many removals as announcements came") {
  HeldBlocks held;
  const auto gpu = held.ShelfOf(std::nullopt, std::nullopt);
  CHECK(held.Add(gpu, 7) == 1);
  CHECK(held.Add(gpu, 7) == 2);
  CHECK(held.size() == 1);
  CHECK(held.Remove(gpu, 7));
  CHECK(held.Count(gpu, 7) == 1);
  CHECK(held.Remove(gpu, 7));
  CHECK(held.size() == 0);
  CHECK(held.digest() == StateDigest());
  CHECK_FALSE(held.Remove(gpu, 7));
}

TEST_CASE("no group is group 0, no medium is GPU, and case does not matter") {
  HeldBlocks held;
  const auto gpu = held.ShelfOf(0, "GPU");
  CHECK(held.ShelfOf(std::nullopt, std::nullopt) == gpu);
  CHECK(held.ShelfOf(std::nullopt, "gpu") == gpu);
  CHECK(held.ShelfOf(1, "GPU") != gpu);
  CHECK(held.ShelfOf(0, "CPU") != gpu);
}

TEST_CASE("the dump is ordered by group, medium and hash") {
  HeldBlocks held;
  held.Add(held.ShelfOf(10, "GPU"), 1);
  held.Add(held.ShelfOf(2, "GPU"), 1);
  held.Add(held.ShelfOf(0, "GPU"), 0xffffffffffffffff);
  held.Add(held.ShelfOf(0, "GPU"), 0xab);
  held.Add(held.ShelfOf(0, "cpu"), 5);
  CHECK(Dumped(held) == std::vector<std::string>{"0 CPU 0000000000000005", "0 GPU 00000000000000ab",
                                                 "0 GPU ffffffffffffffff", "2 GPU 0000000000000001",
                                                 "10 GPU 0000000000000001"});
}

TEST_CASE("random adding, removing and clearing agrees with a map") {
  std::mt19937_64 random(42);
  HeldBlocks held;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> model;
  for (int i = 0; i < 200'000; ++i) {
    const std::uint32_t group = static_cast<std::uint32_t>(random() % 3);
    const std::uint64_t low64 = random() % 4000;
    const auto shelf = held.ShelfOf(group, "GPU");
    std::uint32_t& count = model[{group, low64}];
    if (random() % 100'000 == 0) {
      held.Clear();
      model.clear();
    } else if (random() % 2 == 0) {
      CHECK_EQ(held.Add(shelf, low64), ++count);
    } else {
      CHECK_EQ(held.Remove(shelf, low64), count > 0);
      if (count > 0) --count;
    }
  }
  StateDigest digest;
  std::size_t size = 0;
  for (const auto& [key, count] : model) {
    CHECK_EQ(held.Count(held.ShelfOf(key.first, "GPU"), key.second), count);
    if (count == 0) continue;
    ++size;
    digest.Add(key.first, "GPU", key.second);
  }
  CHECK(size > 1000);
  CHECK(held.size() == size);
  CHECK(held.digest() == digest);
  CHECK(Dumped(held).size() == size);
}

// The number that StateDigest::Mix makes this of.
std::uint64_t Unmixed(std::uint64_t mixed) {
  const auto unshift = [](std::uint64_t value, int shift) {
    std::uint64_t x = value;
    for (int i = 0; i < 64 / shift + 1; ++i) x = value ^ (x >> shift);
    return x;
  };
  std::uint64_t x = unshift(mixed, 31) * 0x319642b2d24d8ec3u;
  x = unshift(x, 27) * 0x96de1b173f119089u;
  return unshift(x, 30) - 0x9e3779b97f4a7c15u;
}

TEST_CASE("E1: hashes that a stranger chose for one place of the digest's mix are spread over a table") {
  REQUIRE(StateDigest::Mix(Unmixed(12345)) == 12345);
  constexpr std::uint64_t kPlaces = 1024;
  for (const TableSalt& salt : {TableSalt::OfProcess(), TableSalt{1, 2}, TableSalt{~std::uint64_t{0}, 7}}) {
    std::set<std::uint64_t> places;
    for (std::uint64_t i = 0; i < 8 * kPlaces; ++i) places.insert(salt.Mix(0, Unmixed(i << 22)) % kPlaces);
    CHECK(places.size() > kPlaces * 9 / 10);
  }
  const TableSalt& salt = TableSalt::OfProcess();
  CHECK(salt.before != salt.between);
  CHECK(&salt == &TableSalt::OfProcess());
}

TEST_CASE("E1: 100,000 hashes that a stranger chose for one place are held like any others") {
  HeldBlocks held;
  BlockHistory history;
  const auto shelf = held.ShelfOf(0, "GPU");
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    const std::uint64_t low64 = Unmixed(i << 22);
    held.Add(shelf, low64);
    history.Add(0, low64, BlockMoment(1, 0, BlockMoment::Kind::kStored));
  }
  CHECK(held.size() == 100'000);
  CHECK(history.size() == 100'000);
}

TEST_CASE("E1: a hundred thousand clears of what was large once cost little") {
  HeldBlocks held;
  for (std::uint64_t i = 0; i < 500'000; ++i) held.Add(held.ShelfOf(0, "GPU"), i);
  for (int i = 0; i < 100'000; ++i) held.Clear();
  CHECK(held.size() == 0);
  CHECK(held.digest().empty());
  for (int i = 0; i < 20'000; ++i) {
    held.Add(held.ShelfOf(0, "CPU"), 7);
    held.Clear();
  }
  CHECK(held.size() == 0);
  held.Add(held.ShelfOf(1, "GPU"), 5);
  CHECK(Dumped(held) == std::vector<std::string>{"1 GPU 0000000000000005"});
  CHECK(held.digest().ToString().starts_with("1/GPU 1:"));
}

TEST_CASE("a digest for people names a few dozen entries and counts the rest") {
  StateDigest digest;
  for (std::uint32_t group = 0; group < 32; ++group) digest.Add(group, "GPU", 1);
  const std::string few = digest.ToString();
  CHECK(ShortDigest(digest.entries()) == few);
  for (std::uint32_t group = 32; group < 1000; ++group) digest.Add(group, "GPU", 1);
  CHECK(ShortDigest(digest.entries()) == few + " and 968 more");
}

TEST_CASE("a batch is applied in the order of its events") {
  const std::vector<BlockHash> hashes{BlockHash::FromUint64(1), BlockHash::FromUint64(2)};
  BlockStored stored;
  stored.block_hashes = hashes;
  stored.medium = "CPU";
  stored.group_idx = 3;
  BlockRemoved removed;
  removed.block_hashes = std::span(hashes).subspan(0, 1);
  removed.medium = "CPU";
  removed.group_idx = 3;
  KVEventBatch batch;
  batch.Add(removed);
  batch.Add(stored);
  batch.Add(AllBlocksCleared{});
  batch.Add(stored);
  batch.Add(removed);
  HeldBlocks held;
  CHECK(held.Apply(batch) == 1);
  CHECK(Dumped(held) == std::vector<std::string>{"3 CPU 0000000000000002"});
}

TEST_CASE("the history keeps a block's last three events, the latest first, through growth") {
  BlockHistory history;
  using Kind = BlockMoment::Kind;
  for (std::uint64_t block = 0; block < 10'000; ++block) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      history.Add(1, block, BlockMoment(block * 10 + i, i, i % 2 == 0 ? Kind::kStored : Kind::kRemoved));
    }
  }
  CHECK(history.size() == 10'000);
  const BlockHistory::Moments last = history.LastThree(1, 777);
  CHECK(last[0].sequence() == 7773);
  CHECK(last[0].event() == 3);
  CHECK(last[0].kind() == Kind::kRemoved);
  CHECK(last[2].sequence() == 7771);
  CHECK(history.WasAnnounced(1, 777));
  CHECK_FALSE(history.WasAnnounced(0, 777));
  CHECK(history.LastThree(0, 777)[0].kind() == Kind::kNone);
  history.Add(0, 777, BlockMoment(1, 0, Kind::kRemoved));
  CHECK_FALSE(history.WasAnnounced(0, 777));
  history.Clear();
  CHECK(history.size() == 0);
  CHECK_FALSE(history.WasAnnounced(1, 777));
}

TEST_CASE("a moment keeps numbers and places apart and saturates") {
  using Kind = BlockMoment::Kind;
  const BlockMoment early(5, 0xfffff, Kind::kStored);
  const BlockMoment late(6, 0, Kind::kRemoved);
  CHECK(early.Before(late));
  CHECK_FALSE(late.Before(early));
  const BlockMoment huge(~std::uint64_t{0}, ~std::size_t{0}, Kind::kStored);
  CHECK(huge.sequence() == (std::uint64_t{1} << 42) - 1);
  CHECK(huge.event() == 0xfffff);
  CHECK(huge.kind() == Kind::kStored);
}

}  // namespace
}  // namespace kvwire
