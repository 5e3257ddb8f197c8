// SPDX-License-Identifier: Apache-2.0
#include "scheduler/request.h"

#include <algorithm>
#include <utility>

namespace kvwire::scheduler {

namespace {

BlockContent ContentOf(const NewRequest& request) {
  return {request.lora ? request.lora->name : std::string(), request.multimodal, request.cache_salt};
}

// Continues where the identity ends, up to the last full block.
void HashFullBlocks(const BlockContent& content, std::span<const TokenId> tokens, std::uint32_t block_size,
                    BlockHasher* hasher, PromptIdentity* identity) {
  const std::size_t full = tokens.size() / block_size;
  std::vector<BlockHash>& hashes = identity->hashes;
  if (hashes.size() >= full) return;
  static const ExtraKeys kNoKeys;
  hashes.reserve(full);
  while (hashes.size() < full) {
    const std::size_t start = hashes.size() * block_size;
    if (!content.empty()) {
      identity->extra_keys.push_back(
          ExtraKeysOf(content, static_cast<std::uint32_t>(start), static_cast<std::uint32_t>(start + block_size)));
    }
    hashes.push_back(hasher->HashBlock(hashes.empty() ? BlockHash() : hashes.back(), tokens.subspan(start, block_size),
                                       content.empty() ? kNoKeys : identity->extra_keys.back()));
  }
}

}  // namespace

ReportMode ReportModeOf(const ExtraArgs& extra_args) {
  const auto found = extra_args.find("kv_cache_report_mode");
  if (found == extra_args.end()) return ReportMode::kIncremental;
  const auto* text = std::get_if<std::string>(&found->second);
  return text != nullptr && *text == "full" ? ReportMode::kFull : ReportMode::kIncremental;
}

PromptIdentity IdentifyPrompt(const NewRequest& request, std::uint32_t block_size, BlockHasher* hasher) {
  PromptIdentity identity;
  HashFullBlocks(ContentOf(request), request.prompt, block_size, hasher, &identity);
  return identity;
}

Request::Request(NewRequest request, std::uint32_t block_size, BlockHasher* hasher)
    : id_(request.id),
      num_prompt_tokens_(static_cast<std::uint32_t>(request.prompt.size())),
      max_tokens_(request.max_tokens),
      block_size_(block_size),
      report_mode_(ReportModeOf(request.extra_args)),
      keeps_blocks_(request.keep_blocks),
      lora_(request.lora),
      content_(ContentOf(request)),
      tokens_(std::move(request.prompt)) {
  num_receivable_tokens = std::min(request.num_receivable_tokens, num_prompt_tokens_);
  if (hasher == nullptr) return;
  if (request.identity) identity_ = *std::move(request.identity);
  HashFullBlocks(content_, tokens_, block_size_, hasher, &identity_);
}

void Request::AppendToken(TokenId token, BlockHasher* hasher) {
  tokens_.push_back(token);
  if (hasher != nullptr) HashFullBlocks(content_, tokens_, block_size_, hasher, &identity_);
}

}  // namespace kvwire::scheduler
