// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "engine/http/tokenizer.h"

namespace kvwire::engine {

// The text of one choice while its tokens come in: what may be sent now, without ever having to take it back. Kept back
// are the bytes of an unfinished character, and the longest end of the text that could begin a stop string.
//
// The pieces together are the text of all tokens, cut before the stop string that is complete first; of those that are
// complete at the same character, the longest. So they depend on the text alone, not on how it came in.
//
// Of a tokenizer that knows no settled tokens every Append decodes the whole sequence, which is quadratic work over a
// reply and one question to a remote tokenizer each. Then up to three replacement characters at the end are kept back,
// for they may be the bytes of an unfinished character; and text that changes later after all stays as it was sent.
//
// Threads: one thread at a time. Ownership: the tokenizer outlives the stream.
// Errors: those of Tokenizer::Decode; no token is lost, the next Append or Finish gives their text.
// Bounds: keeps the whole text.
class TextStream {
 public:
  // `stop`: no empty ones.
  TextStream(const Tokenizer* tokenizer, std::vector<std::string> stop);

  // The text that may be sent now; may be empty. Nothing after a stop string.
  Result<std::string> Append(std::span<const TokenId> tokens);

  // The rest of the text. To be called once, when no more tokens come; after a stop string it is empty.
  Result<std::string> Finish();

  // A stop string was found: the choice ends here with the reason "stop", whatever else is generated.
  bool stopped() const noexcept { return stopped_; }

 private:
  enum class Tail { kKeepBack, kTake };

  // Brings text_ up to date with the tokens.
  Status Decode(Tail tail);
  // Looks for a stop string, then moves sent_.
  std::string Take(Tail tail);
  bool CutAtStop();
  std::size_t PossibleStop() const noexcept;

  const Tokenizer* const tokenizer_;
  const std::vector<std::string> stop_;
  std::vector<TokenId> pending_;  // tokens whose text is not settled
  std::string text_;              // the settled text, then that of the pending tokens
  std::size_t settled_ = 0;       // bytes of text_
  std::size_t sent_ = 0;          // bytes of text_
  bool stopped_ = false;
};

}  // namespace kvwire::engine
