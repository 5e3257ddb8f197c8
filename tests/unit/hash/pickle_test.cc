// SPDX-License-Identifier: Apache-2.0
#include "kv_events/hash/pickle.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/unit/hash/hash_test_support.h"

namespace kvwire {
namespace {

nlohmann::json Golden() {
  std::ifstream file(KVWIRE_GOLDEN_DIR "/pickle_blocks.json");
  REQUIRE(file);
  return nlohmann::json::parse(file);
}

// Each frame's head stands where Python puts it, and says its length.
void CheckFrames(std::span<const std::uint8_t> preimage, const nlohmann::json& frames) {
  for (const nlohmann::json& frame : frames) {
    const auto at = frame.at(0).get<std::size_t>();
    REQUIRE(at + 9 <= preimage.size());
    CHECK(preimage[at] == 0x95);
    std::uint64_t length = 0;
    for (std::size_t i = 8; i > 0; --i) length = length << 8 | preimage[at + i];
    CHECK(length == frame.at(1).get<std::uint64_t>());
  }
}

std::string HexOfInteger(std::int64_t value) {
  PickleWriter pickle;
  pickle.Integer(value);
  pickle.Stop();
  return Hex(pickle.bytes());
}

TEST_CASE("every block has the bytes that Python pickles") {
  BlockHasher hasher = Hasher(HashAlgorithm::kSha256, "0");
  const nlohmann::json golden = Golden();
  REQUIRE(golden.at("blocks").size() > 60);
  for (const nlohmann::json& block : golden.at("blocks")) {
    CAPTURE(block.at("name").get<std::string>());
    const BlockHash parent = *BlockHash::FromBytes(BytesOf(block.at("parent").get<std::string>()));
    const BlockHash hash = hasher.HashBlock(parent, TokensOf(block.at("token_ids")), KeysOf(block.at("extra_keys")));
    CHECK(hasher.last_preimage().size() == block.at("size").get<std::size_t>());
    CheckFrames(hasher.last_preimage(), block.at("frames"));
    if (block.contains("preimage")) CHECK(Hex(hasher.last_preimage()) == block.at("preimage").get<std::string>());
    CHECK(hash.ToHex() == block.at("digest").get<std::string>());
  }
}

TEST_CASE("every seed text has the bytes that Python pickles") {
  const nlohmann::json golden = Golden();
  REQUIRE(golden.at("roots").size() > 8);
  for (const nlohmann::json& root : golden.at("roots")) {
    CAPTURE(root.at("name").get<std::string>());
    const BlockHasher hasher = Hasher(HashAlgorithm::kSha256, TextOf(root.at("seed")));
    CHECK(hasher.last_preimage().size() == root.at("size").get<std::size_t>());
    CheckFrames(hasher.last_preimage(), root.at("frames"));
    if (root.contains("preimage")) CHECK(Hex(hasher.last_preimage()) == root.at("preimage").get<std::string>());
    CHECK(hasher.root().ToHex() == root.at("digest").get<std::string>());
  }
}

TEST_CASE("a value of fewer than four bytes has no frame") {
  CHECK(HexOfInteger(7) == "80054b072e");
  CHECK(HexOfInteger(256) ==
        "8005950400000000000000"
        "4d00012e");
  PickleWriter pickle;
  pickle.None();
  pickle.Stop();
  CHECK(Hex(pickle.bytes()) == "80054e2e");
}

TEST_CASE("a writer that is cleared begins anew, whatever it held") {
  const std::vector<TokenId> many(40000, 70000);
  PickleWriter pickle;
  pickle.Tokens(many);
  pickle.Clear();
  pickle.Tokens({});
  pickle.Stop();
  CHECK(Hex(pickle.bytes()) == "8005292e");
}

TEST_CASE("a token array is written as its integers one by one, across frames") {
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < 60000; ++i) {
    constexpr TokenId kEdges[] = {0, 255, 256, 65535, 65536, 0x7fffffff, 0x80000000, 0xffffffff};
    tokens.push_back(kEdges[i * i % 8] ^ static_cast<TokenId>(i % 3));
  }
  PickleWriter together;
  together.Tokens(tokens);
  together.Stop();
  PickleWriter one_by_one;
  one_by_one.BeginTuple(tokens.size());
  for (const TokenId token : tokens) one_by_one.Integer(token);
  one_by_one.EndTuple(tokens.size());
  one_by_one.Stop();
  CHECK(std::ranges::equal(together.bytes(), one_by_one.bytes()));
}

}  // namespace
}  // namespace kvwire
