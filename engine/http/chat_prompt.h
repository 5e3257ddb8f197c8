// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/http/tokenizer.h"
#include "kv_events/error.h"
#include "kv_events/events.h"
#include "kv_events/hash/extra_keys.h"

namespace kvwire::engine {

// An image stands in a prompt as so many tokens of this id, which is no byte. What it shows is in the identifier only.
inline constexpr std::uint32_t kImageTokens = 16;
inline constexpr TokenId kImageToken = 256;

// An image in a text: its tokens come before the byte at `position`.
struct ImageInText {
  std::size_t position = 0;
  std::string identifier;

  friend bool operator==(const ImageInText&, const ImageInText&) = default;
};

// A text with images, in the order of their positions. A value.
struct ChatPrompt {
  std::string text;
  std::vector<ImageInText> images;

  friend bool operator==(const ChatPrompt&, const ChatPrompt&) = default;
};

// A turn of a conversation. Calls of tools are part of the content.
struct ChatMessage {
  std::string role;
  ChatPrompt content;

  friend bool operator==(const ChatMessage&, const ChatMessage&) = default;
};

// The prompt of a conversation: "<|role|>\ncontent\n" for each message, then "<|assistant|>\n". A conversation that
// goes on has the same beginning. Contents are taken as they are, marks of the template included.
ChatPrompt RenderChat(std::span<const ChatMessage> messages);

// The identifier of an image that was not given one: the SHA-256 of its address, in hexadecimal. Nothing is fetched.
std::string ImageIdentifier(std::string_view url);

// The tokens of a prompt, and where its images are among them.
struct EncodedPrompt {
  std::vector<TokenId> tokens;
  std::vector<MultimodalItem> images;
};

// The text before, between and behind images is tokenized piece by piece. Errors: as Tokenizer::Encode.
Result<EncodedPrompt> EncodePrompt(const Tokenizer& tokenizer, const ChatPrompt& prompt);

}  // namespace kvwire::engine
