// SPDX-License-Identifier: Apache-2.0
#include "engine/simulated_runner.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <sys/mman.h>

#include "scheduler/scheduler.h"

namespace kvwire::engine {

using scheduler::RunnerOutput;
using scheduler::ScheduledRequest;
using scheduler::SchedulerOutput;

namespace {

// *sum += time * count, up to the longest time. REQUIRES: time is not negative.
void AddTimes(std::chrono::nanoseconds time, std::int64_t count, std::int64_t* sum) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(std::int64_t{time.count()}, count, &product) ||
      __builtin_add_overflow(*sum, product, sum)) {
    *sum = std::numeric_limits<std::int64_t>::max();
  }
}

}  // namespace

std::chrono::nanoseconds TimeModel::Duration(const SchedulerOutput& step) const noexcept {
  std::int64_t prefill_tokens = 0;
  std::int64_t decoding = 0;
  for (const ScheduledRequest& request : step.requests) {
    if (request.samples && request.num_scheduled_tokens == 1 + request.draft_token_ids.size()) {
      ++decoding;
    } else {
      prefill_tokens += request.num_scheduled_tokens;
    }
  }
  std::int64_t duration = 0;
  AddTimes(decode_per_request, decoding, &duration);
  if (prefill_tokens > 0) {
    AddTimes(prefill_overhead, 1, &duration);
    AddTimes(prefill_per_token, prefill_tokens, &duration);
  }
  return std::chrono::nanoseconds(duration);
}

void SimulatedRunner::Options::Fit(const scheduler::SchedulerConfig& config) {
  num_blocks = config.num_blocks;
  block_size = config.block_size;
  groups = config.groups;
  num_speculative_tokens = config.num_speculative_tokens;
  host_blocks = config.host_blocks;
  disk_blocks = config.disk_blocks;
  num_workers = config.tensor_parallel_size;
}

Result<std::unique_ptr<SimulatedRunner>> SimulatedRunner::Create(Options options) {
  if (options.num_blocks < 2) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("num_blocks is {}; allowed: 2 or more", options.num_blocks));
  }
  if (options.block_size == 0) {
    return MakeError(ErrorCode::kInvalidArgument, "block_size is 0; allowed: 1 or more");
  }
  if (options.num_output_tokens == 0 || options.first_output_token > kMaxTokenId ||
      options.num_output_tokens - 1 > kMaxTokenId - options.first_output_token) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("output tokens [{0}, {0} + {1}) must be at least one token and within [0, {2}]",
                                 options.first_output_token, options.num_output_tokens, kMaxTokenId));
  }
  if (options.groups.empty()) {
    options.groups = {{scheduler::KVCacheKind::kFullAttention, options.block_size, 0}};
  }
  std::size_t words_per_block = 0;
  for (const scheduler::KVCacheGroup& group : options.groups) {
    words_per_block = std::max<std::size_t>(words_per_block, group.block_size);
  }
  const std::size_t slots = static_cast<std::size_t>(options.num_blocks) * words_per_block;
  std::size_t bytes = 0;
  void* memory = MAP_FAILED;
  if (!__builtin_mul_overflow(slots, sizeof(std::uint64_t), &bytes)) {
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (memory == MAP_FAILED) {
    return MakeError(ErrorCode::kUnavailable, fmt::format("cannot reserve {} bytes for each token of {} blocks of {} "
                                                          "tokens",
                                                          sizeof(std::uint64_t), options.num_blocks, words_per_block));
  }
  std::unique_ptr<SimulatedRunner> runner(
      new SimulatedRunner(std::move(options), words_per_block, static_cast<std::uint64_t*>(memory), bytes));
  const Options& owned = runner->options_;
  if (owned.host_blocks == 0 && owned.disk_blocks == 0) return runner;
  auto workers = SimulatedWorkers::Create({owned.host_blocks, owned.disk_blocks, owned.disk_dir, owned.log,
                                           words_per_block, owned.num_workers, owned.failed_store_percent,
                                           owned.failed_load_percent, owned.max_store_delay, owned.copy_seed});
  if (!workers) return tl::unexpected<Error>(std::move(workers).error());
  runner->workers_ = *std::move(workers);
  return runner;
}

SimulatedRunner::~SimulatedRunner() { ::munmap(words_, bytes_); }

void SimulatedRunner::Close() {
  if (workers_ != nullptr) workers_->Close();
}

