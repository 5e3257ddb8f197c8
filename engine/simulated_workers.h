// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "engine/disk_blocks.h"
#include "kv_events/error.h"
#include "kv_events/log.h"
#include "scheduler/scheduler_output.h"

namespace kvwire::engine {

// The tensor-parallel workers of a simulated model, as far as they copy blocks between the device and the lower tiers:
// host memory, and files of a directory. The word at offset i of a block belongs to worker i % num_workers, so that a
// copy which some worker did not make, or made at the wrong time, leaves foreign words.
//
// A worker executes its stores in the order of the jobs, each up to max_store_delay steps late. A worker that fails
// copies nothing, and says so.
// Threads: one thread at a time.
// Bounds: host_blocks * words_per_block words, committed by the operating system as they are first written; on disk as
// DiskBlocks has it.
class SimulatedWorkers {
 public:
  struct Options {
    std::uint32_t host_blocks = 0;  // numbered from 1
    std::uint32_t disk_blocks = 0;  // numbered behind the host's
    std::string disk_dir;           // with disk blocks
    LogSink log;
    std::size_t words_per_block = 0;
    std::uint32_t num_workers = 1;
    std::uint32_t failed_store_percent = 0;
    std::uint32_t failed_load_percent = 0;
    std::uint32_t max_store_delay = 3;
    std::uint64_t seed = 1;
  };

  // Errors: kInvalidArgument names the option; kUnavailable when there is no memory for the words; as DiskBlocks::Open.
  static Result<std::unique_ptr<SimulatedWorkers>> Create(Options options);

  // Appends each request of which a block could not be loaded, once.
  void Load(std::span<const scheduler::LoadBlock> loads, std::uint64_t* device_words,
            std::vector<scheduler::RequestId>* failed);

  // Takes the step's stores in and executes those that are due.
  void Store(const scheduler::SchedulerOutput& step, const std::uint64_t* device_words,
             std::vector<scheduler::StoreResult>* results);

  // The first words of a lower tier's block; nothing if they cannot be read.
  std::optional<std::vector<std::uint64_t>> WordsOf(scheduler::HostBlockId block, std::uint32_t num_tokens);

  // Removes the files. Nothing is copied to or from the disk any more. Idempotent.
  void Close() { disk_.reset(); }

 private:
  struct Pending {
    scheduler::StoreBlock store;
    std::uint64_t due = 0;  // step
  };
  struct Release {
    void operator()(std::uint64_t* words) const noexcept { std::free(words); }
  };
  using Words = std::unique_ptr<std::uint64_t, Release>;

  SimulatedWorkers(Options options, Words words, std::unique_ptr<DiskBlocks> disk);

  std::uint32_t Random(std::uint32_t bound) { return static_cast<std::uint32_t>(rng_() % bound); }  // below it
  void Copy(std::uint32_t worker, std::uint32_t num_tokens, const std::uint64_t* from, std::uint64_t* to) const;
  std::uint64_t* HostWords(scheduler::HostBlockId block) const {
    return words_.get() + std::size_t{block} * options_.words_per_block;
  }
  bool LoadPart(std::uint32_t worker, scheduler::HostBlockId from, std::uint32_t num_tokens, std::uint64_t* to);
  bool StorePart(std::uint32_t worker, const scheduler::StoreBlock& store, const std::uint64_t* from);

  const Options options_;
  const Words words_;                 // of the host
  std::unique_ptr<DiskBlocks> disk_;  // null: there is none
  std::mt19937_64 rng_;
  std::vector<std::deque<Pending>> pending_;  // by worker
  std::uint64_t step_ = 0;
  std::vector<std::uint64_t> part_;  // one worker's words on their way
};

}  // namespace kvwire::engine
