// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "kv_events/config.h"
#include "kv_events/error.h"
#include "scheduler/scheduler.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvwire::engine {

// --block-size and --model-config: how the KV cache of a simulated model is divided.
class ModelOption {
 public:
  void AddTo(CLI::App& command, std::uint32_t max_block_size);

  // Sets block_size, groups and partial_blocks. After parsing. Errors: as LoadModelConfig, and two different block
  // sizes.
  Status Apply(scheduler::SchedulerConfig* config) const;

 private:
  const CLI::Option* given_block_size_ = nullptr;
  std::uint32_t block_size_ = 16;
  std::string path_;
};

// Several groups need events that say which one they are of.
// Errors: kUnsupported when the configured form of the events has no place for that.
Status CheckGroupsAreTold(const scheduler::SchedulerConfig& config, const KVEventsConfig& events);

}  // namespace kvwire::engine
