// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/simulated_workers.h"
#include "kv_events/error.h"
#include "kv_events/events.h"
#include "kv_events/log.h"
#include "scheduler/kv_cache_group.h"
#include "scheduler/model_runner.h"

namespace kvwire::scheduler {
struct SchedulerConfig;
}  // namespace kvwire::scheduler

namespace kvwire::engine {

// How long the model would take for a step; zeros: as fast as it goes.
struct TimeModel {
  std::chrono::nanoseconds prefill_overhead{0};    // once per step that computes prompt tokens
  std::chrono::nanoseconds prefill_per_token{0};   // per computed (uncached) prompt token
  std::chrono::nanoseconds decode_per_request{0};  // per request that computes only its newest token

  // What is too long for the type becomes the longest time.
  std::chrono::nanoseconds Duration(const scheduler::SchedulerOutput& step) const noexcept;
  bool is_zero() const noexcept { return *this == TimeModel{}; }

  friend bool operator==(const TimeModel&, const TimeModel&) = default;
};

// A model without weights but with memory. Each physical token slot holds one 64-bit word. In every KV-cache group,
// position p reads the word of p - 1 through the group's block table and writes ChainWord(that, token) into its own
// slot, so a word stands for every token before it. A drawn token derives only from words read back through the block
// tables after the whole step was written: of each group that of the last position, and that of one earlier position
// which the first one chooses among those that the group still needs. So a block that was stolen, is stale, was given
// back too early or is not computed yet changes what the model says.
//
// With host or disk blocks, SimulatedWorkers copy words between them and the device's.
//
// Drawn tokens lie in [first_output_token, first_output_token + num_output_tokens).
// Threads: one thread at a time.
// Bounds: num_blocks * (largest block size) words, committed by the operating system as they are first written.
class SimulatedRunner final : public scheduler::ModelRunner {
 public:
  struct Options {
    std::uint32_t num_blocks = 0;  // as the scheduler counts them, null block included; at least 2
    std::uint32_t block_size = 16;
    std::vector<scheduler::KVCacheGroup> groups;  // empty: one of full attention, with block_size
    // Draft tokens it proposes for each request that samples, and how many of a hundred are what it will draw.
    std::uint32_t num_speculative_tokens = 0;
    std::uint32_t draft_accuracy_percent = 70;
    // The lower tiers: their blocks, the disk's directory, which no other engine may use; the workers that share the
    // copying, and how many of a hundred of these copies fail.
    std::uint32_t host_blocks = 0;
    std::uint32_t disk_blocks = 0;
    std::string disk_dir;
    std::uint32_t num_workers = 1;
    std::uint32_t failed_store_percent = 0;  // of a worker's parts
    std::uint32_t failed_load_percent = 0;   // of blocks
    std::uint32_t max_store_delay = 3;       // steps that a worker is late with a store, at most
    std::uint64_t copy_seed = 1;             // of delays and failures
    TokenId first_output_token = 131072;
    std::uint32_t num_output_tokens = 20864;
    LogSink log;

    // Takes over what must be as the scheduler has it: blocks, groups, drafts, the lower tiers and their workers.
    void Fit(const scheduler::SchedulerConfig& config);
  };

  // What position 0 of a group reads in place of a predecessor; that of group 0 is kRootWord.
  static constexpr std::uint64_t kRootWord = 0x6b767769726500ffu;
  static constexpr std::uint64_t RootWordOf(std::size_t group) noexcept {
    return kRootWord ^ (group * 0x9e3779b97f4a7c15u);
  }

  // Errors: kInvalidArgument names the option; kUnavailable when the address space for the words is refused; as
  // DiskBlocks::Open.
  static Result<std::unique_ptr<SimulatedRunner>> Create(Options options);
  ~SimulatedRunner() override;
  SimulatedRunner(const SimulatedRunner&) = delete;
  SimulatedRunner& operator=(const SimulatedRunner&) = delete;

  // REQUIRES: block tables name blocks below num_blocks.
  scheduler::RunnerOutput Run(const scheduler::SchedulerOutput& step) override;

  // Removes the disk's files.
  void Close() override;

  // The word of a physical slot; 0 if it was never written. REQUIRES: block < num_blocks, offset is below the
  // largest block size.
  std::uint64_t WordAt(scheduler::BlockId block, std::uint32_t offset) const noexcept {
    return words_[static_cast<std::size_t>(block) * words_per_block_ + offset];
  }

  // Writes the first words of a block, as if they had been computed. REQUIRES: block < num_blocks, no more words than
  // the largest block size; no step runs.
  void WriteBlock(scheduler::BlockId block, std::span<const std::uint64_t> words) noexcept {
    std::copy(words.begin(), words.end(), words_ + static_cast<std::size_t>(block) * words_per_block_);
  }

  // The first words of a lower tier's block; nothing if they cannot be read. REQUIRES: there is such a block.
  std::optional<std::vector<std::uint64_t>> LowerWords(scheduler::HostBlockId block, std::uint32_t num_tokens) const {
    return workers_->WordsOf(block, num_tokens);
  }

  // The word of a position from the word before it and its token.
  static std::uint64_t ChainWord(std::uint64_t previous, TokenId token) noexcept {
    std::uint64_t x = (previous ^ token) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 29);
  }

 private:
  SimulatedRunner(Options options, std::size_t words_per_block, std::uint64_t* words, std::size_t bytes)
      : options_(std::move(options)), words_per_block_(words_per_block), words_(words), bytes_(bytes) {}

  std::uint64_t WordOf(const scheduler::ScheduledRequest& request, std::size_t group,
                       std::size_t position) const noexcept;
  void Compute(const scheduler::ScheduledRequest& request, std::size_t group) noexcept;
  // Words of positions behind the computed ones, by group.
  using Imagined = std::vector<std::vector<std::uint64_t>>;

  // What the model says after position `last`. `imagined` holds the words from position `end` on.
  TokenId Draw(const scheduler::ScheduledRequest& request, std::uint32_t last, const Imagined& imagined,
               std::uint32_t end) const;
  void Sample(const scheduler::ScheduledRequest& request, scheduler::RunnerOutput* output) const;
  std::vector<TokenId> Guess(const scheduler::ScheduledRequest& request, std::uint32_t end, TokenId next) const;

  const Options options_;  // its groups are not empty
  const std::size_t words_per_block_;
  std::uint64_t* const words_;
  const std::size_t bytes_;
  std::unique_ptr<SimulatedWorkers> workers_;  // with lower tiers only
};

}  // namespace kvwire::engine
