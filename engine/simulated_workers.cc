// SPDX-License-Identifier: Apache-2.0
#include "engine/simulated_workers.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace kvwire::engine {

using scheduler::HostBlockId;
using scheduler::LoadBlock;
using scheduler::RequestId;
using scheduler::SchedulerOutput;
using scheduler::StoreBlock;
using scheduler::StoreResult;

Result<std::unique_ptr<SimulatedWorkers>> SimulatedWorkers::Create(Options options) {
  if (options.num_workers == 0) return MakeError(ErrorCode::kInvalidArgument, "num_workers is 0; allowed: 1 or more");
  for (const auto& [name, value] : {std::pair{"failed_store_percent", options.failed_store_percent},
                                    {"failed_load_percent", options.failed_load_percent}}) {
    if (value > 100) {
      return MakeError(ErrorCode::kInvalidArgument, fmt::format("{} is {}; allowed: 0 to 100", name, value));
    }
  }
  const std::size_t blocks = std::size_t{options.host_blocks} + 1;
  Words words(static_cast<std::uint64_t*>(std::calloc(blocks * options.words_per_block, sizeof(std::uint64_t))));
  if (words == nullptr) {
    return MakeError(ErrorCode::kUnavailable, fmt::format("there is no memory for the words of {} host blocks of {} "
                                                          "tokens",
                                                          options.host_blocks, options.words_per_block));
  }
  std::unique_ptr<DiskBlocks> disk;
  if (options.disk_blocks > 0) {
    auto opened = DiskBlocks::Open({options.disk_dir, options.disk_blocks, options.num_workers, options.log});
    if (!opened) return tl::unexpected<Error>(std::move(opened).error());
    disk = *std::move(opened);
  }
  return std::unique_ptr<SimulatedWorkers>(new SimulatedWorkers(std::move(options), std::move(words), std::move(disk)));
}

SimulatedWorkers::SimulatedWorkers(Options options, Words words, std::unique_ptr<DiskBlocks> disk)
    : options_(std::move(options)),
      words_(std::move(words)),
      disk_(std::move(disk)),
      rng_(options_.seed),
      pending_(options_.num_workers) {}

void SimulatedWorkers::Copy(std::uint32_t worker, std::uint32_t num_tokens, const std::uint64_t* from,
                            std::uint64_t* to) const {
  for (std::uint32_t i = worker; i < num_tokens; i += options_.num_workers) to[i] = from[i];
}

// False if it cannot be done; then no word of the worker's has changed.
bool SimulatedWorkers::LoadPart(std::uint32_t worker, HostBlockId from, std::uint32_t num_tokens, std::uint64_t* to) {
  if (from <= options_.host_blocks) {
    Copy(worker, num_tokens, HostWords(from), to);
    return true;
  }
  part_.resize((num_tokens + options_.num_workers - 1 - worker) / options_.num_workers);
  if (disk_ == nullptr || !disk_->Read(from - options_.host_blocks, worker, part_)) return false;
  for (std::size_t i = 0; i < part_.size(); ++i) to[worker + i * options_.num_workers] = part_[i];
  return true;
}

bool SimulatedWorkers::StorePart(std::uint32_t worker, const StoreBlock& store, const std::uint64_t* from) {
  if (store.host_block <= options_.host_blocks) {
    Copy(worker, store.num_tokens, from, HostWords(store.host_block));
    return true;
  }
  part_.clear();
  for (std::uint32_t i = worker; i < store.num_tokens; i += options_.num_workers) part_.push_back(from[i]);
  return disk_ != nullptr && disk_->Write(store.host_block - options_.host_blocks, worker, store.job, part_);
}

std::optional<std::vector<std::uint64_t>> SimulatedWorkers::WordsOf(HostBlockId block, std::uint32_t num_tokens) {
  std::vector<std::uint64_t> words(num_tokens);
  for (std::uint32_t worker = 0; worker < options_.num_workers; ++worker) {
    if (!LoadPart(worker, block, num_tokens, words.data())) return std::nullopt;
  }
  return words;
}

void SimulatedWorkers::Load(std::span<const LoadBlock> loads, std::uint64_t* device_words,
                            std::vector<RequestId>* failed) {
  for (const LoadBlock& load : loads) {
    bool fails = Random(100) < options_.failed_load_percent;
    const std::uint32_t failing = fails ? Random(options_.num_workers) : options_.num_workers;
    for (std::uint32_t worker = 0; worker < options_.num_workers; ++worker) {
      if (worker == failing) continue;
      std::uint64_t* const to = device_words + std::size_t{load.device_block} * options_.words_per_block;
      if (!LoadPart(worker, load.host_block, load.num_tokens, to)) fails = true;
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
      const std::uint64_t* const from = device_words + std::size_t{store.device_block} * options_.words_per_block;
      const bool ok = Random(100) >= options_.failed_store_percent && StorePart(worker, store, from);
      results->push_back({worker, store.job, ok});
    }
  }
}

}  // namespace kvwire::engine
