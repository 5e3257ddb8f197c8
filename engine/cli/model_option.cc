// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/model_option.h"

#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/cli/number_options.h"
#include "engine/model_config.h"

namespace kvwire::engine {

void ModelOption::AddTo(CLI::App& command, std::uint32_t max_block_size) {
  given_block_size_ = AddCount(command, "--block-size", &block_size_, {1, max_block_size}, "Tokens per block");
  command.add_option("--model-config", path_,
                     "File that describes the model's KV-cache groups; without one: full attention in all layers");
}

Status ModelOption::Apply(scheduler::SchedulerConfig* config) const {
  config->block_size = block_size_;
  if (path_.empty()) return {};
  Result<ModelConfig> model = LoadModelConfig(path_);
  if (!model) return MakeError(model.error().code, "--model-config: " + model.error().message);
  if (given_block_size_->count() > 0 && block_size_ != model->hash_block_size) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("--block-size is {}, but the hash_block_size of \"{}\" is {}; allowed: the same, or "
                                 "only one of both",
                                 block_size_, path_, model->hash_block_size));
  }
  config->block_size = model->hash_block_size;
  config->groups = std::move(model->groups);
  config->partial_blocks = model->partial_blocks;
  return {};
}

Status CheckGroupsAreTold(const scheduler::SchedulerConfig& config, const KVEventsConfig& events) {
  const KVEventsConfig::Extensions& form = events.kvwire;
  const bool told = form.event_format == EventFormat::kMap || form.array_tail == ArrayTail::kFull;
  if (!events.enable_kv_cache_events || told || config.groups.size() < 2) return {};
  return MakeError(
      ErrorCode::kUnsupported,
      fmt::format("--model-config has {} groups, but array events with a legacy tail (profile \"{}\") do not "
                  "say of which group they are; allowed: one group, map events, or array_tail \"full\"",
                  config.groups.size(), form.profile));
}

}  // namespace kvwire::engine
