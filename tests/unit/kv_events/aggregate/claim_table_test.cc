// SPDX-License-Identifier: Apache-2.0
#include "kv_events/aggregate/claim_table.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <utility>

#include <doctest/doctest.h>

namespace kvwire {
namespace {

TEST_CASE("A table that grows and shrinks finds every block it has and none that it lost") {
  std::mt19937_64 random(7);
  ClaimTable table(1);
  std::map<std::pair<std::uint32_t, std::uint64_t>, BlockId> model;
  std::size_t largest = 0;
  for (int i = 0; i < 100'000; ++i) {
    // First more come than go, then the reverse. Hashes whose bytes differ little crowd the index.
    const bool add = random() % 10 < (i < 50'000 ? 7u : 3u);
    const auto shelf = static_cast<std::uint32_t>(random() % 3);
    const std::uint64_t hash = (random() % 4000) << (random() % 2 * 32);
    const auto known = model.find({shelf, hash});
    const BlockId found = table.Find(shelf, BlockHash::FromUint64(hash));
    REQUIRE(found == (known == model.end() ? kNoId : known->second));
    if (add && found == kNoId) model[{shelf, hash}] = table.Add(shelf, BlockHash::FromUint64(hash));
    if (!add && found != kNoId) {
      table.Erase(found);
      model.erase(known);
    }
    largest = std::max(largest, model.size());
  }
  CHECK(largest > 5000);
  for (const auto& [key, id] : model) REQUIRE(table.Find(key.first, BlockHash::FromUint64(key.second)) == id);
  // What went made room for what came.
  CHECK(table.end() == largest);
}

}  // namespace
}  // namespace kvwire
