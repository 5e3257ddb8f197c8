// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/tier_option.h"

#include <cstdint>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/cli/number_options.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

constexpr std::uint64_t kMaxBlocks = std::uint64_t{1} << 28;

}  // namespace

void TierOption::AddTo(CLI::App& command) {
  AddCount(command, "--host-blocks", &host_blocks_, {0, kMaxBlocks},
           "Blocks of host memory, which keep what the device evicts; 0: none");
  AddCount(command, "--disk-blocks", &disk_blocks_, {0, kMaxBlocks},
           "Blocks in files of --disk-dir, which keep it as well; 0: none");
  command.add_option("--disk-dir", disk_dir_, "Directory of the disk blocks; it holds nothing else");
  given_workers_ = AddCount(command, "--tensor-parallel-size", &num_workers_, {1, 4096},
                            "Workers that copy between the device and these blocks, each its part of every block");
}

void TierOption::AddResetTo(CLI::App& command) {
  command
      .add_option("--reset-lower-tiers", reset_,
                  "What a reset of the prefix cache does to host and disk blocks: clear or keep")
      ->capture_default_str();
}

bool TierOption::has_idle_workers() const { return given_workers_->count() > 0 && host_blocks_ + disk_blocks_ == 0; }

Status TierOption::Check(const scheduler::SchedulerConfig& config) const {
  for (const auto& [flag, blocks] : {std::pair("--host-blocks", host_blocks_), {"--disk-blocks", disk_blocks_}}) {
    if (blocks == 0 || (!config.vllm_exact && config.enable_prefix_caching)) continue;
    const std::string_view reason = config.vllm_exact ? "--vllm-exact" : "--no-enable-prefix-caching";
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{} is {}; allowed: 0, as {} is given", flag, blocks, reason));
  }
  if (disk_blocks_ > 0 && disk_dir_.empty()) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        fmt::format("--disk-blocks is {}, but there is no --disk-dir; allowed: both, or neither", disk_blocks_));
  }
  if (disk_blocks_ == 0 && !disk_dir_.empty()) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        fmt::format("--disk-dir is \"{}\", but --disk-blocks is 0; allowed: both, or neither", ShortText(disk_dir_)));
  }
  if (reset_ != "clear" && reset_ != "keep") {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("--reset-lower-tiers is \"{}\"; allowed: clear, keep", ShortText(reset_)));
  }
  return {};
}

Status TierOption::Apply(scheduler::SchedulerConfig* config, SimulatedRunner::Options* runner) const {
  if (Status allowed = Check(*config); !allowed) return allowed;
  config->host_blocks = host_blocks_;
  config->disk_blocks = disk_blocks_;
  config->tensor_parallel_size = num_workers_;
  config->reset_lower_tiers = reset_ == "keep" ? scheduler::TierReset::kKeep : scheduler::TierReset::kClear;
  runner->disk_dir = disk_dir_;
  return {};
}

}  // namespace kvwire::engine
