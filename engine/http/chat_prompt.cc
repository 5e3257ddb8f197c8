// SPDX-License-Identifier: Apache-2.0
#include "engine/http/chat_prompt.h"

#include <array>
#include <utility>

#include <fmt/format.h>
#include <openssl/sha.h>

namespace kvwire::engine {

ChatPrompt RenderChat(std::span<const ChatMessage> messages) {
  ChatPrompt prompt;
  for (const ChatMessage& message : messages) {
    prompt.text.append("<|").append(message.role).append("|>\n");
    for (const ImageInText& image : message.content.images) {
      prompt.images.push_back({prompt.text.size() + image.position, image.identifier});
    }
    prompt.text.append(message.content.text).append("\n");
  }
  prompt.text += "<|assistant|>\n";
  return prompt;
}

std::string ImageIdentifier(std::string_view url) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(url.data()), url.size(), digest.data());
  std::string hex;
  for (const unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

Result<EncodedPrompt> EncodePrompt(const Tokenizer& tokenizer, const ChatPrompt& prompt) {
  EncodedPrompt encoded;
  const std::string_view text = prompt.text;
  std::size_t begin = 0;
  const auto append_text = [&](std::size_t end) -> Status {
    if (begin == end) return {};
    Result<std::vector<TokenId>> tokens = tokenizer.Encode(text.substr(begin, end - begin));
    if (!tokens) return tl::unexpected<Error>(std::move(tokens).error());
    begin = end;
    if (encoded.tokens.empty()) {
      encoded.tokens = *std::move(tokens);
    } else {
      encoded.tokens.insert(encoded.tokens.end(), tokens->begin(), tokens->end());
    }
    return {};
  };
  for (const ImageInText& image : prompt.images) {
    if (Status appended = append_text(image.position); !appended) return tl::unexpected<Error>(appended.error());
    encoded.images.push_back({image.identifier, static_cast<std::uint32_t>(encoded.tokens.size()), kImageTokens});
    encoded.tokens.insert(encoded.tokens.end(), kImageTokens, kImageToken);
  }
  if (Status appended = append_text(text.size()); !appended) return tl::unexpected<Error>(appended.error());
  return encoded;
}

}  // namespace kvwire::engine
