// SPDX-License-Identifier: Apache-2.0
#include "scheduler/request.h"

#include <utility>

namespace kvwire::scheduler {

namespace {

BlockContent ContentOf(const NewRequest& request) {
  return {request.lora ? request.lora->name : std::string(), request.multimodal, request.cache_salt};
}

}  // namespace

ReportMode ReportModeOf(const ExtraArgs& extra_args) {
  const auto found = extra_args.find("kv_cache_report_mode");
  if (found == extra_args.end()) return ReportMode::kIncremental;
  const auto* text = std::get_if<std::string>(&found->second);
  return text != nullptr && *text == "full" ? ReportMode::kFull : ReportMode::kIncremental;
}

Request::Request(NewRequest request, std::uint32_t block_size, BlockHasher* hasher)
    : id_(request.id),
      num_prompt_tokens_(static_cast<std::uint32_t>(request.prompt.size())),
      max_tokens_(request.max_tokens),
      block_size_(block_size),
      report_mode_(ReportModeOf(request.extra_args)),
      lora_(request.lora),
      content_(ContentOf(request)),
      tokens_(std::move(request.prompt)) {
  HashFullBlocks(hasher);
}

void Request::AppendToken(TokenId token, BlockHasher* hasher) {
  tokens_.push_back(token);
  HashFullBlocks(hasher);
}

void Request::HashFullBlocks(BlockHasher* hasher) {
  if (hasher == nullptr) return;
  const std::size_t full = tokens_.size() / block_size_;
  if (hashes_.size() == full) return;
  hashes_.reserve(full);
  static const ExtraKeys kNoKeys;
  while (hashes_.size() < full) {
    const std::size_t start = hashes_.size() * block_size_;
    if (!content_.empty()) {
      extra_keys_.push_back(
          ExtraKeysOf(content_, static_cast<std::uint32_t>(start), static_cast<std::uint32_t>(start + block_size_)));
    }
    hashes_.push_back(hasher->HashBlock(hashes_.empty() ? BlockHash() : hashes_.back(),
                                        std::span(tokens_).subspan(start, block_size_),
                                        content_.empty() ? kNoKeys : extra_keys_.back()));
  }
}

}  // namespace kvwire::scheduler
