// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "kv_events/hash/block_hasher.h"
#include "kv_events/hash/extra_keys.h"
#include "tests/support/block_chains.h"

// What the tests of block hashes share.
namespace kvwire {

using test::ChainOf;
using test::Range;

inline constexpr std::array kAllAlgorithms = {HashAlgorithm::kSha256, HashAlgorithm::kSha256Cbor,
                                              HashAlgorithm::kXxhash, HashAlgorithm::kXxhashCbor};

inline BlockHasher Hasher(HashAlgorithm algorithm, std::string_view seed) {
  return *BlockHasher::Create(algorithm, seed);
}

inline std::string Hex(std::span<const std::uint8_t> bytes) {
  std::string hex;
  for (const std::uint8_t byte : bytes) hex += BlockHash::FromBytes({&byte, 1})->ToHex();
  return hex;
}

inline std::vector<std::uint8_t> BytesOf(std::string_view hex) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t at = 0; at < hex.size(); at += 2) {
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(std::string(hex.substr(at, 2)), nullptr, 16)));
  }
  return bytes;
}

inline BlockContent Lora(std::string name) {
  BlockContent content;
  content.lora_name = std::move(name);
  return content;
}

inline BlockContent Salted(std::string salt) {
  BlockContent content;
  content.cache_salt = std::move(salt);
  return content;
}

inline BlockContent Image(std::string identifier, std::uint32_t offset, std::uint32_t length) {
  BlockContent content;
  content.items = {{std::move(identifier), offset, length}};
  return content;
}

inline std::vector<std::uint64_t> Low(const std::vector<BlockHash>& chain) {
  std::vector<std::uint64_t> low;
  for (const BlockHash& hash : chain) low.push_back(hash.Low64());
  return low;
}

inline std::vector<std::string> HexOf(const std::vector<BlockHash>& chain) {
  std::vector<std::string> hex;
  for (const BlockHash& hash : chain) hex.push_back(hash.ToHex());
  return hex;
}

// A text: a string, or {"repeat": text, "count": n}.
inline std::string TextOf(const nlohmann::json& json) {
  if (json.is_string()) return json.get<std::string>();
  std::string text;
  for (std::size_t i = 0; i < json.at("count").get<std::size_t>(); ++i) text += json.at("repeat").get<std::string>();
  return text;
}

// Keys: null, or an array of texts, of [text, offset] and of {"bytes": hex, "count": n}.
inline ExtraKeys KeysOf(const nlohmann::json& json) {
  ExtraKeys keys;
  if (json.is_null()) return keys;
  for (const nlohmann::json& key : json) {
    if (key.is_array()) {
      keys.emplace_back(MultimodalKey{TextOf(key.at(0)), key.at(1).get<std::int64_t>()});
    } else if (key.is_object() && key.contains("bytes")) {
      const std::vector<std::uint8_t> once = BytesOf(key.at("bytes").get<std::string>());
      std::vector<std::uint8_t> bytes;
      for (std::size_t i = 0; i < key.at("count").get<std::size_t>(); ++i) {
        bytes.insert(bytes.end(), once.begin(), once.end());
      }
      keys.emplace_back(std::move(bytes));
    } else {
      keys.emplace_back(TextOf(key));
    }
  }
  return keys;
}

// Token ids: an array, or {"count": n, "factor": f, "modulus": m}, whose token i is i * f % m.
inline std::vector<TokenId> TokensOf(const nlohmann::json& json) {
  if (json.is_array()) return json.get<std::vector<TokenId>>();
  std::vector<TokenId> tokens(json.at("count").get<std::size_t>());
  const auto factor = json.at("factor").get<std::uint64_t>();
  const auto modulus = json.at("modulus").get<std::uint64_t>();
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i * factor % modulus);
  return tokens;
}

}  // namespace kvwire
