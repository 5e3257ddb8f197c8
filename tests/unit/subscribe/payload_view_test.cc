// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/payload_view.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/unit/subscribe/stream_fixture.h"

namespace kvwire::test {
namespace {

TEST_CASE("the end of a value of every msgpack form is found") {
  const std::vector<Bytes> values{
      {0x00},
      {0xff},
      {0xc0},
      {0xcc, 1},
      {0xcd, 1, 2},
      {0xce, 1, 2, 3, 4},
      {0xcf, 1, 2, 3, 4, 5, 6, 7, 8},
      {0xd0, 1},
      {0xd3, 1, 2, 3, 4, 5, 6, 7, 8},
      {0xca, 1, 2, 3, 4},
      {0xcb, 1, 2, 3, 4, 5, 6, 7, 8},
      {0xa2, 'a', 'b'},
      {0xd9, 1, 'a'},
      {0xda, 0, 1, 'a'},
      {0xdb, 0, 0, 0, 1, 'a'},
      {0xc4, 2, 1, 2},
      {0xc5, 0, 1, 9},
      {0xc6, 0, 0, 0, 1, 9},
      {0xd4, 1, 2},
      {0xd8, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
      {0xc7, 1, 5, 9},
      {0xc8, 0, 1, 5, 9},
      {0xc9, 0, 0, 0, 1, 5, 9},
      {0x90},
      {0x92, 0x91, 0x01, 0xa1, 'x'},
      {0xdc, 0, 2, 0xc0, 0xc0},
      {0xdd, 0, 0, 0, 1, 0xc0},
      {0x81, 0x01, 0x92, 0x01, 0x02},
      {0xde, 0, 1, 0x01, 0x02},
      {0xdf, 0, 0, 0, 1, 0x01, 0x02},
  };
  for (const Bytes& value : values) {
    CAPTURE(static_cast<int>(value[0]));
    Bytes padded{0xc0};
    padded.insert(padded.end(), value.begin(), value.end());
    padded.push_back(0xc0);
    CHECK(EndOfValue(padded, 1) == value.size() + 1);
    for (std::size_t cut = 0; cut < value.size(); ++cut) {
      CHECK_FALSE(EndOfValue(std::span(value).first(cut), 0).has_value());
    }
  }
}

TEST_CASE("lengths that the payload cannot hold are not believed") {
  for (const std::uint8_t tag : {0xdd, 0xdf, 0xc6, 0xdb, 0xc9}) {
    const Bytes value{tag, 0xff, 0xff, 0xff, 0xff, 0, 0};
    CHECK_FALSE(EndOfValue(value, 0).has_value());
  }
}

TEST_CASE("the events of array and map batches are found") {
  const Bytes array_batch{0x93, 0x01, 0x92, 0x91, 0xa1, 'x', 0x80, 0x00};
  CHECK(FindEvents(array_batch) == std::vector<ByteRange>{{3, 6}, {6, 7}});
  Bytes map_batch{0x82, 0xa2, 't', 's', 0x01, 0xa6, 'e', 'v', 'e', 'n', 't', 's', 0x91, 0x81, 0x01, 0x02};
  CHECK(FindEvents(map_batch) == std::vector<ByteRange>{{13, 16}});
  const Bytes cut{0x93, 0x01, 0x92, 0x91, 0xa1, 'x'};
  CHECK(FindEvents(cut) == std::vector<ByteRange>{{3, 6}});
  CHECK(FindEvents(Bytes{0x01}).empty());
  CHECK(FindEvents(Bytes{}).empty());
}

TEST_CASE("the dump shows the marked bytes between brackets, with a line before and after") {
  Bytes payload(80);
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::uint8_t>(i);
  CHECK(HexDump(payload, {34, 50}) ==
        "  000010  10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f\n"
        "  000020  20 21[22 23 24 25 26 27 28 29 2a 2b 2c 2d 2e 2f\n"
        "  000030  30 31]32 33 34 35 36 37 38 39 3a 3b 3c 3d 3e 3f\n"
        "  000040  40 41 42 43 44 45 46 47 48 49 4a 4b 4c 4d 4e 4f\n");
  CHECK(HexDump(payload, {78, 80}) ==
        "  000030  30 31 32 33 34 35 36 37 38 39 3a 3b 3c 3d 3e 3f\n"
        "  000040  40 41 42 43 44 45 46 47 48 49 4a 4b 4c 4d[4e 4f]\n");
  CHECK(HexDump(Bytes{1, 2}, {0, 99}) == "  000000 [01 02]\n");
  CHECK(HexDump(Bytes{}, {5, 9}).empty());
}

TEST_CASE("a long marked range is shown by its first and last lines") {
  const Bytes payload(10'000);
  const std::string dump = HexDump(payload, {0, 10'000}, 128);
  CHECK(dump.find("  000000 [00") == 0);
  CHECK(dump.find("bytes\n") != std::string::npos);
  CHECK(dump.find("  002700  00") != std::string::npos);
  CHECK(dump.size() < 1000);
}

TEST_CASE("an event is described with the wire's names") {
  const std::vector<BlockHash> hashes{BlockHash::FromUint64(1), BlockHash::FromUint64(2), BlockHash::FromUint64(3)};
  BlockStored stored;
  stored.block_hashes = hashes;
  stored.block_size = 16;
  stored.medium = "GPU";
  stored.group_idx = 0;
  CHECK(DescribeEvent(stored) ==
        "BlockStored block_hashes=[0000000000000001, .. 1 .., 0000000000000003] parent_block_hash=none tokens=0 "
        "block_size=16 medium=GPU group_idx=0");
  BlockRemoved removed;
  removed.block_hashes = std::span(hashes).first(2);
  CHECK(DescribeEvent(removed) == "BlockRemoved block_hashes=[0000000000000001, 0000000000000002]");
  CHECK(DescribeEvent(AllBlocksCleared{}) == "AllBlocksCleared");
}

TEST_CASE("the texts of an event are described escaped") {
  BlockRemoved removed;
  removed.medium = "a\n\x1b\xff";
  removed.locality = "b\x7f";
  CHECK(DescribeEvent(removed) == "BlockRemoved block_hashes=[] medium=a\\x0a\\x1b\\xff locality=b\\x7f");
}

}  // namespace
}  // namespace kvwire::test
