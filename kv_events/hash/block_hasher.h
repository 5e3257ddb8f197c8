// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kv_events/block_hash.h"
#include "kv_events/error.h"
#include "kv_events/events.h"

namespace kvwire {

// Root seed text of the SHA-256 algorithms when neither the configuration nor PYTHONHASHSEED gives one.
inline constexpr std::string_view kDefaultHashSeed = "vllm-none-hash";

// A digest and what it is taken of: SHA-256 (32 bytes) or XXH3-128 (16 bytes, canonical, so big-endian) of Python's
// pickle or of canonical CBOR.
enum class HashAlgorithm : std::uint8_t { kSha256, kSha256Cbor, kXxhash, kXxhashCbor };

// As vLLM spells them: "sha256", "sha256_cbor", "xxhash", "xxhash_cbor".
std::string_view ToString(HashAlgorithm algorithm) noexcept;

// The inverse of ToString; the error lists what is allowed.
Result<HashAlgorithm> ParseHashAlgorithm(std::string_view name);

// Who chose the root. Under kRandom no other process has it unless it is told, so equal prompts have other hashes
// there.
enum class HashSeedSource : std::uint8_t { kConfigured, kEnvironment, kDefault, kRandom };

// "configured", "environment", "default", "random".
std::string_view ToString(HashSeedSource source) noexcept;

// A value: copyable and comparable.
struct HashSeed {
  HashSeedSource source = HashSeedSource::kDefault;
  std::optional<std::string> text{kDefaultHashSeed};  // nothing exactly under kRandom

  static HashSeed Random() { return {HashSeedSource::kRandom, std::nullopt}; }

  friend bool operator==(const HashSeed&, const HashSeed&) = default;
};

// What a consumer must know to compute the same hashes. A value: copyable and comparable.
struct HashIdentity {
  HashAlgorithm algorithm = HashAlgorithm::kSha256Cbor;
  HashSeed seed;
  BlockHash root;  // the parent of a prompt's first block

  friend bool operator==(const HashIdentity&, const HashIdentity&) = default;
};

// Identity of a block from its parent's identity, its tokens and its extra keys: the digest of
// (parent digest, (token, ...), nothing or (key, ...)). The parent of a prompt's first block is the root: the digest of
// the seed text, or 32 random bytes.
//
// Threads: HashBlock reuses a buffer and a digest context; one thread at a time per hasher. Copy it for another thread.
// Source: vLLM; docs/protocol.md, "Block hashes".
class BlockHasher {
 public:
  // Under HashSeed::Random() every call draws another root.
  static Result<BlockHasher> Create(HashAlgorithm algorithm, const HashSeed& seed);

  // As with a configured seed of that text.
  static Result<BlockHasher> Create(HashAlgorithm algorithm, std::string_view seed_text);

  BlockHasher(BlockHasher&&) noexcept;
  BlockHasher& operator=(BlockHasher&&) noexcept;
  BlockHasher(const BlockHasher& other);
  BlockHasher& operator=(const BlockHasher&) = delete;
  ~BlockHasher();

  const HashIdentity& identity() const noexcept { return identity_; }
  const BlockHash& root() const noexcept { return identity_.root; }

  // A copy whose prompts start from another root, for a stream whose producer drew a random one.
  BlockHasher WithRoot(const BlockHash& root) const;

  // `parent` empty: the root. An OpaqueKey counts as its bytes.
  BlockHash HashBlock(const BlockHash& parent, std::span<const TokenId> tokens, const ExtraKeys& extra_keys = {});

  // What the last HashBlock digested; valid until the next one.
  std::span<const std::uint8_t> last_preimage() const noexcept;

 private:
  struct Digest;
  explicit BlockHasher(std::unique_ptr<Digest> digest);

  std::unique_ptr<Digest> digest_;
  HashIdentity identity_;
};

// Answers the value of an environment variable, nothing when it is unset.
using HashSeedEnvironment = std::function<std::optional<std::string>(const std::string& name)>;

// The seed: the one given explicitly, else PYTHONHASHSEED, else kDefaultHashSeed for the SHA-256 algorithms and a
// random root for the XXH3 ones, whose collisions could be computed in advance from a known root; of that the host
// should warn when events are on. Set but empty counts as set.
HashSeed ResolveHashSeed(HashAlgorithm algorithm, const std::optional<std::string>& explicit_seed,
                         const HashSeedEnvironment& environment);

// The text alone, for the SHA-256 algorithms.
std::string ResolveHashSeed(const std::optional<std::string>& explicit_seed, const HashSeedEnvironment& environment);

}  // namespace kvwire
