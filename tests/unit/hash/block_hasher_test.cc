// SPDX-License-Identifier: Apache-2.0
#include "kv_events/hash/block_hasher.h"

#include <array>
#include <cstdint>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <openssl/evp.h>

#include "kv_events/hash/extra_keys.h"
#include "tests/support/allocation_counter.h"
#include "tests/unit/hash/hash_test_support.h"

namespace kvwire {
namespace {

using Low64s = std::vector<std::uint64_t>;

BlockHasher Hasher(std::string_view seed) { return Hasher(HashAlgorithm::kSha256Cbor, seed); }

TEST_CASE("every golden chain has its root, preimages, digests and integer forms") {
  std::ifstream file(KVWIRE_GOLDEN_DIR "/block_hashes.json");
  REQUIRE(file);
  const nlohmann::json golden = nlohmann::json::parse(file);
  std::map<HashAlgorithm, std::size_t> chains;
  for (const nlohmann::json& chain : golden.at("chains")) {
    const Result<HashAlgorithm> algorithm = ParseHashAlgorithm(chain.at("algorithm").get<std::string>());
    REQUIRE(algorithm);
    ++chains[*algorithm];
    CAPTURE(ToString(*algorithm));
    BlockHasher hasher = Hasher(*algorithm, chain.at("seed").get<std::string>());
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
  for (const HashAlgorithm algorithm : kAllAlgorithms) CHECK(chains[algorithm] == 18);
}

TEST_CASE("the published chains with seed 0") {
  const BlockHasher hasher = Hasher("0");
  CHECK(Low(ChainOf(hasher, Range(1, 24), 4)) == Low64s{2164874634404590027u, 17270480062156288726u,
                                                        15775340307203827378u, 4125428783492965790u,
                                                        10960384027115658377u, 16320826738025969069u});
  CHECK(Low(ChainOf(hasher, {0, 23, 24, 255, 256, 65535, 65536, 151644}, 4)) ==
        Low64s{771875808201895747u, 4704315772877561773u});
  CHECK(HexOf(ChainOf(hasher, Range(0, 32), 16)) ==
        std::vector<std::string>{"d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c",
                                 "fedd9e4abebebbe6f6cf96b682f08d316063fe2f22a5c552192dd62904fcccac"});
  CHECK(Low(ChainOf(hasher, std::vector<TokenId>(48, 0), 16)) ==
        Low64s{10933409387543126937u, 4020444920446410877u, 6614705415175143507u});
}

TEST_CASE("the published chains with extra keys") {
  const BlockHasher hasher = Hasher("0");
  BlockContent lora;
  lora.lora_name = "my_lora";
  CHECK(Low(ChainOf(hasher, Range(1, 8), 4, lora)) == Low64s{6099481853625820667u, 5052834025127596570u});
  BlockContent salt;
  salt.cache_salt = "salt";
  CHECK(Low(ChainOf(hasher, Range(1, 8), 4, salt)) == Low64s{9162154304583500201u, 297372936471778931u});
  const std::vector<TokenId> with_image = {1, 2, 9, 9, 9, 9, 3, 4};
  BlockContent image;
  image.items = {{"h1", 2, 4}};
  CHECK(Low(ChainOf(hasher, with_image, 4, image)) == Low64s{12493082903037591776u, 3953950702107799453u});
  image.lora_name = "my_lora";
  image.cache_salt = "salt";
  CHECK(Low(ChainOf(hasher, with_image, 4, image)) == Low64s{913238508910678225u, 3197925610295022887u});
  BlockContent lora_and_salt;
  lora_and_salt.lora_name = "my_lora";
  lora_and_salt.cache_salt = "s";
  CHECK(Low(ChainOf(hasher, Range(1, 8), 4, lora_and_salt)) == Low64s{1942634994386164600u, 17985991987034172171u});
}

TEST_CASE("the published sha256 chains with seed 0") {
  const BlockHasher hasher = Hasher(HashAlgorithm::kSha256, "0");
  CHECK(hasher.root().ToHex() == "1973e23848344dc43a988a9b478663803cfffe1243480253f9a3cf004b14aa7c");
  CHECK(Low(ChainOf(hasher, Range(1, 8), 4)) == Low64s{10362225831949560093u, 12472515041799373675u});
  CHECK(Low(ChainOf(hasher, {0, 23, 24, 255, 256, 65535, 65536, 151644}, 4)) ==
        Low64s{10060964820308023632u, 16145137545221885504u});
  CHECK(HexOf(ChainOf(hasher, Range(0, 32), 16)) ==
        std::vector<std::string>{"6358e31578a64b75ebe28cdb99d3beae65de82a2087321dc6ec84ae048faaaa6",
                                 "3c3c50f324aefbdfbb124dfdc541efac3e94e59c40f4be08afe70601eeca92c8"});
  CHECK(Low(ChainOf(hasher, std::vector<TokenId>(48, 0), 16)) ==
        Low64s{12049932793435027838u, 13856738755759251333u, 5895445281465116246u});
  CHECK(Low(ChainOf(hasher, Range(1, 8), 4, Lora("my_lora"))) == Low64s{12600737402788226576u, 14187703793404798346u});
  CHECK(Low(ChainOf(hasher, Range(1, 8), 4, Salted("salt"))) == Low64s{17055142580557228036u, 1354524697741459583u});
  const std::vector<TokenId> with_image = {1, 2, 9, 9, 9, 9, 3, 4};
  BlockContent content = Image("h1", 2, 4);
  CHECK(Low(ChainOf(hasher, with_image, 4, content)) == Low64s{16402474311437246921u, 6650957176911440432u});
  content.lora_name = "my_lora";
  content.cache_salt = "salt";
  CHECK(Low(ChainOf(hasher, with_image, 4, content)) == Low64s{4093251512479087044u, 1365893228313164535u});
}

TEST_CASE("the published xxhash chains with seed 0 have 16-byte hashes") {
  const std::vector<BlockHash> pickle = ChainOf(Hasher(HashAlgorithm::kXxhash, "0"), Range(1, 8), 4);
  CHECK(HexOf(pickle) ==
        std::vector<std::string>{"f3856cedd7e636094750c4546e855397", "0c9832567b17003b126077f57e0bb670"});
  CHECK(Low(pickle) == Low64s{5138823041740264343u, 1324190186712315504u});
  const std::vector<BlockHash> cbor = ChainOf(Hasher(HashAlgorithm::kXxhashCbor, "0"), Range(1, 8), 4);
  CHECK(HexOf(cbor) ==
        std::vector<std::string>{"0a8577df5ee3430515a8cc1f6e3ac52e", "d152782cb4d753bde718a811a3b75e23"});
  CHECK(Low(cbor) == Low64s{1560721706249274670u, 16652244415917022755u});
}

TEST_CASE("the published chains under a given root") {
  const BlockHasher hasher = Hasher("0");
  std::vector<std::uint8_t> zeros(32, 0);
  CHECK(Low(ChainOf(hasher.WithRoot(*BlockHash::FromBytes(zeros)), Range(1, 8), 4)) ==
        Low64s{1073869038448665546u, 15268246191926214895u});
  std::vector<std::uint8_t> rising(32);
  std::iota(rising.begin(), rising.end(), std::uint8_t{0});
  CHECK(Low(ChainOf(hasher.WithRoot(*BlockHash::FromBytes(rising)), Range(1, 8), 4)) ==
        Low64s{653224484442338418u, 14950736817642110054u});
  const BlockHasher pickle = Hasher(HashAlgorithm::kSha256, "0");
  CHECK(Low(ChainOf(pickle.WithRoot(*BlockHash::FromBytes(zeros)), Range(1, 8), 4)) ==
        Low64s{4886377869261950884u, 7080577322699593200u});
  CHECK(Low(ChainOf(pickle.WithRoot(*BlockHash::FromBytes(rising)), Range(1, 8), 4)) ==
        Low64s{13838441342031643299u, 14442393429449586154u});
}

TEST_CASE("the published chains with other seed texts") {
  const BlockHasher hasher = Hasher("vllm.cpp/none_hash/v1");
  CHECK(Low(ChainOf(hasher, std::vector<TokenId>(32, 1), 16)) == Low64s{8439583300082424625u, 17395466715382410675u});
  CHECK(Low(ChainOf(hasher, std::vector<TokenId>(48, 5), 16)) ==
        Low64s{5249552793745572745u, 2162238850153588738u, 16446762454354221757u});
  CHECK(Low(ChainOf(hasher, std::vector<TokenId>(48, 9), 16)) ==
        Low64s{10797378465336373356u, 7661506927786487375u, 10166588730819236159u});
  CHECK(Low(ChainOf(Hasher("seed42"), Range(0, 12), 4)) ==
        Low64s{2373933297555870585u, 1702803935376772906u, 3682697717350366647u});
}

TEST_CASE("a copy and a moved hasher give the same hashes as the original, under every algorithm") {
  for (const HashAlgorithm algorithm : kAllAlgorithms) {
    CAPTURE(ToString(algorithm));
    BlockHasher original = Hasher(algorithm, "0");
    const std::vector<TokenId> tokens = Range(1, 4);
    const BlockHash expected = original.HashBlock({}, tokens);
    BlockHasher copy(original);
    CHECK(copy.HashBlock({}, tokens) == expected);
    CHECK(original.HashBlock({}, tokens) == expected);
    const BlockHasher moved = std::move(original);
    CHECK(moved.identity() == copy.identity());
  }
}

TEST_CASE("hashing a block allocates nothing once the buffer has its size, under every algorithm") {
  const std::vector<TokenId> tokens = Range(1000, 512);
  const ExtraKeys keys = {std::string("adapter"), MultimodalKey{"image", -3}, std::string("salt")};
  for (const HashAlgorithm algorithm : kAllAlgorithms) {
    CAPTURE(ToString(algorithm));
    BlockHasher hasher = Hasher(algorithm, "0");
    BlockHash parent = hasher.HashBlock({}, tokens, keys);
    const std::size_t before = test::AllocationCount();
    for (int i = 0; i < 1000; ++i) parent = hasher.HashBlock(parent, tokens, keys);
    CHECK(test::AllocationCount() == before);
  }
}

TEST_CASE("a SHA-256 digest is that of the preimage, however its length falls into 64-byte blocks") {
  for (const HashAlgorithm algorithm : {HashAlgorithm::kSha256Cbor, HashAlgorithm::kSha256}) {
    BlockHasher hasher = Hasher(algorithm, "0");
    BlockHash parent;
    std::set<std::size_t> remainders;
    for (std::uint32_t count = 0; count < 192; ++count) {
      CAPTURE(count);
      parent = hasher.HashBlock(parent, Range(0, 16), {std::string(count, 'x')});
      const std::span<const std::uint8_t> preimage = hasher.last_preimage();
      std::array<std::uint8_t, 32> digest{};
      EVP_Digest(preimage.data(), preimage.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
      CHECK(parent == BlockHash::FromBytes(digest));
      remainders.insert(preimage.size() % 64);
    }
    CHECK(remainders.size() == 64);
  }
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
  BlockHasher pickle = Hasher(HashAlgorithm::kSha256, "0");
  pickle.HashBlock({}, tokens, {std::vector<std::uint8_t>{0xab, 0xcd}});
  CHECK(Hex(pickle.last_preimage().subspan(46)) == "4b0185944302abcd94859487942e");
}

TEST_CASE("the algorithms have the names vLLM gives them") {
  CHECK(ParseHashAlgorithm("sha256") == HashAlgorithm::kSha256);
  CHECK(ParseHashAlgorithm("sha256_cbor") == HashAlgorithm::kSha256Cbor);
  CHECK(ParseHashAlgorithm("xxhash") == HashAlgorithm::kXxhash);
  CHECK(ParseHashAlgorithm("xxhash_cbor") == HashAlgorithm::kXxhashCbor);
  for (const HashAlgorithm algorithm : kAllAlgorithms) CHECK(ParseHashAlgorithm(ToString(algorithm)) == algorithm);
}

TEST_CASE("an unknown algorithm is refused with what is allowed") {
  const Result<HashAlgorithm> refused = ParseHashAlgorithm("md5");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kInvalidArgument);
  CHECK(refused.error().message ==
        "hash algorithm is \"md5\"; allowed: \"sha256\", \"sha256_cbor\", \"xxhash\", \"xxhash_cbor\"");
}

}  // namespace
}  // namespace kvwire
