// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kv_events/batch.h"
#include "kv_events/error.h"
#include "kv_events/log.h"

namespace kvwire {

// What becomes of a block that some workers reported and others have not, when Take() is called.
enum class LateWorkers : std::uint8_t {
  kAwait,    // it stays pending; a worker may report it at any later step
  kDiscard,  // it is forgotten: the workers of one step report before the same Take()
};

// What becomes of AllBlocksCleared that every worker reported.
enum class WorkerClears : std::uint8_t {
  kPublish,     // one AllBlocksCleared
  kAsRemovals,  // BlockRemoved for what was announced: for a stream that also carries blocks of other owners
};

// Blocks of `group` are each stored by num_workers / factor workers.
struct GroupReplication {
  std::uint32_t group = 0;
  std::uint32_t factor = 1;
};

struct WorkerEventAggregatorOptions {
  std::uint32_t num_workers = 1;  // 1 to WorkerEventAggregator::kMaxWorkers

  // Divides num_workers. 1: every worker stores its part of each block. Tensor-parallel size / KV heads where that many
  // workers hold the same heads and share the storing; num_workers where one stores for all.
  std::uint32_t replication = 1;
  std::vector<GroupReplication> group_replication;  // groups that differ from `replication`

  LateWorkers late_workers = LateWorkers::kAwait;
  WorkerClears clears = WorkerClears::kPublish;

  // Bounds, each at least 1; over one of them the oldest block is forgotten: all workers must store it again. A pending
  // block is one that was not yet complete, so these bounds are how far a worker may lag behind the others. A block
  // that was complete once is known until no worker holds it.
  std::size_t max_pending_blocks = std::size_t{1} << 16;
  std::size_t max_pending_bytes = std::size_t{64} << 20;
  std::size_t max_complete_blocks = std::size_t{1} << 22;  // the term of a source that never reports removals

  LogSink log;
};

// Counted in blocks unless it says otherwise.
struct WorkerEventStats {
  std::uint64_t reported = 0;          // in BlockStored of workers
  std::uint64_t duplicates = 0;        // of these, held already by the same worker with the same content
  std::uint64_t disagreements = 0;     // of these, with other content than another worker's
  std::uint64_t unknown_removals = 0;  // in BlockRemoved of a worker that does not hold them
  std::uint64_t malformed = 0;         // events of workers that were left out
  std::uint64_t published = 0;         // in BlockStored of Take()
  std::uint64_t removed = 0;           // in BlockRemoved of Take()
  std::uint64_t cleared = 0;           // AllBlocksCleared of Take()
  std::uint64_t dropped = 0;           // pending ones forgotten over their bound
  std::uint64_t discarded = 0;         // pending ones forgotten by LateWorkers::kDiscard
  std::uint64_t expired = 0;           // complete ones forgotten over their bound
  std::uint64_t lost_workers = 0;      // calls of LoseWorker()
  std::uint64_t pending = 0;           // now
  std::uint64_t pending_bytes = 0;     // bytes that these take, now
  std::uint64_t available = 0;         // complete now
  std::uint64_t disputed = 0;          // held with different contents, now
  std::uint64_t held_bytes = 0;        // bytes that all known blocks take, now

  friend bool operator==(const WorkerEventStats&, const WorkerEventStats&) = default;
};

// Turns what the workers of one engine report (tensor-parallel ranks that store their parts of the blocks in a lower
// tier) into the events of the engine: a block is available when every worker has stored its part.
//
// Each worker is a set of blocks by (hash, group, medium), which its BlockStored, BlockRemoved and AllBlocksCleared
// change in the order it reports them. It does not count how often a worker says the same. A block is complete when
//   - workers holding it x replication of its group >= num_workers, and
//   - all workers holding it agree on its content: parent, tokens, block size, LoRA id and name, extra keys, cache kind
//     and window, locality, ownership. What is not told (tokens, extra keys) differs from what is told.
// Take() returns the difference between the complete blocks and those announced before. So a block that any needed
// worker loses is removed, once; it is announced again when all have it again; what some workers lost and regained
// between two calls is no event. What all its workers lost is removed, and stored again if they regained it: it may be
// elsewhere now, where a snapshot walk over the owner's blocks has been, and only the store tells of it. A worker's
// clear ends everything it reported before: that never completes with what another worker reports, before or after its
// own clear. A worker that contradicts itself is taken by its last word.
//
// Order: of a Take(), AllBlocksCleared first (what is still complete is announced again after it), then removals in the
//   order they came to be, then stores in the order the first worker reported them: the lowest index among the workers
//   holding the block. Between different first workers it is the order of arrival, but a parent precedes its child.
//   Blocks of one reported event stay one event as far as they are complete together and follow each other. A child may
//   be announced before its parent is complete.
// What is announced is spelled (medium, absent group, session) as the first report of that content had it.
//
// Threads: one thread at a time (the engine's step thread).
// Errors: a call that fails changes nothing, except that Add() takes the readable events. Nothing throws but for lack
//   of memory. An episode of drops, and of disagreements, is one log line at its start and one at its end.
// Bounds: options; per block some 200 bytes, its tokens, and 8 bytes a worker. LoseWorker() and a worker's clear take
//   time in proportion to the known blocks, everything else to what is reported. At steady state nothing is allocated
//   (but for extra keys).
class WorkerEventAggregator {
 public:
  static constexpr std::uint32_t kMaxWorkers = 4096;

  // Fails with kInvalidArgument.
  static Result<std::unique_ptr<WorkerEventAggregator>> Create(WorkerEventAggregatorOptions options);

  WorkerEventAggregator(const WorkerEventAggregator&) = delete;
  WorkerEventAggregator& operator=(const WorkerEventAggregator&) = delete;
  ~WorkerEventAggregator();

  // Takes in what a worker reports, in its order; time and rank of the batch are ignored. Fails with kInvalidArgument
  // when there is no such worker, and when an event is malformed (token_ids that are not block_size per block, an empty
  // hash): that one is left out, the rest is taken, and the error names the first.
  Status Add(std::uint32_t worker, const KVEventBatch& report);

  // The events due now, in the memory of `spare`; time and rank are not set. Empty when nothing changed.
  KVEventBatch Take(KVEventBatch spare = {});

  // The stream has taken these blocks back without a BlockRemoved, as the AllBlocksCleared of another owner does: what
  // was announced of them counts no longer. One that is complete is announced by the next Take().
  void Retract(const BlockRemoved& blocks);

  // The worker died: nothing that it reported counts any longer. When it reports again it starts empty.
  Status LoseWorker(std::uint32_t worker);

  WorkerEventStats stats() const noexcept;

 private:
  class Impl;
  explicit WorkerEventAggregator(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvwire
