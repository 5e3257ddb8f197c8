// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "kv_events/hash/block_hasher.h"
#include "kv_events/hash/extra_keys.h"

// Prompts and the hashes of their blocks.
namespace kvwire::test {

// first, first + 1, ...: `count` of them.
inline std::vector<TokenId> Range(TokenId first, std::size_t count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// The hashes of the full blocks of a prompt.
inline std::vector<BlockHash> ChainOf(BlockHasher hasher, const std::vector<TokenId>& tokens, std::size_t block_size,
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

}  // namespace kvwire::test
