// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "engine/simulated_runner.h"
#include "kv_events/error.h"
#include "scheduler/scheduler.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvwire::engine {

// --host-blocks, --disk-blocks, --disk-dir, --tensor-parallel-size: what keeps the blocks that the device evicts.
class TierOption {
 public:
  void AddTo(CLI::App& command);
  // --reset-lower-tiers.
  void AddResetTo(CLI::App& command);

  // Sets tiers and workers, and the runner's directory. After parsing, when the rest of *config is known.
  // Errors: name the flag, the value and what is allowed.
  Status Apply(scheduler::SchedulerConfig* config, SimulatedRunner::Options* runner) const;

  // Workers were asked for, and there is nothing to copy.
  bool has_idle_workers() const;

 private:
  Status Check(const scheduler::SchedulerConfig& config) const;

  std::uint32_t host_blocks_ = 0;
  std::uint32_t disk_blocks_ = 0;
  std::string disk_dir_;
  std::uint32_t num_workers_ = 1;
  std::string reset_ = "clear";
  const CLI::Option* given_workers_ = nullptr;
};

}  // namespace kvwire::engine
