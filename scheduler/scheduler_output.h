// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv_events/events.h"

namespace kvwire::scheduler {

// A physical KV-cache block; block 0 is the null block.
using BlockId = std::uint32_t;

// A block of a lower tier: the host's are numbered from 1, the disk's behind them; 0 is none.
using HostBlockId = std::uint32_t;
inline constexpr HostBlockId kNoHostBlock = 0;

// A copy of one block to a lower tier; unique within a scheduler, over all tiers.
using StoreJobId = std::uint64_t;

// A request within one scheduler; chosen by the caller, unique among unfinished requests.
using RequestId = std::uint64_t;

// One request's part of a step: compute positions [num_computed_tokens, num_computed_tokens + num_scheduled_tokens).
// Ownership: spans point into the scheduler's request and block table; valid until UpdateFromOutput.
struct ScheduledRequest {
  RequestId id = 0;
  // By group: the physical block of each logical block, enough for the step's positions; null where the group does not
  // need what was there.
  std::span<const std::vector<BlockId>> block_tables;
  std::span<const TokenId> token_ids;        // every token known so far: prompt, then outputs
  std::span<const TokenId> draft_token_ids;  // guesses at what follows; their positions are computed as well
  std::uint32_t num_computed_tokens = 0;
  std::uint32_t num_scheduled_tokens = 0;
  // The step computes the last known token, so the runner draws the next one, and goes on as long as a draft is what it
  // drew. False for all but the last chunk of a chunked prefill.
  bool samples = false;
};

// Each worker copies its part of a device block to a lower tier, in the order of the step, in this step or a later one,
// and reports each job once. The device block does not change until every worker has reported.
struct StoreBlock {
  StoreJobId job = 0;
  BlockId device_block = 0;
  HostBlockId host_block = kNoHostBlock;
  std::uint32_t group = 0;
  std::uint32_t num_tokens = 0;
};

// Every worker copies its part of a lower tier's block to the device, before anything of the step is computed.
struct LoadBlock {
  RequestId request = 0;  // the one it is loaded for
  HostBlockId host_block = kNoHostBlock;
  BlockId device_block = 0;
  std::uint32_t group = 0;
  std::uint32_t num_tokens = 0;
};

// Every worker copies the first tokens of a device block to another, before anything of the step is computed: a request
// continues from a block that is not full, and the source may get other tokens behind these. As long as a block is
// registered with these tokens only, it keeps what was computed of them: of a group of states the one behind the last.
struct CopyBlock {
  BlockId source = 0;
  BlockId destination = 0;
  std::uint32_t group = 0;
  std::uint32_t num_tokens = 0;
};

// Of a request's prompt, blocks that another engine computed and whose contents are to be written here. Until
// Scheduler::OnReceived the blocks are the request's own and nobody else finds them.
struct Reception {
  // Of a group: consecutive blocks, the first of which is number `first` of the request.
  struct Part {
    std::uint32_t first = 0;
    std::vector<BlockId> blocks;
  };

  RequestId request = 0;
  std::uint32_t num_tokens = 0;  // of the prompt, that are here when the reception ends
  std::vector<Part> parts;       // by group; none: everything was here already, and OnReceived is not called
};

// Blocks of a finished request that stay held. By group: the block of each position, null where the group does not need
// it to continue behind num_tokens.
struct KeptBlocks {
  std::uint32_t num_tokens = 0;  // leading tokens of the prompt; 0: nothing is kept
  std::vector<std::vector<BlockId>> block_tables;

  friend bool operator==(const KeptBlocks&, const KeptBlocks&) = default;
};

struct SchedulerOutput {
  std::vector<ScheduledRequest> requests;  // in scheduling order
  std::uint64_t num_scheduled_tokens = 0;  // over all requests
  std::vector<LoadBlock> loads = {};
  std::vector<StoreBlock> stores = {};
  std::vector<CopyBlock> copies = {};
  std::vector<Reception> receptions = {};  // that began; also when there is nothing to compute
  bool finish_stores = false;              // nothing else is to be done: every store is executed in this step

  bool empty() const noexcept { return requests.empty(); }
};

struct SampledToken {
  RequestId id = 0;
  TokenId token = 0;
};

// Guesses at a request's next tokens, to be verified in its next step.
struct DraftTokens {
  RequestId id = 0;
  std::vector<TokenId> tokens;
};

// A worker has executed its part of a store, or failed to.
struct StoreResult {
  std::uint32_t worker = 0;
  StoreJobId job = 0;
  bool ok = false;
};

// What the model runner returns, in the order of the step: for every request with `samples` one token, and one more for
// each draft token that was right, up to the first that was not.
struct RunnerOutput {
  std::vector<SampledToken> sampled;
  std::vector<DraftTokens> drafts = {};  // of some of these requests
  std::vector<StoreResult> stores = {};
  std::vector<RequestId> failed_loads = {};  // requests of which a worker could not load a block
};

}  // namespace kvwire::scheduler
