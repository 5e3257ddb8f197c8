// SPDX-License-Identifier: Apache-2.0
// Identity of a block of 16 tokens from its parent's, serialization included, along chains of different length. Beside
// it, in the same rounds, the bare SHA-256 of as many bytes: how fast the machine is at this moment.
#define OPENSSL_API_COMPAT 0x10100000L  // SHA256_*

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <openssl/sha.h>

#include "kv_events/hash/block_hasher.h"
#include "tests/bench/rounds.h"

namespace kvwire::test {
namespace {

constexpr std::size_t kBlockSize = 16;
constexpr std::size_t kBlocksPerRound = 32768;
constexpr std::array<std::size_t, 4> kSizes{1, 64, 512, 8192};
constexpr double kGoalNanos = 150;  // of sha256_cbor

// OpenSSL, in the way that costs least: without EVP.
void DigestBare(std::span<const std::uint8_t> bytes) {
  SHA256_CTX context;
  std::array<std::uint8_t, SHA256_DIGEST_LENGTH> result;
  SHA256_Init(&context);
  SHA256_Update(&context, bytes.data(), bytes.size());
  SHA256_Final(result.data(), &context);
  benchmark::DoNotOptimize(result);
}

void HashChains(benchmark::State& state, HashAlgorithm algorithm, std::size_t blocks_per_chain) {
  const std::vector<TokenId> tokens = RandomTokens(kBlocksPerRound * kBlockSize, 2);
  BlockHasher hasher = *BlockHasher::Create(algorithm, kDefaultHashSeed);
  PairedRounds rounds;
  const auto chains = [&] {
    BlockHash hash;
    for (std::size_t i = 0; i < kBlocksPerRound; ++i) {
      if (i % blocks_per_chain == 0) hash = {};
      hash = hasher.HashBlock(hash, std::span(tokens).subspan(i * kBlockSize, kBlockSize));
    }
    benchmark::DoNotOptimize(hash);
  };
  chains();
  const std::vector<std::uint8_t> preimage(hasher.last_preimage().begin(), hasher.last_preimage().end());
  const auto digests = [&] {
    for (std::size_t i = 0; i < kBlocksPerRound; ++i) DigestBare(preimage);
  };
  for (auto _ : state) {
    rounds.Run([&] { return TimeOf(digests) / kBlocksPerRound; }, [&] { return TimeOf(chains) / kBlocksPerRound; });
    state.SetIterationTime(rounds.last_other() * 1e-9);
  }
  state.counters["ns_per_block"] = rounds.other();
  state.counters["bare_sha256_ns"] = rounds.base();
  state.counters["to_bare_sha256"] = rounds.ratio();
  if (algorithm != HashAlgorithm::kSha256Cbor) return;
  Goals goals;
  goals.Judge("<= 150 ns a block", rounds.other() <= kGoalNanos);
  state.SetLabel(goals.text());
}

void AddAll(int rounds) {
  for (const HashAlgorithm algorithm :
       {HashAlgorithm::kSha256Cbor, HashAlgorithm::kSha256, HashAlgorithm::kXxhashCbor, HashAlgorithm::kXxhash}) {
    for (const std::size_t size : kSizes) {
      const std::string name = std::string(ToString(algorithm)) + "/" + std::to_string(size);
      benchmark::RegisterBenchmark(name.c_str(), HashChains, algorithm, size)->Iterations(rounds)->UseManualTime();
    }
  }
}

}  // namespace
}  // namespace kvwire::test

int main(int argc, char** argv) { return kvwire::test::RunBenchmarks(argc, argv, kvwire::test::AddAll); }
