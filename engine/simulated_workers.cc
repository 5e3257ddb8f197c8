// SPDX-License-Identifier: Apache-2.0
#include "engine/simulated_workers.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace kvwire::engine {

using scheduler::LoadBlock;
using scheduler::RequestId;
using scheduler::SchedulerOutput;
using scheduler::StoreBlock;
using scheduler::StoreResult;

Result<std::unique_ptr<SimulatedWorkers>> SimulatedWorkers::Create(Options options) {
  for (const auto& [name, value] :
       {std::pair{"num_workers", options.num_workers}, {"host_blocks", options.num_blocks}}) {
    if (value == 0) return MakeError(ErrorCode::kInvalidArgument, fmt::format("{} is 0; allowed: 1 or more", name));
  }
  for (const auto& [name, value] : {std::pair{"failed_store_percent", options.failed_store_percent},
                                    {"failed_load_percent", options.failed_load_percent}}) {
    if (value > 100) {
      return MakeError(ErrorCode::kInvalidArgument, fmt::format("{} is {}; allowed: 0 to 100", name, value));
    }
  }
  const std::size_t blocks = std::size_t{options.num_blocks} + 1;
  Words words(static_cast<std::uint64_t*>(std::calloc(blocks * options.words_per_block, sizeof(std::uint64_t))));
  if (words == nullptr) {
    return MakeError(ErrorCode::kUnavailable, fmt::format("there is no memory for the words of {} host blocks of {} "
                                                          "tokens",
                                                          options.num_blocks, options.words_per_block));
  }
  return std::unique_ptr<SimulatedWorkers>(new SimulatedWorkers(options, std::move(words)));
}

SimulatedWorkers::SimulatedWorkers(Options options, Words words)
    : options_(options), words_(std::move(words)), rng_(options.seed), pending_(options.num_workers) {}

void SimulatedWorkers::Copy(std::uint32_t worker, std::uint32_t num_tokens, const std::uint64_t* from,
                            std::uint64_t* to) const {
  for (std::uint32_t i = worker; i < num_tokens; i += options_.num_workers) to[i] = from[i];
}

void SimulatedWorkers::Load(std::span<const LoadBlock> loads, std::uint64_t* device_words,
                            std::vector<RequestId>* failed) {
  for (const LoadBlock& load : loads) {
    const bool fails = Random(100) < options_.failed_load_percent;
    const std::uint32_t failing = fails ? Random(options_.num_workers) : options_.num_workers;
    for (std::uint32_t worker = 0; worker < options_.num_workers; ++worker) {
      if (worker == failing) continue;
      Copy(worker, load.num_tokens, words_.get() + std::size_t{load.host_block} * options_.words_per_block,
           device_words + std::size_t{load.device_block} * options_.words_per_block);
    }
    if (fails && std::find(failed->begin(), failed->end(), load.request) == failed->end()) {
      failed->push_back(load.request);
    }
  }
}

void SimulatedWorkers::Store(const SchedulerOutput& step, const std::uint64_t* device_words,
                             std::vector<StoreResult>* results) {
  ++step_;
  for (std::uint32_t worker = 0; worker < options_.num_workers; ++worker) {
    std::deque<Pending>& pending = pending_[worker];
    for (const StoreBlock& store : step.stores) {
      pending.push_back({store, step_ + Random(options_.max_store_delay + 1)});
    }
    for (; !pending.empty() && (pending.front().due <= step_ || step.finish_stores); pending.pop_front()) {
      const StoreBlock& store = pending.front().store;
      const bool ok = Random(100) >= options_.failed_store_percent;
      if (ok) {
        Copy(worker, store.num_tokens, device_words + std::size_t{store.device_block} * options_.words_per_block,
             words_.get() + std::size_t{store.host_block} * options_.words_per_block);
      }
      results->push_back({worker, store.job, ok});
    }
  }
}

}  // namespace kvwire::engine
