// SPDX-License-Identifier: Apache-2.0
// SHA256_* are taken as OpenSSL 1.1 has them: EVP costs half as much again as the digest of a block.
#define OPENSSL_API_COMPAT 0x10100000L

#include "kv_events/hash/block_hasher.h"

#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <xxhash.h>

#include "kv_events/hash/cbor.h"
#include "kv_events/hash/pickle.h"

namespace kvwire {

namespace {

constexpr std::size_t kRandomRootSize = 32;  // whatever the size of the digest

enum class DigestFunction : std::uint8_t { kSha256, kXxh3 };
enum class Serialization : std::uint8_t { kPickle, kCbor };

struct Traits {
  std::string_view name;
  DigestFunction function;
  Serialization serialization;
};

// By HashAlgorithm.
constexpr std::array kTraits = {
    Traits{"sha256", DigestFunction::kSha256, Serialization::kPickle},
    Traits{"sha256_cbor", DigestFunction::kSha256, Serialization::kCbor},
    Traits{"xxhash", DigestFunction::kXxh3, Serialization::kPickle},
    Traits{"xxhash_cbor", DigestFunction::kXxh3, Serialization::kCbor},
};

const Traits& TraitsOf(HashAlgorithm algorithm) noexcept { return kTraits[static_cast<std::size_t>(algorithm)]; }

// One form of a sequence and of a value's end for both serializations.
void BeginTuple(CborWriter* writer, std::size_t elements) { writer->Array(elements); }
void EndTuple(CborWriter*, std::size_t) {}
void Nothing(CborWriter* writer) { writer->Null(); }
void Stop(CborWriter*) {}
void BeginTuple(PickleWriter* writer, std::size_t elements) { writer->BeginTuple(elements); }
void EndTuple(PickleWriter* writer, std::size_t elements) { writer->EndTuple(elements); }
void Nothing(PickleWriter* writer) { writer->None(); }
void Stop(PickleWriter* writer) { writer->Stop(); }

template <class Writer>
struct KeyWriter {
  Writer* writer;

  void operator()(const std::string& text) const { writer->Text(text); }
  void operator()(const MultimodalKey& item) const {
    BeginTuple(writer, 2);
    writer->Text(item.identifier);
    writer->Integer(item.offset);
    EndTuple(writer, 2);
  }
  void operator()(const std::vector<std::uint8_t>& bytes) const { writer->Bytes(bytes); }
  void operator()(const OpaqueKey& opaque) const {
    writer->Bytes({reinterpret_cast<const std::uint8_t*>(opaque.msgpack.data()), opaque.msgpack.size()});
  }
};

template <class Writer>
void WriteBlock(Writer* writer, const BlockHash& parent, std::span<const TokenId> tokens, const ExtraKeys& extra_keys) {
  writer->Clear();
  BeginTuple(writer, 3);
  writer->Bytes(parent.bytes());
  writer->Tokens(tokens);
  if (extra_keys.empty()) {
    Nothing(writer);
  } else {
    BeginTuple(writer, extra_keys.size());
    for (const ExtraKey& key : extra_keys) std::visit(KeyWriter<Writer>{writer}, key);
    EndTuple(writer, extra_keys.size());
  }
  EndTuple(writer, 3);
  Stop(writer);
}

template <class Writer>
void WriteSeed(Writer* writer, std::string_view text) {
  writer->Clear();
  writer->Text(text);
  Stop(writer);
}

void StoreBig(std::uint8_t* out, std::uint64_t value) {
  if constexpr (std::endian::native == std::endian::little) value = __builtin_bswap64(value);
  std::memcpy(out, &value, sizeof value);
}

// Four words at once: who reads the digest in larger pieces than it was stored in waits for the stores.
void StoreBig4(std::uint8_t* out, const std::uint32_t* words) {
  using Words [[gnu::vector_size(16)]] = std::uint32_t;
  Words values;
  std::memcpy(&values, words, sizeof values);
  if constexpr (std::endian::native == std::endian::little) {
    values = values << 24 | (values << 8 & 0xff0000) | (values >> 8 & 0xff00) | values >> 24;
  }
  std::memcpy(out, &values, sizeof values);
}

// The digest of what the writer holds, which is padded where it lies: a copy would have to wait for the bytes that were
// only just written.
template <class Writer>
BlockHash Sha256(Writer* writer) {
  constexpr std::size_t kLengthSize = 8;
  constexpr std::size_t kBlockSize = SHA256_CBLOCK;
  const std::size_t size = writer->bytes().size();
  const std::size_t padding = kBlockSize - (size + kLengthSize) % kBlockSize;
  std::uint8_t* const tail = writer->Behind(padding + kLengthSize);
  std::memset(tail, 0, padding);
  *tail = 0x80;
  StoreBig(tail + padding, std::uint64_t{8} * size);
  SHA256_CTX context;
  SHA256_Init(&context);
  const std::uint8_t* const end = tail + padding + kLengthSize;
  for (const std::uint8_t* block = tail - size; block != end; block += kBlockSize) SHA256_Transform(&context, block);
  std::array<std::uint8_t, SHA256_DIGEST_LENGTH> digest;
  for (std::size_t i = 0; i < std::size(context.h); i += 4) StoreBig4(&digest[4 * i], &context.h[i]);
  return *BlockHash::FromBytes(digest);
}

BlockHash Xxh3(std::span<const std::uint8_t> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  return *BlockHash::FromBytes(canonical.digest);
}

Result<BlockHash> RandomRoot() {
  std::array<std::uint8_t, kRandomRootSize> bytes{};
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) {
    return MakeError(ErrorCode::kUnavailable, "the crypto library has no random bytes for the root of block hashes");
  }
  return *BlockHash::FromBytes(bytes);
}

}  // namespace

