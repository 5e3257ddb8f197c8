// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kv_events/clock.h"
#include "kv_events/event_publisher.h"
#include "kv_events/hash/block_hasher.h"
#include "scheduler/scheduler.h"

namespace kvwire::test {

// A scheduler under requests at random that share prefixes, with a model that always says the same: blocks are found,
// stored and, once the pool is full, evicted.
// Threads: one at a time.
class EngineTraffic {
 public:
  struct Options {
    std::uint32_t num_blocks = 400;
    std::uint32_t block_size = 4;
    std::uint32_t max_prompt_blocks = 12;  // of a request, at least one
    std::uint32_t families = 40;           // of prompts; those of a family have the same beginning
    std::uint32_t max_running = 4;
    std::vector<scheduler::KVCacheGroup> groups;
    std::uint64_t seed = 1;
    const Clock* clock = &SystemClock::Get();
  };

  // `publisher` null: events are off.
  EngineTraffic(const Options& options, EventPublisher* publisher) : options_(options), random_(options.seed) {
    scheduler::SchedulerConfig config;
    config.num_blocks = options.num_blocks;
    config.block_size = options.block_size;
    config.groups = options.groups;
    config.max_num_seqs = options.max_running;
    config.enable_kv_cache_events = publisher != nullptr;
    auto made = scheduler::Scheduler::Create(std::move(config), *BlockHasher::Create(HashAlgorithm::kXxhashCbor, "0"),
                                             publisher, options.clock);
    if (!made) throw std::runtime_error(made.error().message);
    scheduler_ = *std::move(made);
  }

  // As many requests as may run.
  void AddRequests() {
    while (unfinished_ < options_.max_running) {
      scheduler::NewRequest request;
      request.id = ++last_id_;
      request.prompt = Prompt();
      request.max_tokens = 1 + Below(2 * options_.block_size);
      if (!scheduler_->AddRequest(std::move(request))) throw std::runtime_error("a request was refused");
      ++unfinished_;
    }
  }

  // A whole step of what was added.
  void Step() {
    const scheduler::SchedulerOutput step = scheduler_->Schedule();
    output_.sampled.clear();
    for (const scheduler::ScheduledRequest& request : step.requests) {
      if (request.samples) output_.sampled.push_back({request.id, 7});
    }
    unfinished_ -= scheduler_->UpdateFromOutput(step, output_).size();
  }

  // Steps until at least so many blocks were stored.
  void StepUntilStored(std::uint64_t blocks) {
    while (scheduler_->stats().stored < blocks) {
      AddRequests();
      Step();
    }
  }

  scheduler::Scheduler& scheduler() { return *scheduler_; }

 private:
  std::uint32_t Below(std::uint32_t bound) { return static_cast<std::uint32_t>(random_() % bound); }

  // A family's beginning of any length, then tokens of its own.
  std::vector<TokenId> Prompt() {
    const std::size_t length = std::size_t{options_.block_size} * (1 + Below(options_.max_prompt_blocks));
    const std::size_t shared = Below(static_cast<std::uint32_t>(length));
    const TokenId family = 1000 + 10 * Below(options_.families);
    std::vector<TokenId> prompt;
    prompt.reserve(length);
    for (std::size_t i = 0; i < length; ++i) prompt.push_back(i < shared ? family : 10000 + Below(100000));
    return prompt;
  }

  const Options options_;
  std::mt19937_64 random_;
  std::unique_ptr<scheduler::Scheduler> scheduler_;
  scheduler::RunnerOutput output_;
  scheduler::RequestId last_id_ = 0;
  std::size_t unfinished_ = 0;
};

}  // namespace kvwire::test
