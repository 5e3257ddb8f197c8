// SPDX-License-Identifier: Apache-2.0
#include "engine/http/text_stream.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "engine/http/utf8_text.h"

namespace kvwire::engine {
namespace {

using Pieces = std::vector<std::string>;

// Byte tokens of which nothing is known to be settled, as of a remote tokenizer.
class UnsettledTokenizer final : public Tokenizer {
 public:
  Result<std::vector<TokenId>> Encode(std::string_view text) const override { return bytes_.Encode(text); }
  Result<std::string> Decode(std::span<const TokenId> tokens) const override {
    if (fails) return MakeError(ErrorCode::kUnavailable, "nobody there");
    return bytes_.Decode(tokens);
  }
  std::size_t SettledTokens(std::span<const TokenId>) const noexcept override { return 0; }
  std::string_view name() const noexcept override { return "unsettled"; }

  bool fails = false;

 private:
  const ByteTokenizer bytes_;
};

// What is sent when the tokens come one by one, and at the end.
Pieces OneByOne(const Tokenizer& tokenizer, const std::vector<std::string>& stop, std::string_view text) {
  TextStream stream(&tokenizer, stop);
  Pieces pieces;
  const std::vector<TokenId> tokens = tokenizer.Encode(text).value();
  for (const TokenId token : tokens) {
    pieces.push_back(stream.Append(std::span(&token, 1)).value());
  }
  pieces.push_back(stream.Finish().value());
  return pieces;
}

Pieces OneByOne(const std::vector<std::string>& stop, std::string_view text) {
  const Pieces pieces = OneByOne(ByteTokenizer(), stop, text);
  CHECK(OneByOne(UnsettledTokenizer(), stop, text) == pieces);
  return pieces;
}

TEST_CASE("text leaves with its tokens") { CHECK(OneByOne({}, "abc") == Pieces{"a", "b", "c", ""}); }

TEST_CASE("a character leaves when its last byte is there") {
  CHECK(OneByOne({}, "\xc3\xa9") == Pieces{"", "\xc3\xa9", ""});
  CHECK(OneByOne({}, "x\xf0\x9f\x98\x80y") == Pieces{"x", "", "", "", "\xf0\x9f\x98\x80", "y", ""});
}

TEST_CASE("an unfinished character leaves at the end as replacement characters") {
  const std::string fffd(kReplacementCharacter);
  CHECK(OneByOne({}, "a\xe2\x82") == Pieces{"a", "", "", fffd + fffd});
}

TEST_CASE("tokens that are no bytes leave at once") {
  const ByteTokenizer tokenizer;
  TextStream stream(&tokenizer, {});
  CHECK(stream.Append(std::vector<TokenId>{1000}).value() == kReplacementCharacter);
  CHECK(stream.Append(std::vector<TokenId>{0x41, 1000}).value() == "A" + std::string(kReplacementCharacter));
}

TEST_CASE("of replacement characters that may change at most three are kept back") {
  const UnsettledTokenizer tokenizer;
  TextStream stream(&tokenizer, {});
  CHECK(stream.Append(std::vector<TokenId>(5, 1000)).value() ==
        std::string(kReplacementCharacter) + std::string(kReplacementCharacter));
  CHECK(stream.Finish().value().size() == 3 * kReplacementCharacter.size());
}

TEST_CASE("what could begin a stop string is kept back until it cannot") {
  CHECK(OneByOne({"END"}, "aENb") == Pieces{"a", "", "", "ENb", ""});
  CHECK(OneByOne({"END"}, "aEENb") == Pieces{"a", "", "E", "", "ENb", ""});
  CHECK(OneByOne({"END"}, "aEN") == Pieces{"a", "", "", "EN"});
  CHECK(OneByOne({"\n\n"}, "a\nb") == Pieces{"a", "", "\nb", ""});
}

TEST_CASE("the text ends before a stop string; nothing comes after it") {
  CHECK(OneByOne({"END"}, "aENDb") == Pieces{"a", "", "", "", "", ""});
  CHECK(OneByOne({"a"}, "a") == Pieces{"", ""});
  CHECK(OneByOne({"\xe2\x82\xac"}, "x\xe2\x82\xac!") == Pieces{"x", "", "", "", "", ""});
  const ByteTokenizer tokenizer;
  TextStream stream(&tokenizer, {"lo w"});
  CHECK(stream.Append(tokenizer.Encode("hel").value()).value() == "he");
  CHECK_FALSE(stream.stopped());
  CHECK(stream.Append(tokenizer.Encode("lo world").value()).value() == "l");
  CHECK(stream.stopped());
  CHECK(stream.Append(tokenizer.Encode("more").value()).value() == "");
  CHECK(stream.Finish().value() == "");
}

TEST_CASE("the stop string that is complete first counts; of two at once the longer") {
  const ByteTokenizer tokenizer;
  const auto at_once = [&](std::vector<std::string> stop, std::string_view text) {
    TextStream stream(&tokenizer, std::move(stop));
    return stream.Append(tokenizer.Encode(text).value()).value();
  };
  CHECK(at_once({"abcd", "b"}, "xabcd") == "xa");
  CHECK(at_once({"bc", "abc"}, "xabcd") == "x");
  CHECK(at_once({"d", "x"}, "abxcd") == "ab");
}

TEST_CASE("a failed decoding loses nothing") {
  UnsettledTokenizer tokenizer;
  TextStream stream(&tokenizer, {});
  tokenizer.fails = true;
  CHECK(stream.Append(std::vector<TokenId>{0x61}).error().message == "nobody there");
  tokenizer.fails = false;
  CHECK(stream.Append(std::vector<TokenId>{0x62}).value() == "ab");
  tokenizer.fails = true;
  CHECK(stream.Append(std::vector<TokenId>{0x63}).error().code == ErrorCode::kUnavailable);
  CHECK_FALSE(stream.Finish().has_value());
  tokenizer.fails = false;
  CHECK(stream.Finish().value() == "c");
}

// A tokenizer whose text is given, whatever the tokens.
class ScriptedTokenizer final : public Tokenizer {
 public:
  Result<std::vector<TokenId>> Encode(std::string_view) const override { return std::vector<TokenId>(); }
  Result<std::string> Decode(std::span<const TokenId> tokens) const override { return texts.at(tokens.size() - 1); }
  std::size_t SettledTokens(std::span<const TokenId>) const noexcept override { return 0; }
  std::string_view name() const noexcept override { return "scripted"; }