struct BlockHasher::Digest {
  std::variant<CborWriter, PickleWriter> writer;
  DigestFunction function;

  explicit Digest(const Traits& traits) : function(traits.function) {
    if (traits.serialization == Serialization::kPickle) writer.emplace<PickleWriter>();
  }

  std::span<const std::uint8_t> preimage() const noexcept {
    if (const auto* const cbor = std::get_if<CborWriter>(&writer)) return cbor->bytes();
    return std::get_if<PickleWriter>(&writer)->bytes();
  }

  // The digest of the preimage.
  BlockHash Finish() {
    if (function == DigestFunction::kXxh3) return Xxh3(preimage());
    if (auto* const cbor = std::get_if<CborWriter>(&writer)) return Sha256(cbor);
    return Sha256(std::get_if<PickleWriter>(&writer));
  }
};

Result<BlockHasher> BlockHasher::Create(HashAlgorithm algorithm, const HashSeed& seed) {
  BlockHasher hasher(std::make_unique<Digest>(TraitsOf(algorithm)));
  hasher.identity_ = {algorithm, seed.text ? seed : HashSeed::Random(), {}};
  if (!seed.text) {
    Result<BlockHash> root = RandomRoot();
    if (!root) return tl::unexpected<Error>(std::move(root).error());
    hasher.identity_.root = *root;
    return hasher;
  }
  std::visit([&seed](auto& writer) { WriteSeed(&writer, *seed.text); }, hasher.digest_->writer);
  hasher.identity_.root = hasher.digest_->Finish();
  return hasher;
}

Result<BlockHasher> BlockHasher::Create(HashAlgorithm algorithm, std::string_view seed_text) {
  return Create(algorithm, HashSeed{HashSeedSource::kConfigured, std::string(seed_text)});
}

BlockHasher::BlockHasher(std::unique_ptr<Digest> digest) : digest_(std::move(digest)) {}
BlockHasher::BlockHasher(BlockHasher&&) noexcept = default;
BlockHasher& BlockHasher::operator=(BlockHasher&&) noexcept = default;
BlockHasher::BlockHasher(const BlockHasher& other)
    : digest_(std::make_unique<Digest>(TraitsOf(other.identity_.algorithm))), identity_(other.identity_) {}
BlockHasher::~BlockHasher() = default;

BlockHasher BlockHasher::WithRoot(const BlockHash& root) const {
  BlockHasher hasher(*this);
  hasher.identity_.seed = HashSeed::Random();
  hasher.identity_.root = root;
  return hasher;
}

std::span<const std::uint8_t> BlockHasher::last_preimage() const noexcept { return digest_->preimage(); }

BlockHash BlockHasher::HashBlock(const BlockHash& parent, std::span<const TokenId> tokens,
                                 const ExtraKeys& extra_keys) {
  const BlockHash& before = parent.empty() ? root() : parent;
  if (auto* const cbor = std::get_if<CborWriter>(&digest_->writer)) {
    WriteBlock(cbor, before, tokens, extra_keys);
  } else {
    WriteBlock(std::get_if<PickleWriter>(&digest_->writer), before, tokens, extra_keys);
  }
  return digest_->Finish();
}

std::string_view ToString(HashAlgorithm algorithm) noexcept { return TraitsOf(algorithm).name; }

Result<HashAlgorithm> ParseHashAlgorithm(std::string_view name) {
  std::string allowed;
  for (std::size_t i = 0; i < kTraits.size(); ++i) {
    if (kTraits[i].name == name) return static_cast<HashAlgorithm>(i);
    allowed += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", kTraits[i].name);
  }
  return MakeError(ErrorCode::kInvalidArgument, fmt::format("hash algorithm is \"{}\"; allowed: {}", name, allowed));
}

std::string_view ToString(HashSeedSource source) noexcept {
  static constexpr std::array<std::string_view, 4> kNames = {"configured", "environment", "default", "random"};
  return kNames[static_cast<std::size_t>(source)];
}

HashSeed ResolveHashSeed(HashAlgorithm algorithm, const std::optional<std::string>& explicit_seed,
                         const HashSeedEnvironment& environment) {
  if (explicit_seed) return {HashSeedSource::kConfigured, *explicit_seed};
  if (environment) {
    if (std::optional<std::string> seed = environment("PYTHONHASHSEED")) {
      return {HashSeedSource::kEnvironment, std::move(seed)};
    }
  }
  return TraitsOf(algorithm).function == DigestFunction::kSha256 ? HashSeed() : HashSeed::Random();
}

std::string ResolveHashSeed(const std::optional<std::string>& explicit_seed, const HashSeedEnvironment& environment) {
  return *ResolveHashSeed(HashAlgorithm::kSha256Cbor, explicit_seed, environment).text;
}

}  // namespace kvwire
