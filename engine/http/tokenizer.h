// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv_events/error.h"
#include "kv_events/events.h"

namespace kvwire::engine {

// Text to tokens and back.
//
// Threads: any; every function may be called at the same time as every other.
// Errors: kInvalidArgument for text or tokens that it has no answer to; kUnavailable when it depends on somebody who
// does not answer.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The tokens of `text`, with those that the model puts around a prompt. `text` is UTF-8.
  virtual Result<std::vector<TokenId>> Encode(std::string_view text) const = 0;

  // The text of the tokens, in well-formed UTF-8. A character that the last tokens only begin is U+FFFD, once for each
  // of its bytes or once for all.
  virtual Result<std::string> Decode(std::span<const TokenId> tokens) const = 0;

  // How many of the first tokens have a text of their own, whatever follows: Decode of all is Decode of these and then
  // of the rest. 0 when that is not known.
  virtual std::size_t SettledTokens(std::span<const TokenId> tokens) const noexcept = 0;

  // For messages: "byte", or the address of who tokenizes.
  virtual std::string_view name() const noexcept = 0;

 protected:
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = default;
  Tokenizer& operator=(const Tokenizer&) = default;
};

// One token per byte: its id is the value of the byte, 0 to 255, so that a prompt of N bytes has N tokens and equal
// beginnings of text are equal beginnings of tokens. Needs no model. Of no byte: ids above 255; they decode to U+FFFD,
// as do bytes that belong to no well-formed character.
class ByteTokenizer final : public Tokenizer {
 public:
  Result<std::vector<TokenId>> Encode(std::string_view text) const override;
  Result<std::string> Decode(std::span<const TokenId> tokens) const override;
  std::size_t SettledTokens(std::span<const TokenId> tokens) const noexcept override;
  std::string_view name() const noexcept override { return "byte"; }
};

}  // namespace kvwire::engine
