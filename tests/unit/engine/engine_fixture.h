// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "engine/engine_core.h"
#include "tests/support/manual_clock.h"

namespace kvwire::engine {

using test::ManualClock;

inline EngineConfig SmallConfig(std::uint32_t num_blocks = 64) {
  EngineConfig config;
  config.scheduler.num_blocks = num_blocks;
  config.scheduler.block_size = 4;
  config.scheduler.max_num_seqs = 8;
  config.scheduler.max_num_batched_tokens = 64;
  config.scheduler.max_model_len = 1000;
  config.scheduler.enable_kv_cache_events = true;
  return config;
}

// Of `options` only what the scheduler does not decide.
inline std::unique_ptr<SimulatedRunner> RunnerFor(const EngineConfig& config, SimulatedRunner::Options options = {}) {
  options.Fit(config.scheduler);
  auto runner = SimulatedRunner::Create(options);
  REQUIRE(runner.has_value());
  return std::move(*runner);
}

inline BlockHasher MakeHasher() {
  auto hasher = BlockHasher::Create(HashAlgorithm::kSha256Cbor, kDefaultHashSeed);
  REQUIRE(hasher.has_value());
  return std::move(*hasher);
}

inline std::unique_ptr<EngineCore> MakeEngine(EngineConfig config, EventPublisher* publisher,
                                              std::unique_ptr<scheduler::ModelRunner> runner = nullptr) {
  if (runner == nullptr) runner = RunnerFor(config);
  auto engine = EngineCore::Create(std::move(config), MakeHasher(), std::move(runner), publisher);
  REQUIRE(engine.has_value());
  return std::move(*engine);
}

inline scheduler::NewRequest MakeRequest(scheduler::RequestId id, std::uint32_t prompt_tokens, std::uint32_t max_tokens,
                                         TokenId first_token = 1) {
  scheduler::NewRequest request;
  request.id = id;
  for (std::uint32_t i = 0; i < prompt_tokens; ++i) request.prompt.push_back(first_token + i);
  request.max_tokens = max_tokens;
  return request;
}

}  // namespace kvwire::engine
