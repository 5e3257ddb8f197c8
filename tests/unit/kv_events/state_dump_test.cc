// SPDX-License-Identifier: Apache-2.0
#include "kv_events/state_dump.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace kvwire {
namespace {

class FixedState final : public StateSource {
 public:
  void Walk(const std::function<void(const ResidentBlock&)>& visit) const override {
    const auto show = [&visit](std::uint64_t low64, std::uint32_t group, std::string medium) {
      ResidentBlock block;
      block.hash = BlockHash::FromUint64(low64);
      block.group = group;
      block.medium = medium;  // gone after the call
      visit(block);
    };
    show(0xff, 1, "GPU");
    show(0xff, 0, "gpu");
    show(0x0a, 0, "");
    show(0x0b, 0, "CPU");
    show(0x0c, 0, "a b\n");
  }
};

TEST_CASE("a state is dumped in the order of group, medium and hash, one escaped line a block") {
  std::vector<std::string> lines;
  DumpState(FixedState(), [&lines](std::string_view line) { lines.emplace_back(line); });
  CHECK(lines == std::vector<std::string>{"0 A\\x20B\\x0a 000000000000000c", "0 CPU 000000000000000b",
                                          "0 GPU 000000000000000a", "0 GPU 00000000000000ff",
                                          "1 GPU 00000000000000ff"});
}

}  // namespace
}  // namespace kvwire
