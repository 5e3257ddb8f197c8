// SPDX-License-Identifier: Apache-2.0
#include "scheduler/block_context.h"

#include <string>

#include <doctest/doctest.h>

namespace kvwire::scheduler {
namespace {

TEST_CASE("blocks without keys and adapter share the plain context and cost nothing") {
  BlockContextTable table;
  CHECK(table.Acquire({}, nullptr) == BlockContextTable::kPlain);
  table.Release(BlockContextTable::kPlain);
  CHECK(table.at(BlockContextTable::kPlain) == BlockContext{});
  CHECK(table.size() == 0);
}

TEST_CASE("a context is kept once for all its users, and its entry is reused when the last one has gone") {
  BlockContextTable table;
  const LoraAdapter lora{42, "my_lora"};
  const ExtraKeys keys = {std::string("my_lora"), MultimodalKey{"image", -2}, std::vector<std::uint8_t>{1, 2},
                          OpaqueKey{"\x01"}};
  const std::uint32_t first = table.Acquire(keys, &lora);
  CHECK(first != BlockContextTable::kPlain);
  CHECK(table.Acquire(keys, &lora) == first);
  CHECK(table.size() == 1);
  CHECK(table.at(first) == BlockContext{keys, lora});
  table.Release(first);
  CHECK(table.size() == 1);
  table.Release(first);
  CHECK(table.size() == 0);
  CHECK(table.Acquire({std::string("salt")}, nullptr) == first);
}

TEST_CASE("contexts that differ in one thing are different") {
  BlockContextTable table;
  const LoraAdapter lora{42, "a"};
  const LoraAdapter other_id{43, "a"};
  const std::uint32_t one = table.Acquire({std::string("a")}, &lora);
  CHECK(table.Acquire({std::string("a")}, &other_id) != one);
  CHECK(table.Acquire({std::string("a")}, nullptr) != one);
  CHECK(table.Acquire({std::string("a"), std::string("salt")}, &lora) != one);
  CHECK(table.size() == 4);
}

}  // namespace
}  // namespace kvwire::scheduler
