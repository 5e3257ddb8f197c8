// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/hash/block_hasher.h"
#include "kv_events/hash/extra_keys.h"
#include "tests/unit/hash/hash_test_support.h"

namespace kvwire {
namespace {

bool Disjoint(const std::vector<BlockHash>& a, const std::vector<BlockHash>& b) {
  const std::set<BlockHash> of_a(a.begin(), a.end());
  for (const BlockHash& hash : b) {
    if (of_a.contains(hash)) return false;
  }
  return true;
}

TEST_CASE("F2: the integer form of a digest of either width is its last 8 bytes, big-endian") {
  struct Row {
    HashAlgorithm algorithm;
    std::string bytes;
    std::uint64_t low64;
    std::int64_t as_signed;
  };
  // Tokens 1 to 4 and 5 to 8 with the seed "0"; both signs of each width.
  const std::vector<std::pair<Row, Row>> table = {
      {{HashAlgorithm::kSha256, "762b2e7e1520febd3a0aedb7358e8602facf3924440e18538fce057e23bae91d",
        10362225831949560093u, -8084518241759991523},
       {HashAlgorithm::kSha256, "9e62b5a7ec298f33cb4c7d9e00b659874bb2432d23ad6879ad1746592a2b036b",
        12472515041799373675u, -5974229031910177941}},
      {{HashAlgorithm::kSha256Cbor, "c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb",
        2164874634404590027u, 2164874634404590027},
       {HashAlgorithm::kSha256Cbor, "24125b23e68883b5c2141db2959d48433fe6bde2f26bd914efad121d154ab2d6",
        17270480062156288726u, -1176264011553262890}},
      {{HashAlgorithm::kXxhash, "f3856cedd7e636094750c4546e855397", 5138823041740264343u, 5138823041740264343},
       {HashAlgorithm::kXxhash, "0c9832567b17003b126077f57e0bb670", 1324190186712315504u, 1324190186712315504}},
      {{HashAlgorithm::kXxhashCbor, "0a8577df5ee3430515a8cc1f6e3ac52e", 1560721706249274670u, 1560721706249274670},
       {HashAlgorithm::kXxhashCbor, "d152782cb4d753bde718a811a3b75e23", 16652244415917022755u, -1794499657792528861}}};
  for (const auto& rows : table) {
    CAPTURE(ToString(rows.first.algorithm));
    const std::vector<BlockHash> chain = ChainOf(Hasher(rows.first.algorithm, "0"), Range(1, 8), 4);
    std::size_t at = 0;
    for (const Row& row : {rows.first, rows.second}) {
      const BlockHash& hash = chain.at(at++);
      CHECK(hash.ToHex() == row.bytes);
      CHECK(hash.size() == row.bytes.size() / 2);
      CHECK(hash.Low64() == row.low64);
      CHECK(static_cast<std::int64_t>(hash.Low64()) == row.as_signed);
      CHECK(*BlockHash::FromBytes(BytesOf(row.bytes)) == hash);
    }
  }
}

TEST_CASE("F3: the order in which adapters are loaded changes their ids and no hash") {
  // An engine numbers its adapters as they come; a block's content has the name.
  const auto chains = [](HashAlgorithm algorithm, const std::vector<std::string>& load_order) {
    std::map<std::string, std::pair<std::size_t, std::vector<BlockHash>>> by_name;
    for (std::size_t id = 1; id <= load_order.size(); ++id) {
      const std::string& name = load_order[id - 1];
      by_name[name] = {id, ChainOf(Hasher(algorithm, "0"), Range(1, 12), 4, Lora(name))};
    }
    return by_name;
  };
  for (const HashAlgorithm algorithm : kAllAlgorithms) {
    CAPTURE(ToString(algorithm));
    const auto ab = chains(algorithm, {"adapter-a", "adapter-b"});
    const auto ba = chains(algorithm, {"adapter-b", "adapter-a"});
    for (const char* name : {"adapter-a", "adapter-b"}) {
      CHECK(ab.at(name).first != ba.at(name).first);
      CHECK(ab.at(name).second == ba.at(name).second);
    }
    CHECK(Disjoint(ab.at("adapter-a").second, ab.at("adapter-b").second));
  }
}

TEST_CASE("F5: prompts that differ in the image alone have different hashes from the image's first block on") {
  const std::vector<TokenId> tokens(20, 9);  // placeholders are the same for all images
  for (const HashAlgorithm algorithm : kAllAlgorithms) {
    CAPTURE(ToString(algorithm));
    const BlockHasher hasher = Hasher(algorithm, "0");
    const std::vector<BlockHash> a = ChainOf(hasher, tokens, 4, Image("image-a", 6, 8));
    const std::vector<BlockHash> b = ChainOf(hasher, tokens, 4, Image("image-b", 6, 8));
    const std::vector<BlockHash> none = ChainOf(hasher, tokens, 4);
    REQUIRE(a.size() == 5);
    CHECK(a[0] == b[0]);
    CHECK(a[0] == none[0]);
    for (std::size_t i = 1; i < a.size(); ++i) {
      CAPTURE(i);
      CHECK(a[i] != b[i]);
      CHECK(a[i] != none[i]);
    }
  }
}

TEST_CASE("F5: the same image at another place of the block gives another hash") {
  for (const HashAlgorithm algorithm : kAllAlgorithms) {
    CAPTURE(ToString(algorithm));
    BlockHasher hasher = Hasher(algorithm, "0");
    const std::vector<TokenId> tokens(8, 9);
    std::set<BlockHash> hashes;
    for (const std::int64_t offset : {-4, -1, 0, 1, 255, 256, 70000}) {
      hashes.insert(hasher.HashBlock({}, tokens, {MultimodalKey{"image", offset}}));
    }
    CHECK(hashes.size() == 7);
  }
}

TEST_CASE("F5: exactly the blocks that overlap the image have keys") {
  const BlockContent content = Image("image", 6, 8);
  std::vector<bool> with_keys;
  for (std::uint32_t start = 0; start < 20; start += 4) {
    with_keys.push_back(!ExtraKeysOf(content, start, start + 4).empty());
  }
  CHECK(with_keys == std::vector<bool>{false, true, true, true, false});
}

TEST_CASE("F5: an image placed twice in a block is written out twice") {
  // Equal strings are hashed by value: what Python does for two objects.
  BlockHasher hasher = Hasher(HashAlgorithm::kSha256, "0");
  const std::vector<TokenId> tokens = {1};
  hasher.HashBlock({}, tokens, {MultimodalKey{"ab", 0}, MultimodalKey{"ab", 2}});
  CHECK(Hex(hasher.last_preimage().subspan(46)) ==
        "4b018594"            // the tokens
        "8c026162944b008694"  // ("ab", 0)
        "8c026162944b028694"  // ("ab", 2)
        "869487942e");
}

TEST_CASE("F8: every block of a prompt has another hash under another adapter, or under none") {
  for (const HashAlgorithm algorithm : kAllAlgorithms) {
    CAPTURE(ToString(algorithm));
    const BlockHasher hasher = Hasher(algorithm, "0");
    const std::vector<BlockHash> none = ChainOf(hasher, Range(1, 16), 4);
    const std::vector<BlockHash> a = ChainOf(hasher, Range(1, 16), 4, Lora("a"));
    const std::vector<BlockHash> b = ChainOf(hasher, Range(1, 16), 4, Lora("b"));
    CHECK(Disjoint(none, a));
    CHECK(Disjoint(none, b));
    CHECK(Disjoint(a, b));
  }
}

TEST_CASE("three salts give three disjoint chains") {
  for (const HashAlgorithm algorithm : kAllAlgorithms) {
    CAPTURE(ToString(algorithm));
    const BlockHasher hasher = Hasher(algorithm, "0");
    const std::vector<BlockHash> a = ChainOf(hasher, Range(1, 16), 4, Salted("tenant-a"));
    const std::vector<BlockHash> b = ChainOf(hasher, Range(1, 16), 4, Salted("tenant-b"));
    const std::vector<BlockHash> c = ChainOf(hasher, Range(1, 16), 4, Salted("tenant-c"));
    CHECK(Disjoint(a, b));
    CHECK(Disjoint(a, c));
    CHECK(Disjoint(b, c));
  }
}

TEST_CASE("no two algorithms agree on a hash") {
  std::set<BlockHash> hashes;
  for (const HashAlgorithm algorithm : kAllAlgorithms) {
    for (const BlockHash& hash : ChainOf(Hasher(algorithm, "0"), Range(1, 8), 4)) hashes.insert(hash);
  }
  CHECK(hashes.size() == 8);
}

}  // namespace
}  // namespace kvwire
