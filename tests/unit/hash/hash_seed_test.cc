// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/hash/block_hasher.h"
#include "tests/unit/hash/hash_test_support.h"

namespace kvwire {
namespace {

constexpr std::array kSha256Algorithms = {HashAlgorithm::kSha256, HashAlgorithm::kSha256Cbor};
constexpr std::array kXxhashAlgorithms = {HashAlgorithm::kXxhash, HashAlgorithm::kXxhashCbor};

std::optional<std::string> Unset(const std::string&) { return std::nullopt; }

std::optional<std::string> Seed42(const std::string& name) {
  if (name == "PYTHONHASHSEED") return "42";
  return std::nullopt;
}

// A process of its own, as far as hashes are concerned.
BlockHasher Process(HashAlgorithm algorithm, const HashSeedEnvironment& environment) {
  return *BlockHasher::Create(algorithm, ResolveHashSeed(algorithm, std::nullopt, environment));
}

TEST_CASE("F1: without a seed two processes have the same root and the same chain under SHA-256") {
  for (const HashAlgorithm algorithm : kSha256Algorithms) {
    CAPTURE(ToString(algorithm));
    const BlockHasher one = Process(algorithm, Unset);
    const BlockHasher other = Process(algorithm, Unset);
    CHECK(one.identity() == other.identity());
    CHECK(ChainOf(one, Range(1, 64), 16) == ChainOf(other, Range(1, 64), 16));
  }
  const BlockHasher cbor = Process(HashAlgorithm::kSha256Cbor, {});
  CHECK(cbor.root().ToHex() == "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0");
  CHECK(HexOf(ChainOf(cbor, Range(1, 8), 4)) ==
        std::vector<std::string>{"58d0879dff3800f65f8c5fd449d73048c0f7699dd238a03b84b146b151d55111",
                                 "e1bc29393a2da9fd798f35ff04d215f846aee6df4b803ce3d43b57df56b58fb1"});
  CHECK(HexOf(ChainOf(cbor, Range(0, 48), 16)) ==
        std::vector<std::string>{"dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749",
                                 "c300ec275d7bf08af8fc63e76cdc0086911bbc7091e03c5cf892553bef84ef0c",
                                 "117dad852830e0103c12d7c7f8b7cf58434ea8751d1f42ee07b1c93711e4da6c"});
}

TEST_CASE("F1: without a seed two processes have different roots and disjoint chains under XXH3") {
  for (const HashAlgorithm algorithm : kXxhashAlgorithms) {
    CAPTURE(ToString(algorithm));
    const BlockHasher one = Process(algorithm, Unset);
    const BlockHasher other = Process(algorithm, Unset);
    CHECK(one.identity().seed == HashSeed::Random());
    CHECK(one.root().size() == 32);
    CHECK(one.root() != other.root());
    const std::vector<BlockHash> chain = ChainOf(one, Range(1, 64), 16);
    const std::vector<BlockHash> others = ChainOf(other, Range(1, 64), 16);
    for (std::size_t i = 0; i < chain.size(); ++i) {
      CHECK(chain[i].size() == 16);
      CHECK(chain[i] != others[i]);
    }
    // Told the root, the other process computes the same hashes.
    CHECK(ChainOf(other.WithRoot(one.root()), Range(1, 64), 16) == chain);
  }
}

TEST_CASE("F1: with a seed two processes agree under every algorithm, and one with another seed does not") {
  for (const HashAlgorithm algorithm : kAllAlgorithms) {
    CAPTURE(ToString(algorithm));
    const BlockHasher one = Process(algorithm, Seed42);
    CHECK(one.identity() == Process(algorithm, Seed42).identity());
    CHECK(one.root() == Hasher(algorithm, "42").root());
    CHECK(one.root() != Hasher(algorithm, "43").root());
  }
}

TEST_CASE("F1: an explicit seed wins over PYTHONHASHSEED, which wins over what the algorithm has without one") {
  for (const HashAlgorithm algorithm : kAllAlgorithms) {
    CAPTURE(ToString(algorithm));
    CHECK(ResolveHashSeed(algorithm, "0", Seed42) == HashSeed{HashSeedSource::kConfigured, "0"});
    CHECK(ResolveHashSeed(algorithm, "", Seed42) == HashSeed{HashSeedSource::kConfigured, ""});
    CHECK(ResolveHashSeed(algorithm, std::nullopt, Seed42) == HashSeed{HashSeedSource::kEnvironment, "42"});
    CHECK(ResolveHashSeed(algorithm, std::nullopt, [](const std::string&) { return ""; }) ==
          HashSeed{HashSeedSource::kEnvironment, ""});
  }
  for (const HashAlgorithm algorithm : kSha256Algorithms) {
    CHECK(ResolveHashSeed(algorithm, std::nullopt, Unset) == HashSeed{HashSeedSource::kDefault, "vllm-none-hash"});
    CHECK(ResolveHashSeed(algorithm, std::nullopt, {}) == HashSeed{HashSeedSource::kDefault, "vllm-none-hash"});
  }
  for (const HashAlgorithm algorithm : kXxhashAlgorithms) {
    CHECK(ResolveHashSeed(algorithm, std::nullopt, Unset) == HashSeed::Random());
    CHECK(ResolveHashSeed(algorithm, std::nullopt, {}) == HashSeed::Random());
  }
}

TEST_CASE("F1: the seed text alone is the one of the SHA-256 algorithms") {
  CHECK(ResolveHashSeed("0", Seed42) == "0");
  CHECK(ResolveHashSeed(std::nullopt, Seed42) == "42");
  CHECK(ResolveHashSeed(std::nullopt, Unset) == "vllm-none-hash");
  CHECK(ResolveHashSeed("", Seed42) == "");
}

TEST_CASE("F1: a hasher tells its algorithm, the source of its seed and its root") {
  const BlockHasher environment = Process(HashAlgorithm::kXxhashCbor, Seed42);
  CHECK(environment.identity().algorithm == HashAlgorithm::kXxhashCbor);
  CHECK(environment.identity().seed == HashSeed{HashSeedSource::kEnvironment, "42"});
  CHECK(environment.identity().root.ToHex() == "a9d2e63407fce1a26c9dc9d7fa2d7caf");
  CHECK(Hasher(HashAlgorithm::kSha256, "0").identity().seed == HashSeed{HashSeedSource::kConfigured, "0"});
  const BlockHash root = *BlockHash::FromBytes(std::vector<std::uint8_t>(32, 7));
  const BlockHasher foreign = environment.WithRoot(root);
  CHECK(foreign.identity() == HashIdentity{HashAlgorithm::kXxhashCbor, HashSeed::Random(), root});
}

TEST_CASE("F1: the sources of a seed have names") {
  CHECK(ToString(HashSeedSource::kConfigured) == "configured");
  CHECK(ToString(HashSeedSource::kEnvironment) == "environment");
  CHECK(ToString(HashSeedSource::kDefault) == "default");
  CHECK(ToString(HashSeedSource::kRandom) == "random");
}

TEST_CASE("a random root may be asked for under every algorithm") {
  for (const HashAlgorithm algorithm : kAllAlgorithms) {
    CAPTURE(ToString(algorithm));
    const BlockHasher one = *BlockHasher::Create(algorithm, HashSeed::Random());
    CHECK(one.root().size() == 32);
    CHECK(one.root() != BlockHasher::Create(algorithm, HashSeed::Random())->root());
  }
}

}  // namespace
}  // namespace kvwire
