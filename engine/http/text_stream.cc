// SPDX-License-Identifier: Apache-2.0
#include "engine/http/text_stream.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/http/utf8_text.h"

namespace kvwire::engine {

// sent_ <= text_.size() except where the text of pending tokens became shorter; a stop string never begins before
// sent_.

namespace {

// An unfinished character has at most three bytes, so at most as many replacement characters.
constexpr int kMaxUnfinished = 3;

std::string_view WithoutUnfinished(std::string_view text) {
  for (int i = 0; i < kMaxUnfinished && text.ends_with(kReplacementCharacter); ++i) {
    text.remove_suffix(kReplacementCharacter.size());
  }
  return text;
}

}  // namespace

TextStream::TextStream(const Tokenizer* tokenizer, std::vector<std::string> stop)
    : tokenizer_(tokenizer), stop_(std::move(stop)) {}

Result<std::string> TextStream::Append(std::span<const TokenId> tokens) {
  if (stopped_) return std::string();
  pending_.insert(pending_.end(), tokens.begin(), tokens.end());
  const Status decoded = Decode(Tail::kKeepBack);
  if (!decoded) return tl::unexpected<Error>(decoded.error());
  return Take(Tail::kKeepBack);
}

Result<std::string> TextStream::Finish() {
  if (stopped_) return std::string();
  const Status decoded = Decode(Tail::kTake);
  if (!decoded) return tl::unexpected<Error>(decoded.error());
  return Take(Tail::kTake);
}

Status TextStream::Decode(Tail tail) {
  const std::size_t count = tokenizer_->SettledTokens(pending_);
  if (count > 0) {
    const Result<std::string> text = tokenizer_->Decode(std::span(pending_).first(count));
    if (!text) return tl::unexpected<Error>(text.error());
    text_.resize(settled_);
    text_ += *text;
    settled_ = text_.size();
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(count));
  }
  if (pending_.empty()) return {};
  const Result<std::string> text = tokenizer_->Decode(pending_);
  if (!text) return tl::unexpected<Error>(text.error());
  text_.resize(settled_);
  text_ += tail == Tail::kTake ? std::string_view(*text) : WithoutUnfinished(*text);
  return {};
}

std::string TextStream::Take(Tail tail) {
  if (text_.size() <= sent_) return {};
  // Where the sent text changed, what follows may begin inside a character.
  while (sent_ < text_.size() && (static_cast<unsigned char>(text_[sent_]) & 0xc0) == 0x80) ++sent_;
  const bool cut = CutAtStop();
  const std::size_t end = text_.size() - (cut || tail == Tail::kTake ? 0 : PossibleStop());
  std::string piece = text_.substr(sent_, end - sent_);
  sent_ = end;
  return piece;
}

bool TextStream::CutAtStop() {
  std::size_t first_end = std::string::npos;
  std::size_t begin = std::string::npos;
  for (const std::string& stop : stop_) {
    const std::size_t found = text_.find(stop, sent_);
    if (found == std::string::npos) continue;
    const std::size_t end = found + stop.size();
    if (end > first_end || (end == first_end && found > begin)) continue;
    first_end = end;
    begin = found;
  }
  stopped_ = begin != std::string::npos;
  if (stopped_) text_.resize(begin);
  return stopped_;
}

std::size_t TextStream::PossibleStop() const noexcept {
  const std::string_view unsent = std::string_view(text_).substr(sent_);
  std::size_t longest = 0;
  for (const std::string& stop : stop_) {
    for (std::size_t size = std::min(stop.size() - 1, unsent.size()); size > longest; --size) {
      if (unsent.ends_with(std::string_view(stop).substr(0, size))) longest = size;
    }
  }
  return longest;
}

}  // namespace kvwire::engine
