// SPDX-License-Identifier: Apache-2.0
#include "engine/http/chat_prompt.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace kvwire::engine {
namespace {

TEST_CASE("a chat is rendered message by message, so a longer one begins with the shorter") {
  const std::vector<ChatMessage> messages = {{"system", {"Be brief.", {}}}, {"user", {"Hi\nthere", {{3, "x"}}}}};
  const ChatPrompt prompt = RenderChat(messages);
  CHECK(prompt.text == "<|system|>\nBe brief.\n<|user|>\nHi\nthere\n<|assistant|>\n");
  CHECK(prompt.images == std::vector<ImageInText>{{30 + 3, "x"}});
  std::vector<ChatMessage> longer = messages;
  longer.push_back({"assistant", {}});
  CHECK(RenderChat(longer).text.starts_with(prompt.text));
  CHECK(RenderChat(longer).images == prompt.images);
}

TEST_CASE("an image is so many tokens of one id, between the tokens of the texts") {
  const ByteTokenizer tokenizer;
  const EncodedPrompt encoded = EncodePrompt(tokenizer, {"ab", {{0, "x"}, {1, "y"}, {1, "z"}, {2, "x"}}}).value();
  std::vector<TokenId> expected;
  const auto add_image = [&] { expected.insert(expected.end(), kImageTokens, kImageToken); };
  add_image();
  expected.push_back('a');
  add_image();
  add_image();
  expected.push_back('b');
  add_image();
  CHECK(encoded.tokens == expected);
  CHECK(encoded.images == std::vector<MultimodalItem>{{"x", 0, 16}, {"y", 17, 16}, {"z", 33, 16}, {"x", 50, 16}});
  CHECK(EncodePrompt(tokenizer, {}).value().tokens.empty());
}

TEST_CASE("an image without a name is named by the SHA-256 of its address") {
  CHECK(ImageIdentifier("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace kvwire::engine
