// SPDX-License-Identifier: Apache-2.0
#include "engine/model_config.h"

#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

namespace kvwire::engine {
namespace {

using scheduler::KVCacheGroup;
using scheduler::KVCacheKind;

TEST_CASE("a model configuration names its groups, and hashes cover what divides all block sizes") {
  const auto config = ParseModelConfig(
      R"({"groups": [{"kind": "full_attention", "block_size": 48}, {"block_size": 32, "kind": "mamba"},
          {"kind": "sliding_window", "block_size": 16, "sliding_window": 100}]})");
  REQUIRE(config);
  CHECK(config->hash_block_size == 16);
  CHECK(config->groups == std::vector<KVCacheGroup>{{KVCacheKind::kFullAttention, 48, 0},
                                                    {KVCacheKind::kMamba, 32, 0},
                                                    {KVCacheKind::kSlidingWindow, 16, 100}});
  const auto finer = ParseModelConfig(R"({"hash_block_size": 4, "groups": [{"kind": "mamba", "block_size": 8}]})");
  REQUIRE(finer);
  CHECK(finer->hash_block_size == 4);
  CHECK_FALSE(finer->partial_blocks);
  const auto partial = ParseModelConfig(R"({"partial_blocks": true, "groups": [{"kind": "mamba", "block_size": 8}]})");
  REQUIRE(partial);
  CHECK(partial->partial_blocks);
}

TEST_CASE("a model configuration that cannot work is refused by field, value and what is allowed") {
  const std::string kinds = "\"full_attention\", \"sliding_window\" or \"mamba\"";
  const std::string tokens = "1 to 1073741824 tokens";
  for (const auto& [json, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "not JSON at byte 1; allowed: one object with \"groups\""},
           {"[[[[[[[[[[[[", "not JSON at byte 13; allowed: one object with \"groups\""},
           {"[[[[[[[[[[[[]]]]]]]]]]]]", "more than 8 objects and lists inside each other"},
           {"[]", "the model configuration is []; allowed: an object"},
           {"{}", "groups is missing; allowed: a list of at least one group"},
           {R"({"groups": 3})", "groups is 3; allowed: a list of at least one group"},
           {R"({"groups": []})", "there are 0 groups; allowed: 1 to 64"},
           {R"({"group": []})",
            "the model configuration is an object with the key \"group\"; allowed: the keys hash_block_size, groups, "
            "partial_blocks"},
           {R"({"partial_blocks": 1, "groups": [{"kind": "mamba", "block_size": 4}]})",
            "partial_blocks is 1; allowed: true or false"},
           {R"({"groups": [{"block_size": 4}]})", "groups[0].kind is missing; allowed: " + kinds},
           {R"({"groups": [{"kind": "full", "block_size": 4}]})", "groups[0].kind is \"full\"; allowed: " + kinds},
           {R"({"groups": [{"kind": "mamba"}]})", "groups[0].block_size is missing; allowed: " + tokens},
           {R"({"groups": [{"kind": "mamba", "block_size": -1}]})", "groups[0].block_size is -1; allowed: " + tokens},
           {R"({"groups": [{"kind": "mamba", "block_size": 4294967296}]})",
            "groups[0].block_size is 4294967296; allowed: " + tokens},
           {R"({"groups": [{"kind": "mamba", "block_size": 4, "window": 4}]})",
            "groups[0] is an object with the key \"window\"; allowed: the keys kind, block_size, sliding_window"},
           {R"({"groups": [{"kind": "sliding_window", "block_size": 4}]})",
            "groups[0].sliding_window is missing; allowed: 2 to 1073741824 tokens"},
           {R"({"groups": [{"kind": "sliding_window", "block_size": 4, "sliding_window": 1}]})",
            "groups[0].sliding_window is 1; allowed: 2 or more"},
           {R"({"groups": [], "groups": [{"kind": "mamba", "block_size": 4}]})",
            "the key \"groups\" is there twice in one object; allowed: once"},
           {R"({"groups": [{"kind": "mamba", "block_size": 4}, {"kind": "mamba", "block_size": 4, "kind": "mamba"}]})",
            "the key \"kind\" is there twice in one object; allowed: once"},
           {R"({"hash_block_size": 3, "groups": [{"kind": "mamba", "block_size": 4}]})",
            "groups[0].block_size is 4; allowed: multiples of the hash block size, 3"}}) {
    CAPTURE(json);
    const auto config = ParseModelConfig(json);
    REQUIRE_FALSE(config);
    CHECK(config.error().message == message);
  }
}

TEST_CASE("the model configurations in the documentation can be loaded") {
  const std::string directory = KVWIRE_MODEL_CONFIGS;
  const auto dense = LoadModelConfig(directory + "/dense.json");
  REQUIRE(dense);
  CHECK(dense->groups == std::vector<KVCacheGroup>{{KVCacheKind::kFullAttention, 16, 0}});
  const auto window = LoadModelConfig(directory + "/sliding-window-hybrid.json");
  REQUIRE(window);
  CHECK(window->groups.size() == 3);
  const auto mamba = LoadModelConfig(directory + "/mamba-hybrid.json");
  REQUIRE(mamba);
  CHECK(mamba->hash_block_size == 16);
  const auto partial = LoadModelConfig(directory + "/mamba-hybrid-partial.json");
  REQUIRE(partial);
  CHECK(partial->groups == mamba->groups);
  CHECK(partial->partial_blocks);
  const auto missing = LoadModelConfig(directory + "/none.json");
  REQUIRE_FALSE(missing);
  CHECK(missing.error().message.ends_with("none.json\": No such file or directory"));
}

}  // namespace
}  // namespace kvwire::engine
