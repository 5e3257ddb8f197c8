// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/serve/instance.h"

namespace kvwire::engine {

// What a rank's stream has said so far, taken from the pool itself between two steps.
struct KVState {
  std::uint32_t rank = 0;
  std::string life;                    // another text after every restart of the rank or the process
  std::optional<std::uint64_t> batch;  // number of the last batch that the state contains; none: nothing was published
  std::string digest;                  // StateDigest::ToString
  std::uint64_t num_blocks = 0;        // over all groups and media
  std::vector<std::string> blocks;     // DumpState's lines, if asked for
};

enum class KVStateDetail : std::uint8_t { kDigest, kBlocks };

// Nothing when the engine was stopped. REQUIRES: rank < num_ranks().
// Threads: any but a step thread.
std::optional<KVState> TakeKVState(Instance& instance, std::uint32_t rank, KVStateDetail detail);

// One full block of a prompt, in one KV-cache group.
struct BlockLookup {
  std::uint32_t copies = 0;       // physical blocks of the device that hold it
  std::string_view lower_medium;  // where it would be loaded from; empty: no lower tier has it
  bool announced = false;         // of any medium
};

// Which blocks of a prompt a rank holds.
struct PromptLookup {
  std::uint32_t rank = 0;
  std::optional<std::uint64_t> batch;
  std::uint32_t prefix_tokens = 0;  // cached for every group, from the prompt's beginning on
  std::size_t num_groups = 1;
  bool has_lower_tiers = false;
  std::vector<BlockLookup> blocks;  // of the first hash in every group, then of the next
};

// As TakeKVState. `prompt`: from IdentifyPrompt with the instance's block size and hasher.
std::optional<PromptLookup> LookUpPrompt(Instance& instance, std::uint32_t rank,
                                         const scheduler::PromptIdentity& prompt);

}  // namespace kvwire::engine
