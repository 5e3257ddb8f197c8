// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "engine/serve/kv_transfer_config.h"
#include "engine/simulated_runner.h"
#include "kv_events/batch.h"
#include "kv_events/config.h"
#include "kv_events/hash/block_hasher.h"
#include "kv_events/log.h"
#include "scheduler/scheduler.h"

namespace kvwire::engine {

// Of every rank alike.
struct InstanceConfig {
  scheduler::SchedulerConfig scheduler;  // events and removals are taken from `events`
  TimeModel time_model;
  SimulatedRunner::Options runner;  // sizes are taken from `scheduler`; each rank has a directory in its disk_dir
  HashAlgorithm hash_algorithm = HashAlgorithm::kSha256Cbor;
  HashSeed hash_seed;  // under HashSeed::Random() all ranks and their lives have one root
  KVEventsConfig events;
  std::uint32_t data_parallel_size = 1;
  std::size_t max_requests = 1024;              // per rank, queued or unfinished
  std::optional<KVTransferConfig> kv_transfer;  // none: blocks are neither held for others nor fetched
  LogSink log;
  // Asked before each rank is made; true: give up. May be empty.
  std::function<bool()> give_up;
  // Sees every batch before it is published, on the rank's step thread; must not throw. May be empty.
  std::function<void(std::uint32_t rank, std::uint64_t number, const KVEventBatch& batch)> observe_batch;
};

// Of a rank that is replaced.
struct RestartOptions {
  // Number of the new stream's first batch. Nothing: a few above the old stream's last one, as when a process comes
  // back and has published as much as before when it is heard of again.
  std::optional<SequenceNumber> first_number;
};

}  // namespace kvwire::engine