  std::vector<std::string> texts;
};

TEST_CASE("text that changes after it was sent stays as it was sent") {
  ScriptedTokenizer tokenizer;
  tokenizer.texts = {"a ,", "a,", "ab\xc3\xa9\xe2\x82\xac", "ab\xc3\xa9\xe2\x82\xac!"};
  TextStream stream(&tokenizer, {});
  const TokenId token = 1;
  CHECK(stream.Append(std::span(&token, 1)).value() == "a ,");
  CHECK(stream.Append(std::span(&token, 1)).value() == "");
  CHECK(stream.Append(std::span(&token, 1)).value() == "\xe2\x82\xac");
  CHECK(stream.Append(std::span(&token, 1)).value() == "!");
}

TEST_CASE("the pieces together depend on the text alone, not on how it came in") {
  const ByteTokenizer bytes;
  const UnsettledTokenizer unsettled;
  const std::vector<TokenId> alphabet = {'a', 'b', 'a', 'b', 0xc3, 0xa9, 0xe2, 0x82, 0xac, 1000};
  const std::vector<std::vector<std::string>> stops = {{},
                                                       {"aab"},
                                                       {"ab", "babb"},
                                                       {"abab", "bb", "aaa"},
                                                       {"\xc3\xa9"
                                                        "a"},
                                                       {"b\xe2\x82\xac", "aba", "ba", "bbab"}};
  std::mt19937 random(7);
  const auto below = [&random](std::size_t limit) { return random() % limit; };
  std::size_t stopped = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<TokenId> tokens(below(12));
    for (TokenId& token : tokens) token = alphabet[below(alphabet.size())];
    const std::vector<std::string>& stop = stops[below(stops.size())];

    // The first end of a stop string, and the longest that ends there.
    std::string expected = bytes.Decode(tokens).value();
    bool cut = false;
    for (std::size_t end = 1; end <= expected.size() && !cut; ++end) {
      std::size_t longest = 0;
      for (const std::string& text : stop) {
        if (std::string_view(expected).substr(0, end).ends_with(text)) longest = std::max(longest, text.size());
      }
      cut = longest > 0;
      if (cut) expected.resize(end - longest);
    }
    stopped += cut ? 1 : 0;

    for (const Tokenizer* tokenizer :
         {static_cast<const Tokenizer*>(&bytes), static_cast<const Tokenizer*>(&unsettled)}) {
      TextStream stream(tokenizer, stop);
      std::string text;
      for (std::span<const TokenId> rest = tokens; !rest.empty();) {
        const std::size_t count = 1 + below(rest.size());
        const std::string piece = stream.Append(rest.first(count)).value();
        REQUIRE(WellFormedUtf8(piece) == piece.size());
        text += piece;
        rest = rest.subspan(count);
      }
      text += stream.Finish().value();
      REQUIRE(text == expected);
      REQUIRE(stream.stopped() == cut);
    }
  }
  CHECK(stopped > 1000);
}

}  // namespace
}  // namespace kvwire::engine
