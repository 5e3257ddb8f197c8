// SPDX-License-Identifier: Apache-2.0
#include "engine/http/tokenizer.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "engine/http/utf8_text.h"

namespace kvwire::engine {
namespace {

using Tokens = std::vector<TokenId>;

const std::string kFffd(kReplacementCharacter);

TEST_CASE("a byte token is the value of a byte") {
  const ByteTokenizer tokenizer;
  CHECK(tokenizer.name() == "byte");
  CHECK(tokenizer.Encode("a\xc3\xa9").value() == Tokens{0x61, 0xc3, 0xa9});
  CHECK(tokenizer.Encode("").value().empty());
  CHECK(tokenizer.Encode(std::string_view("\0", 1)).value() == Tokens{0});
  CHECK(tokenizer.Decode(Tokens{0x61, 0xc3, 0xa9}).value() == "a\xc3\xa9");
}

TEST_CASE("what is no byte or no text decodes to replacement characters, one each") {
  const ByteTokenizer tokenizer;
  CHECK(tokenizer.Decode(Tokens{256}).value() == kFffd);
  CHECK(tokenizer.Decode(Tokens{0x61, 0x7fffffff, 0x62}).value() == "a" + kFffd + "b");
  CHECK(tokenizer.Decode(Tokens{0xff, 0x62}).value() == kFffd + "b");
  CHECK(tokenizer.Decode(Tokens{0xe2, 0x82}).value() == kFffd + kFffd);
  CHECK(tokenizer.Decode(Tokens{0xc3, 300, 0xa9}).value() == kFffd + kFffd + kFffd);
}

TEST_CASE("all but the bytes of an unfinished character are settled") {
  const ByteTokenizer tokenizer;
  CHECK(tokenizer.SettledTokens(Tokens{}) == 0);
  CHECK(tokenizer.SettledTokens(Tokens{0x61}) == 1);
  CHECK(tokenizer.SettledTokens(Tokens{0xe2}) == 0);
  CHECK(tokenizer.SettledTokens(Tokens{0x61, 0xe2, 0x82}) == 1);
  CHECK(tokenizer.SettledTokens(Tokens{0x61, 0xe2, 0x82, 0xac}) == 4);
  CHECK(tokenizer.SettledTokens(Tokens{0xf0, 0x9f, 0x98}) == 0);
  CHECK(tokenizer.SettledTokens(Tokens{0xf0, 300, 0x98}) == 3);
  CHECK(tokenizer.SettledTokens(Tokens{300, 0xf0, 0x9f}) == 1);
}

TEST_CASE("settled tokens decode alone as they do with what follows") {
  const ByteTokenizer tokenizer;
  const Tokens alphabet = {0x61, 0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xf0, 0x9f, 0xff, 300};
  Tokens tokens(5);
  for (std::size_t code = 0; code < 100'000; ++code) {
    std::size_t rest = code;
    for (TokenId& token : tokens) {
      token = alphabet[rest % alphabet.size()];
      rest /= alphabet.size();
    }
    const std::string whole = tokenizer.Decode(tokens).value();
    const std::span<const TokenId> all(tokens);
    for (std::size_t size = 1; size <= tokens.size(); ++size) {
      const std::size_t settled = tokenizer.SettledTokens(all.first(size));
      REQUIRE(size - settled <= 3);
      REQUIRE(tokenizer.Decode(all.first(settled)).value() + tokenizer.Decode(all.subspan(settled)).value() == whole);
    }
  }
}

}  // namespace
}  // namespace kvwire::engine
