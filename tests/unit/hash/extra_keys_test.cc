// SPDX-License-Identifier: Apache-2.0
#include "kv_events/hash/extra_keys.h"

#include <string>

#include <doctest/doctest.h>

namespace kvwire {
namespace {

BlockContent TwoImages() {
  BlockContent content;
  content.items = {{"hash1", 0, 5}, {"hash2", 10, 5}};
  return content;
}

TEST_CASE("an item is a key of every block it overlaps, with its offset from the block's start") {
  const BlockContent content = TwoImages();
  CHECK(ExtraKeysOf(content, 0, 5) == ExtraKeys{MultimodalKey{"hash1", 0}});
  CHECK(ExtraKeysOf(content, 3, 8) == ExtraKeys{MultimodalKey{"hash1", -3}});
  CHECK(ExtraKeysOf(content, 6, 10).empty());
  CHECK(ExtraKeysOf(content, 0, 15) == ExtraKeys{MultimodalKey{"hash1", 0}, MultimodalKey{"hash2", 10}});
}

TEST_CASE("an item that ends where the block starts, or starts where it ends, is not in it") {
  const BlockContent content = TwoImages();
  CHECK(ExtraKeysOf(content, 5, 10).empty());
  CHECK(ExtraKeysOf(content, 9, 11) == ExtraKeys{MultimodalKey{"hash2", 1}});
}

TEST_CASE("the keys come in the order LoRA name, items, salt, and the salt only in the first block") {
  BlockContent content = TwoImages();
  content.lora_name = "lora";
  content.cache_salt = "salt";
  CHECK(ExtraKeysOf(content, 0, 4) == ExtraKeys{std::string("lora"), MultimodalKey{"hash1", 0}, std::string("salt")});
  CHECK(ExtraKeysOf(content, 4, 8) == ExtraKeys{std::string("lora"), MultimodalKey{"hash1", -4}});
  CHECK(ExtraKeysOf(content, 20, 24) == ExtraKeys{std::string("lora")});
}

TEST_CASE("a plain prompt has no keys") {
  CHECK(BlockContent().empty());
  CHECK(ExtraKeysOf(BlockContent(), 0, 16).empty());
}

}  // namespace
}  // namespace kvwire