RunnerOutput SimulatedRunner::Run(const SchedulerOutput& step) {
  RunnerOutput output;
  if (workers_ != nullptr) workers_->Load(step.loads, words_, &output.failed_loads);
  for (const scheduler::CopyBlock& copy : step.copies) {
    std::copy_n(words_ + copy.source * words_per_block_, copy.num_tokens, words_ + copy.destination * words_per_block_);
  }
  for (const ScheduledRequest& request : step.requests) {
    for (std::size_t group = 0; group < options_.groups.size(); ++group) Compute(request, group);
  }
  // Drawn only now, so that two requests that were given one slot in the same step disturb each other.
  for (const ScheduledRequest& request : step.requests) {
    if (request.samples) Sample(request, &output);
  }
  // Last, so that a device block that was given to another meanwhile shows.
  if (workers_ != nullptr) workers_->Store(step, words_, &output.stores);
  return output;
}

std::uint64_t SimulatedRunner::WordOf(const ScheduledRequest& request, std::size_t group,
                                      std::size_t position) const noexcept {
  const std::size_t block_size = options_.groups[group].block_size;
  return WordAt(request.block_tables[group][position / block_size], static_cast<std::uint32_t>(position % block_size));
}

void SimulatedRunner::Compute(const ScheduledRequest& request, std::size_t group) noexcept {
  const std::size_t block_size = options_.groups[group].block_size;
  const std::size_t end = std::size_t{request.num_computed_tokens} + request.num_scheduled_tokens;
  std::size_t position = request.num_computed_tokens;
  if (position == end) return;
  std::uint64_t word = position == 0 ? RootWordOf(group) : WordOf(request, group, position - 1);
  while (position < end) {
    const std::size_t offset = position % block_size;
    const std::size_t count = std::min<std::size_t>(block_size - offset, end - position);
    const std::size_t block = request.block_tables[group][position / block_size];
    std::uint64_t* slots = words_ + block * words_per_block_ + offset;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t p = position + i;
      const std::size_t known = request.token_ids.size();
      slots[i] = word = ChainWord(word, p < known ? request.token_ids[p] : request.draft_token_ids[p - known]);
    }
    position += count;
    // Read back, as the next position of a model would.
    word = slots[count - 1];
  }
}

TokenId SimulatedRunner::Draw(const ScheduledRequest& request, std::uint32_t last, const Imagined& imagined,
                              std::uint32_t end) const {
  std::uint64_t mixed = 0;
  for (std::size_t group = 0; group < options_.groups.size(); ++group) {
    const auto word = [&](std::uint32_t position) {
      return position < end ? WordOf(request, group, position) : imagined[group][position - end];
    };
    const std::uint32_t first = options_.groups[group].NumUnneededTokens(last);
    const std::uint64_t newest = word(last);
    const std::uint64_t earlier = word(first + static_cast<std::uint32_t>(newest % (last - first + 1)));
    mixed ^= ChainWord(newest, static_cast<TokenId>(earlier >> 33));
  }
  return options_.first_output_token + static_cast<TokenId>((mixed >> 20) % options_.num_output_tokens);
}

// The token after the last known one, and those after the drafts that were right.
void SimulatedRunner::Sample(const ScheduledRequest& request, RunnerOutput* output) const {
  const auto known = static_cast<std::uint32_t>(request.token_ids.size());
  std::uint32_t end = known;
  TokenId token = Draw(request, end - 1, {}, end);
  output->sampled.push_back({request.id, token});
  for (const TokenId draft : request.draft_token_ids) {
    if (draft != token) break;
    ++end;
    token = Draw(request, end - 1, {}, end);
    output->sampled.push_back({request.id, token});
  }
  if (options_.num_speculative_tokens > 0) output->drafts.push_back({request.id, Guess(request, end, token)});
}

// What would be drawn after `next`, the token at position `end`; some of it wrong.
std::vector<TokenId> SimulatedRunner::Guess(const ScheduledRequest& request, std::uint32_t end, TokenId next) const {
  std::vector<TokenId> guesses;
  Imagined imagined(options_.groups.size());
  for (std::uint32_t last = end; guesses.size() < options_.num_speculative_tokens; ++last) {
    for (std::size_t group = 0; group < imagined.size(); ++group) {
      const std::uint64_t before = last == end ? WordOf(request, group, end - 1) : imagined[group].back();
      imagined[group].push_back(ChainWord(before, next));
    }
    next = Draw(request, last, imagined, end);
    const bool right = imagined[0].back() % 100 < options_.draft_accuracy_percent;
    if (!right)
      next = options_.first_output_token + (next - options_.first_output_token + 1) % options_.num_output_tokens;
    guesses.push_back(next);
  }
  return guesses;
}

}  // namespace kvwire::engine
