// SPDX-License-Identifier: Apache-2.0
#include "kv_events/block_hash.h"

#include <bit>
#include <cstdint>
#include <numeric>
#include <unordered_set>
#include <vector>

#include <doctest/doctest.h>

namespace kvwire {
namespace {

using Bytes = std::vector<std::uint8_t>;

BlockHash FromHex(std::string_view hex) {
  const auto digit = [](char c) { return static_cast<std::uint8_t>(c <= '9' ? c - '0' : c - 'a' + 10); };
  Bytes bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::uint8_t>(digit(hex[i]) << 4 | digit(hex[i + 1])));
  }
  return BlockHash::FromBytes(bytes).value();
}

TEST_CASE("A default-constructed hash is empty and has no bits") {
  const BlockHash hash;
  CHECK(hash.empty());
  CHECK(hash.size() == 0);
  CHECK(hash.Low64() == 0);
  CHECK(hash.ToHex().empty());
}

TEST_CASE("A hash has 1 to 32 bytes") {
  for (std::size_t size = 0; size <= 40; ++size) {
    CAPTURE(size);
    Bytes bytes(size);
    std::iota(bytes.begin(), bytes.end(), std::uint8_t{1});
    const auto hash = BlockHash::FromBytes(bytes);
    REQUIRE(hash.has_value() == (size >= 1 && size <= 32));
    if (!hash) continue;
    CHECK(hash->size() == size);
    CHECK(Bytes(hash->bytes().begin(), hash->bytes().end()) == bytes);
  }
}

TEST_CASE("F2: a digest has one byte form, one unsigned and one signed form") {
  struct Row {
    const char* hex;
    std::uint64_t low64;
    std::int64_t as_signed;
  };
  const Row rows[] = {
      // The first block of the sha256_cbor chain of the tokens 1 to 4 with the seed "0".
      {"c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb", 2164874634404590027, 2164874634404590027},
      // The top bit of the last eight bytes is set: above 2^63 unsigned, negative signed.
      {"000000000000000000000000000000000000000000000000ffffffffffffffff", 18446744073709551615u, -1},
      {"0102030405060708090a0b0c0d0e0f10111213141516171880000000000000000", 0x8000000000000000u, INT64_MIN},
      {"00000000000000000000000000000000000000000000000a7fffffffffffffff", INT64_MAX, INT64_MAX},
      // Eight bytes are the integer itself; fewer are padded on the left.
      {"8000000000000001", 0x8000000000000001u, INT64_MIN + 1},
      {"ab", 0xab, 0xab},
      {"ffffffffffffff", 0x00ffffffffffffff, 0x00ffffffffffffff},
      // Nine bytes: the first one does not reach the integer.
      {"ff0000000000000001", 1, 1},
  };
  for (const Row& row : rows) {
    CAPTURE(row.hex);
    const BlockHash hash = FromHex(row.hex);
    CHECK(hash.Low64() == row.low64);
    CHECK(std::bit_cast<std::int64_t>(hash.Low64()) == row.as_signed);
  }
}

TEST_CASE("F2: a 64-bit identity keeps its value through the byte form") {
  for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{0xff}, std::uint64_t{1} << 32,
                                    std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    CAPTURE(value);
    const BlockHash hash = BlockHash::FromUint64(value);
    CHECK(hash.size() == 8);
    CHECK(hash.Low64() == value);
    CHECK(BlockHash::FromBytes(hash.bytes()) == hash);
  }
  CHECK(BlockHash::FromUint64(0x0102030405060708).ToHex() == "0102030405060708");
}

TEST_CASE("Hexadecimal text is lower case with two digits a byte") { CHECK(FromHex("00ff0a").ToHex() == "00ff0a"); }

TEST_CASE("Hashes of different lengths differ even when their integers agree") {
  const BlockHash one = FromHex("01");
  const BlockHash wide = BlockHash::FromUint64(1);
  CHECK(one.Low64() == wide.Low64());
  CHECK(one != wide);
}

TEST_CASE("Order is by bytes, then by length") {
  CHECK(FromHex("01") < FromHex("02"));
  CHECK(FromHex("0102") < FromHex("02"));
  CHECK(FromHex("01") < FromHex("0100"));
  CHECK_FALSE(FromHex("01") < FromHex("01"));
  CHECK(FromHex("80") > FromHex("7f"));
  CHECK(BlockHash() < FromHex("00"));
}

TEST_CASE("Hashes that differ in one byte are different keys") {
  std::unordered_set<BlockHash> seen;
  Bytes bytes(32, 0);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = 1;
    seen.insert(*BlockHash::FromBytes(bytes));
    bytes[i] = 0;
  }
  CHECK(seen.size() == 32);
  CHECK(seen.contains(FromHex("0000000000000000000000000000000000000000000000000000000000000001")));
  CHECK_FALSE(seen.contains(FromHex("01")));
}

}  // namespace
}  // namespace kvwire
