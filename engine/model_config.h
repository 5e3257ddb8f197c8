// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kv_events/error.h"
#include "scheduler/kv_cache_group.h"

namespace kvwire::engine {

// What a model's layers ask of the KV cache.
struct ModelConfig {
  std::uint32_t hash_block_size = 16;  // tokens per block hash
  std::vector<scheduler::KVCacheGroup> groups;
  bool partial_blocks = false;  // as SchedulerConfig has it

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// From JSON: {"hash_block_size": 16, "groups": [{"kind": "sliding_window", "block_size": 16, "sliding_window": 1024},
// ...], "partial_blocks": true}. "hash_block_size" may be missing: the greatest common divisor of the block sizes; so
// may "partial_blocks": false. Errors: kInvalidArgument names the field, its value and what is allowed.
Result<ModelConfig> ParseModelConfig(std::string_view json);

// The same of a file. Errors: also kUnavailable with the file's name.
Result<ModelConfig> LoadModelConfig(const std::string& path);

}  // namespace kvwire::engine
