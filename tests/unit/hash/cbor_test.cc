// SPDX-License-Identifier: Apache-2.0
#include "kv_events/hash/cbor.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/block_hash.h"

namespace kvwire {
namespace {

std::string Hex(const CborWriter& cbor) {
  std::string hex;
  for (std::size_t at = 0; at < cbor.bytes().size(); at += BlockHash::kMaxSize) {
    hex += BlockHash::FromBytes(
               cbor.bytes().subspan(at).first(std::min<std::size_t>(BlockHash::kMaxSize, cbor.bytes().size() - at)))
               ->ToHex();
  }
  return hex;
}

std::string HexOfInteger(std::int64_t value) {
  CborWriter cbor;
  cbor.Integer(value);
  return Hex(cbor);
}

TEST_CASE("integers take their shortest form") {
  CHECK(HexOfInteger(0) == "00");
  CHECK(HexOfInteger(23) == "17");
  CHECK(HexOfInteger(24) == "1818");
  CHECK(HexOfInteger(255) == "18ff");
  CHECK(HexOfInteger(256) == "190100");
  CHECK(HexOfInteger(65535) == "19ffff");
  CHECK(HexOfInteger(65536) == "1a00010000");
  CHECK(HexOfInteger(0xffffffff) == "1affffffff");
  CHECK(HexOfInteger(0x100000000) == "1b0000000100000000");
  CHECK(HexOfInteger(-1) == "20");
  CHECK(HexOfInteger(-24) == "37");
  CHECK(HexOfInteger(-25) == "3818");
  CHECK(HexOfInteger(std::numeric_limits<std::int64_t>::min()) == "3b7fffffffffffffff");
}

TEST_CASE("a token array is written as its integers one by one") {
  std::vector<TokenId> tokens;
  for (const std::uint32_t edge : {0u, 23u, 24u, 255u, 256u, 65535u, 65536u, 151936u, 0x7fffffffu}) {
    tokens.push_back(edge);
  }
  while (tokens.size() < 300) tokens.push_back(static_cast<TokenId>(tokens.size() * 7919 % 151936));
  CborWriter together;
  together.Tokens(tokens);
  CborWriter one_by_one;
  one_by_one.Array(tokens.size());
  for (const TokenId token : tokens) one_by_one.Integer(token);
  CHECK(Hex(together) == Hex(one_by_one));
  CHECK(Hex(together).substr(0, 6) == "99012c");
}

TEST_CASE("texts, bytes, arrays and null") {
  CborWriter cbor;
  cbor.Array(5);
  cbor.Text("");
  cbor.Text("abc");
  cbor.Bytes({});
  const std::vector<std::uint8_t> bytes(24, 0xab);
  cbor.Bytes(bytes);
  cbor.Null();
  CHECK(Hex(cbor) ==
        "8560636162634058" + std::string("18") + "abababababababababababababababababababababababab" + "f6");
  cbor.Clear();
  CHECK(cbor.bytes().empty());
}

}  // namespace
}  // namespace kvwire
