// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <doctest/doctest.h>

#include "engine/serve/instance.h"
#include "tests/support/own_loopback.h"

namespace kvwire::test {

// Small engines with events on, and requests to them.

inline engine::InstanceConfig SmallEngine(std::uint32_t ranks = 1) {
  engine::InstanceConfig config;
  config.scheduler.num_blocks = 100;
  config.scheduler.block_size = 4;
  config.data_parallel_size = ranks;
  config.events.enable_kv_cache_events = true;
  config.events.endpoint = "tcp://" + OwnLoopback() + ":0";
  config.events.replay_endpoint = "tcp://" + OwnLoopback() + ":0";
  config.events.kvwire.mode = SocketMode::kBind;
  config.events.kvwire.restart_guard_s = 0;  // consumers join late here, and nothing is to be announced again
  return config;
}

inline std::unique_ptr<engine::EgressThread> MustCreateEgress() {
  auto egress = engine::EgressThread::Create();
  REQUIRE(egress.has_value());
  return *std::move(egress);
}

inline std::unique_ptr<engine::Instance> MustCreate(engine::InstanceConfig config, engine::EgressThread* egress) {
  auto instance = engine::Instance::Create(std::move(config), egress, ZmqContext::Create());
  REQUIRE_MESSAGE(instance.has_value(), instance.error().message);
  return *std::move(instance);
}

// The prompt: first, first + 1, ...
inline scheduler::NewRequest Request(std::uint32_t prompt_tokens, std::uint32_t max_tokens, TokenId first = 1) {
  scheduler::NewRequest request;
  for (TokenId i = 0; i < prompt_tokens; ++i) request.prompt.push_back(first + i);
  request.max_tokens = max_tokens;
  return request;
}

inline engine::Admission MustSubmit(engine::Instance* instance, scheduler::NewRequest request,
                                    std::optional<std::uint32_t> rank = {}) {
  auto admission = instance->Submit(std::move(request), rank);
  REQUIRE(admission.has_value());
  return *std::move(admission);
}

// Everything until the end; not last() when it does not come in time.
inline engine::OutputChunk Await(const engine::Admission& admission) {
  engine::OutputChunk all;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!all.last() && std::chrono::steady_clock::now() < end) {
    engine::OutputChunk chunk = admission.output->Take(std::chrono::milliseconds(10));
    all.tokens.insert(all.tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
    if (chunk.finished) all.finished = std::move(chunk.finished);
    if (chunk.refused) all.refused = std::move(chunk.refused);
  }
  return all;
}

}  // namespace kvwire::test
