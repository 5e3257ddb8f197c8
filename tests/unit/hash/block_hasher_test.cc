// SPDX-License-Identifier: Apache-2.0
#include "kv_events/hash/block_hasher.h"

#include <cstdint>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "kv_events/hash/extra_keys.h"

namespace kvwire {
namespace {

using Low64s = std::vector<std::uint64_t>;

BlockHasher Hasher(std::string_view seed) { return *BlockHasher::Create(HashAlgorithm::kSha256Cbor, seed); }

std::string Hex(std::span<const std::uint8_t> bytes) {
  std::string hex;
  for (const std::uint8_t byte : bytes) hex += BlockHash::FromBytes({&byte, 1})->ToHex();
  return hex;
}

std::vector<TokenId> Range(TokenId first, std::size_t count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<BlockHash> Chain(BlockHasher hasher, const std::vector<TokenId>& tokens, std::size_t block_size,
                             const BlockContent& content = {}) {
  std::vector<BlockHash> chain;
  for (std::size_t start = 0; start + block_size <= tokens.size(); start += block_size) {
    const ExtraKeys keys =
        ExtraKeysOf(content, static_cast<std::uint32_t>(start), static_cast<std::uint32_t>(start + block_size));
    chain.push_back(hasher.HashBlock(chain.empty() ? BlockHash() : chain.back(),
                                     std::span(tokens).subspan(start, block_size), keys));
  }
  return chain;
}

Low64s Low(const std::vector<BlockHash>& chain) {
  Low64s low;
  for (const BlockHash& hash : chain) low.push_back(hash.Low64());
  return low;
}

std::vector<std::string> HexOf(const std::vector<BlockHash>& chain) {
  std::vector<std::string> hex;
  for (const BlockHash& hash : chain) hex.push_back(hash.ToHex());
  return hex;
}

ExtraKeys KeysOf(const nlohmann::json& json) {
  ExtraKeys keys;
  if (json.is_null()) return keys;
  for (const nlohmann::json& key : json) {
    if (key.is_string()) {
      keys.emplace_back(key.get<std::string>());
    } else {
      keys.emplace_back(MultimodalKey{key.at(0).get<std::string>(), key.at(1).get<std::int64_t>()});
    }
  }
  return keys;
}

TEST_CASE("every golden chain has its preimages and digests") {
  std::ifstream file(KVWIRE_GOLDEN_DIR "/block_hashes.json");
  REQUIRE(file);
  const nlohmann::json golden = nlohmann::json::parse(file);
  REQUIRE(golden.at("chains").size() == 18);
  for (const nlohmann::json& chain : golden.at("chains")) {
    BlockHasher hasher = Hasher(chain.at("seed").get<std::string>());
    CHECK(hasher.root().ToHex() == chain.at("root").get<std::string>());
    const auto tokens = chain.at("token_ids").get<std::vector<TokenId>>();
    const auto block_size = chain.at("block_size").get<std::size_t>();
    BlockHash parent;
    std::size_t start = 0;
    for (const nlohmann::json& block : chain.at("blocks")) {
      parent = hasher.HashBlock(parent, std::span(tokens).subspan(start, block_size), KeysOf(block.at("extra_keys")));
      start += block_size;
      CHECK(Hex(hasher.last_preimage()) == block.at("preimage").get<std::string>());
      CHECK(parent.ToHex() == block.at("digest").get<std::string>());
      CHECK(parent.Low64() == block.at("low64").get<std::uint64_t>());
    }
    CHECK(start + block_size > tokens.size());
  }
}

TEST_CASE("the published chains with seed 0") {
  const BlockHasher hasher = Hasher("0");
  CHECK(Low(Chain(hasher, Range(1, 24), 4)) == Low64s{2164874634404590027u, 17270480062156288726u,
                                                      15775340307203827378u, 4125428783492965790u,
                                                      10960384027115658377u, 16320826738025969069u});
  CHECK(Low(Chain(hasher, {0, 23, 24, 255, 256, 65535, 65536, 151644}, 4)) ==
        Low64s{771875808201895747u, 4704315772877561773u});
  CHECK(HexOf(Chain(hasher, Range(0, 32), 16)) ==
        std::vector<std::string>{"d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c",
                                 "fedd9e4abebebbe6f6cf96b682f08d316063fe2f22a5c552192dd62904fcccac"});
  CHECK(Low(Chain(hasher, std::vector<TokenId>(48, 0), 16)) ==
        Low64s{10933409387543126937u, 4020444920446410877u, 6614705415175143507u});
}

TEST_CASE("the published chains with extra keys") {
  const BlockHasher hasher = Hasher("0");
  BlockContent lora;
  lora.lora_name = "my_lora";
  CHECK(Low(Chain(hasher, Range(1, 8), 4, lora)) == Low64s{6099481853625820667u, 5052834025127596570u});
  BlockContent salt;
  salt.cache_salt = "salt";
  CHECK(Low(Chain(hasher, Range(1, 8), 4, salt)) == Low64s{9162154304583500201u, 297372936471778931u});
  const std::vector<TokenId> with_image = {1, 2, 9, 9, 9, 9, 3, 4};
  BlockContent image;
  image.items = {{"h1", 2, 4}};
  CHECK(Low(Chain(hasher, with_image, 4, image)) == Low64s{12493082903037591776u, 3953950702107799453u});
  image.lora_name = "my_lora";
  image.cache_salt = "salt";
  CHECK(Low(Chain(hasher, with_image, 4, image)) == Low64s{913238508910678225u, 3197925610295022887u});
  BlockContent lora_and_salt;
  lora_and_salt.lora_name = "my_lora";
  lora_and_salt.cache_salt = "s";
  CHECK(Low(Chain(hasher, Range(1, 8), 4, lora_and_salt)) == Low64s{1942634994386164600u, 17985991987034172171u});
}

TEST_CASE("the published chains under a given root") {
  const BlockHasher hasher = Hasher("0");
  std::vector<std::uint8_t> zeros(32, 0);
  CHECK(Low(Chain(hasher.WithRoot(*BlockHash::FromBytes(zeros)), Range(1, 8), 4)) ==
        Low64s{1073869038448665546u, 15268246191926214895u});
  std::vector<std::uint8_t> rising(32);
  std::iota(rising.begin(), rising.end(), std::uint8_t{0});
  CHECK(Low(Chain(hasher.WithRoot(*BlockHash::FromBytes(rising)), Range(1, 8), 4)) ==
        Low64s{653224484442338418u, 14950736817642110054u});
}

TEST_CASE("the published chains with other seed texts") {
  const BlockHasher hasher = Hasher("vllm.cpp/none_hash/v1");
  CHECK(Low(Chain(hasher, std::vector<TokenId>(32, 1), 16)) == Low64s{8439583300082424625u, 17395466715382410675u});
  CHECK(Low(Chain(hasher, std::vector<TokenId>(48, 5), 16)) ==
        Low64s{5249552793745572745u, 2162238850153588738u, 16446762454354221757u});
  CHECK(Low(Chain(hasher, std::vector<TokenId>(48, 9), 16)) ==
        Low64s{10797378465336373356u, 7661506927786487375u, 10166588730819236159u});
  CHECK(Low(Chain(Hasher("seed42"), Range(0, 12), 4)) ==
        Low64s{2373933297555870585u, 1702803935376772906u, 3682697717350366647u});
}

TEST_CASE("F1: without a seed two processes have the same root and the same chain") {
  const BlockHasher hasher = Hasher(ResolveHashSeed(std::nullopt, {}));
  CHECK(hasher.root().ToHex() == "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0");
  CHECK(HexOf(Chain(hasher, Range(1, 8), 4)) ==
        std::vector<std::string>{"58d0879dff3800f65f8c5fd449d73048c0f7699dd238a03b84b146b151d55111",
                                 "e1bc29393a2da9fd798f35ff04d215f846aee6df4b803ce3d43b57df56b58fb1"});
}

TEST_CASE("F1: an explicit seed wins over PYTHONHASHSEED, which wins over the default") {
  const HashSeedEnvironment environment = [](const std::string& name) -> std::optional<std::string> {
    if (name == "PYTHONHASHSEED") return "42";
    return std::nullopt;
  };
  CHECK(ResolveHashSeed("0", environment) == "0");
  CHECK(ResolveHashSeed(std::nullopt, environment) == "42");
  CHECK(ResolveHashSeed(std::nullopt, [](const std::string&) { return std::nullopt; }) == "vllm-none-hash");
  CHECK(ResolveHashSeed("", environment) == "");
  CHECK(Hasher("42").root().ToHex() == "9fa6eb003f14425eb9c8e6baacfbcaab26257357b829c7bfa74ffcc4f31c1780");
}

TEST_CASE("a copy and a moved hasher give the same hashes as the original") {
  BlockHasher original = Hasher("0");
  const std::vector<TokenId> tokens = Range(1, 4);
  const BlockHash expected = original.HashBlock({}, tokens);
  BlockHasher copy(original);
  CHECK(copy.HashBlock({}, tokens) == expected);
  CHECK(original.HashBlock({}, tokens) == expected);
  const BlockHasher moved = std::move(original);
  CHECK(moved.root() == copy.root());
}

TEST_CASE("raw bytes as an extra key are hashed as a byte string") {
  BlockHasher hasher = Hasher("0");
  const std::vector<TokenId> tokens = {1};
  hasher.HashBlock({}, tokens, {std::vector<std::uint8_t>{0xab, 0xcd}});
  CHECK(Hex(hasher.last_preimage().subspan(35)) == "81018142abcd");
  hasher.HashBlock({}, tokens, {OpaqueKey{"x"}});
  CHECK(Hex(hasher.last_preimage().subspan(35)) ==
        "81018141"
        "78");
}

TEST_CASE("an unknown algorithm is refused with what is allowed") {
  CHECK(ParseHashAlgorithm("sha256_cbor") == HashAlgorithm::kSha256Cbor);
  const Result<HashAlgorithm> refused = ParseHashAlgorithm("md5");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kInvalidArgument);
  CHECK(refused.error().message == "hash algorithm is \"md5\"; allowed: \"sha256_cbor\"");
}

}  // namespace
}  // namespace kvwire
