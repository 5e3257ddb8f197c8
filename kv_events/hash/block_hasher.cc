// SPDX-License-Identifier: Apache-2.0
#include "kv_events/hash/block_hasher.h"

#include <array>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <openssl/evp.h>

#include "kv_events/hash/cbor.h"

namespace kvwire {

namespace {

constexpr std::size_t kDigestSize = 32;

struct FreeDigest {
  void operator()(EVP_MD* digest) const noexcept { EVP_MD_free(digest); }
};
struct FreeContext {
  void operator()(EVP_MD_CTX* context) const noexcept { EVP_MD_CTX_free(context); }
};

void WriteKey(const ExtraKey& key, CborWriter* cbor) {
  struct Writer {
    CborWriter* cbor;
    void operator()(const std::string& text) const { cbor->Text(text); }
    void operator()(const MultimodalKey& item) const {
      cbor->Array(2);
      cbor->Text(item.identifier);
      cbor->Integer(item.offset);
    }
    void operator()(const std::vector<std::uint8_t>& bytes) const { cbor->Bytes(bytes); }
    void operator()(const OpaqueKey& opaque) const {
      cbor->Bytes({reinterpret_cast<const std::uint8_t*>(opaque.msgpack.data()), opaque.msgpack.size()});
    }
  };
  std::visit(Writer{cbor}, key);
}

}  // namespace

struct BlockHasher::Digest {
  std::shared_ptr<EVP_MD> algorithm;  // fetched once, shared by copies; looking it up costs more than hashing
  std::unique_ptr<EVP_MD_CTX, FreeContext> context;
  CborWriter cbor;

  static std::unique_ptr<Digest> Make(std::shared_ptr<EVP_MD> algorithm) {
    auto digest = std::make_unique<Digest>();
    digest->algorithm = std::move(algorithm);
    digest->context.reset(EVP_MD_CTX_new());
    if (!digest->context) return nullptr;
    if (EVP_DigestInit_ex2(digest->context.get(), digest->algorithm.get(), nullptr) != 1) return nullptr;
    return digest;
  }

  // The digest of what cbor holds; no hash if the library fails, which it does not after Make().
  BlockHash Finish() {
    std::array<std::uint8_t, kDigestSize> out{};
    unsigned size = 0;
    const std::span<const std::uint8_t> bytes = cbor.bytes();
    EVP_MD_CTX* const ctx = context.get();
    if (EVP_DigestInit_ex2(ctx, nullptr, nullptr) != 1 || EVP_DigestUpdate(ctx, bytes.data(), bytes.size()) != 1 ||
        EVP_DigestFinal_ex(ctx, out.data(), &size) != 1 || size != kDigestSize) {
      return {};
    }
    return *BlockHash::FromBytes(out);
  }
};

Result<BlockHasher> BlockHasher::Create(HashAlgorithm algorithm, std::string_view seed_text) {
  const char* name = nullptr;
  switch (algorithm) {
    case HashAlgorithm::kSha256Cbor:
      name = "SHA256";
      break;
  }
  std::shared_ptr<EVP_MD> fetched(EVP_MD_fetch(nullptr, name, nullptr), FreeDigest{});
  std::unique_ptr<Digest> digest = fetched ? Digest::Make(std::move(fetched)) : nullptr;
  if (!digest) return MakeError(ErrorCode::kUnavailable, "the crypto library does not provide SHA-256");
  BlockHasher hasher(std::move(digest));
  hasher.digest_->cbor.Text(seed_text);
  hasher.root_ = hasher.digest_->Finish();
  if (hasher.root_.empty()) return MakeError(ErrorCode::kUnavailable, "the crypto library failed to compute SHA-256");
  return hasher;
}

BlockHasher::BlockHasher(std::unique_ptr<Digest> digest) : digest_(std::move(digest)) {}
BlockHasher::BlockHasher(BlockHasher&&) noexcept = default;
BlockHasher& BlockHasher::operator=(BlockHasher&&) noexcept = default;
BlockHasher::BlockHasher(const BlockHasher& other)
    : digest_(Digest::Make(other.digest_->algorithm)), root_(other.root_) {
  if (!digest_) throw std::bad_alloc();
}
BlockHasher::~BlockHasher() = default;

BlockHasher BlockHasher::WithRoot(const BlockHash& root) const {
  BlockHasher hasher(*this);
  hasher.root_ = root;
  return hasher;
}

std::span<const std::uint8_t> BlockHasher::last_preimage() const noexcept { return digest_->cbor.bytes(); }

BlockHash BlockHasher::HashBlock(const BlockHash& parent, std::span<const TokenId> tokens,
                                 const ExtraKeys& extra_keys) {
  CborWriter& cbor = digest_->cbor;
  cbor.Clear();
  cbor.Array(3);
  cbor.Bytes(parent.empty() ? root_.bytes() : parent.bytes());
  cbor.Tokens(tokens);
  if (extra_keys.empty()) {
    cbor.Null();
  } else {
    cbor.Array(extra_keys.size());
    for (const ExtraKey& key : extra_keys) WriteKey(key, &cbor);
  }
  return digest_->Finish();
}

Result<HashAlgorithm> ParseHashAlgorithm(std::string_view name) {
  if (name == "sha256_cbor") return HashAlgorithm::kSha256Cbor;
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("hash algorithm is \"{}\"; allowed: \"sha256_cbor\"", name));
}

std::string ResolveHashSeed(const std::optional<std::string>& explicit_seed, const HashSeedEnvironment& environment) {
  if (explicit_seed) return *explicit_seed;
  if (environment) {
    if (std::optional<std::string> seed = environment("PYTHONHASHSEED")) return *std::move(seed);
  }
  return std::string(kDefaultHashSeed);
}

}  // namespace kvwire
