// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kv_events/block_hash.h"
#include "kv_events/events.h"
#include "kv_events/hash/block_hasher.h"
#include "kv_events/hash/extra_keys.h"
#include "scheduler/block_context.h"
#include "scheduler/scheduler_output.h"

namespace kvwire::scheduler {

// Engine-specific arguments of a request, as its sender gave them. monostate is an explicit null.
using ExtraArg = std::variant<std::monostate, bool, std::int64_t, double, std::string>;
using ExtraArgs = std::map<std::string, ExtraArg>;

// What a prefix hit announces: nothing, or the reused prefix again.
enum class ReportMode : std::uint8_t { kIncremental, kFull };

// kFull only for the text "full" under "kv_cache_report_mode"; everything else is accepted and incremental.
// Source: docs/protocol.md, "Report mode".
ReportMode ReportModeOf(const ExtraArgs& extra_args);

// The identities of a prompt's full blocks.
struct PromptIdentity {
  std::vector<BlockHash> hashes;
  std::vector<ExtraKeys> extra_keys;  // one entry per hash, or empty when no block has extra keys
};

// A request as its sender describes it.
struct NewRequest {
  RequestId id = 0;
  std::vector<TokenId> prompt;   // at least one token, each at most kMaxTokenId
  std::uint32_t max_tokens = 1;  // output tokens, at least one
  std::optional<LoraAdapter> lora;
  std::string cache_salt;
  std::vector<MultimodalItem> multimodal;  // by offset
  ExtraArgs extra_args;
  // From IdentifyPrompt, to keep this work off the step thread; unset: computed when the request is added.
  std::optional<PromptIdentity> identity;
  // When it has finished, its prompt's blocks stay held until Scheduler::ReleaseKept.
  bool keep_blocks = false;
  // Leading tokens of the prompt whose blocks another engine has: what is not cached here is received, not computed.
  std::uint32_t num_receivable_tokens = 0;
};

// With the scheduler's block size and a copy of its hasher. Any thread.
PromptIdentity IdentifyPrompt(const NewRequest& request, std::uint32_t block_size, BlockHasher* hasher);

// An unfinished request: its tokens, the identities of its full blocks, and the physical blocks it holds.
//
// Threads: the step thread. Ownership: the scheduler.
class Request {
 public:
  // `hasher` null: block identities are not computed (prefix caching is off).
  Request(NewRequest request, std::uint32_t block_size, BlockHasher* hasher);

  RequestId id() const noexcept { return id_; }
  std::span<const TokenId> token_ids() const noexcept { return tokens_; }
  std::uint32_t num_tokens() const noexcept { return static_cast<std::uint32_t>(tokens_.size()); }
  std::uint32_t num_prompt_tokens() const noexcept { return num_prompt_tokens_; }
  std::uint32_t num_output_tokens() const noexcept { return num_tokens() - num_prompt_tokens_; }
  std::uint32_t max_tokens() const noexcept { return max_tokens_; }
  const std::optional<LoraAdapter>& lora() const noexcept { return lora_; }
  ReportMode report_mode() const noexcept { return report_mode_; }
  bool keeps_blocks() const noexcept { return keeps_blocks_; }

  // One hash per full hash block of token_ids().
  std::span<const BlockHash> block_hashes() const noexcept { return identity_.hashes; }
  // One entry per hash, or empty when no block has extra keys.
  std::span<const ExtraKeys> extra_keys() const noexcept { return identity_.extra_keys; }

  // Appends an output token; hashes the block that it completes, if it does.
  void AppendToken(TokenId token, BlockHasher* hasher);

  // What the extra keys come from.
  const BlockContent& content() const noexcept { return content_; }

  // State of the scheduler and the KV cache manager.
  std::vector<std::vector<BlockId>> block_tables;    // by group: physical block of each logical block
  std::vector<std::uint32_t> num_registered_blocks;  // by group: leading blocks that were offered to the prefix cache
  std::uint32_t num_registered_tokens = 0;           // the same in tokens, those of a partial block included
  std::uint32_t num_computed_tokens = 0;             // their KV is written
  std::vector<TokenId> draft_tokens;                 // to be verified in the next step
  std::uint32_t num_cached_tokens = 0;               // computed when it was first admitted: found, or received
  std::uint32_t num_preemptions = 0;
  bool admitted = false;                    // was running at least once
  std::uint32_t num_receivable_tokens = 0;  // until its reception begins, which happens once
  std::uint32_t num_receiving_tokens = 0;   // at the end of its reception: how many are computed
  std::uint32_t num_received_tokens = 0;    // that came from elsewhere; it holds their blocks

 private:
  const RequestId id_;
  const std::uint32_t num_prompt_tokens_;
  const std::uint32_t max_tokens_;
  const std::uint32_t block_size_;
  const ReportMode report_mode_;
  const bool keeps_blocks_;
  const std::optional<LoraAdapter> lora_;
  const BlockContent content_;
  std::vector<TokenId> tokens_;
  PromptIdentity identity_;  // of all tokens
};

}  // namespace kvwire::scheduler
