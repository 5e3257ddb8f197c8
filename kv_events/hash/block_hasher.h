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

// Root seed text when neither the configuration nor PYTHONHASHSEED gives one.
inline constexpr std::string_view kDefaultHashSeed = "vllm-none-hash";

enum class HashAlgorithm : std::uint8_t { kSha256Cbor };

// Identity of a block from its parent's identity, its tokens and its extra keys: SHA-256 of the canonical CBOR of
// [parent digest, [token, ...], null or [key, ...]]. The parent of a prompt's first block is the root: the digest of
// the seed text's CBOR.
//
// Threads: HashBlock reuses a buffer and a digest context; one thread at a time per hasher. Copy it for another thread.
// Source: vLLM's sha256_cbor; docs/protocol.md, "Block hashes".
class BlockHasher {
 public:
  static Result<BlockHasher> Create(HashAlgorithm algorithm, std::string_view seed_text);

  BlockHasher(BlockHasher&&) noexcept;
  BlockHasher& operator=(BlockHasher&&) noexcept;
  BlockHasher(const BlockHasher& other);
  BlockHasher& operator=(const BlockHasher&) = delete;
  ~BlockHasher();

  const BlockHash& root() const noexcept { return root_; }

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
  BlockHash root_;
};

// "sha256_cbor"; the error lists what is allowed.
Result<HashAlgorithm> ParseHashAlgorithm(std::string_view name);

// Answers the value of an environment variable, nothing when it is unset.
using HashSeedEnvironment = std::function<std::optional<std::string>(const std::string& name)>;

// The seed text: the one given explicitly, else PYTHONHASHSEED, else kDefaultHashSeed. Set but empty counts as set.
std::string ResolveHashSeed(const std::optional<std::string>& explicit_seed, const HashSeedEnvironment& environment);

}  // namespace kvwire
