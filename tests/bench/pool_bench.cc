// SPDX-License-Identifier: Apache-2.0
// A request's way through the block pool, with events off and on: allocate, register, announce, take the events, free.
// The pool is full and each request new, so with events on every block makes a removal and a store. A step has one
// large request, or as many small ones as make 64 blocks. Then the same with what the publisher may want of the state:
// the digest at each batch, snapshots one after the other, resyncs one after the other.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "kv_events/batch.h"
#include "kv_events/event_publisher.h"
#include "kv_events/hash/block_hasher.h"
#include "kv_events/state_publisher.h"
#include "scheduler/block_pool.h"
#include "tests/bench/rounds.h"

namespace kvwire::test {
namespace {

using scheduler::BlockChain;
using scheduler::BlockId;
using scheduler::BlockPool;

constexpr std::size_t kBlockSize = 16;
constexpr std::size_t kPoolBlocks = 16384;
constexpr std::size_t kBlocksPerRound = 2 * kPoolBlocks;  // when a chain comes again its blocks are gone
constexpr std::size_t kLeastStepBlocks = 64;              // small requests share a step
constexpr std::array<std::size_t, 4> kSizes{1, 64, 512, 8192};
constexpr std::array<std::size_t, 3> kStepSizes{64, 512, 4096};
constexpr double kGoal = 1.25;

// Blocks of all requests of a round.
struct Content {
  Content() : tokens(RandomTokens(kBlocksPerRound * kBlockSize, 1)) {
    BlockHasher hasher = *BlockHasher::Create(HashAlgorithm::kSha256Cbor, kDefaultHashSeed);
    BlockHash parent;
    for (std::size_t i = 0; i < kBlocksPerRound; ++i) {
      parent = hasher.HashBlock(parent, std::span(tokens).subspan(i * kBlockSize, kBlockSize));
      hashes.push_back(parent);
    }
  }
  static const Content& Get() {
    static const Content content;
    return content;
  }

  std::vector<TokenId> tokens;
  std::vector<BlockHash> hashes;
};

enum class Events : std::uint8_t { kOff, kOn };

// What is wanted of the state all the while.
enum class Wanted : std::uint8_t { kNothing, kSnapshots, kResyncs };

// Gives the memory of each batch and chunk back at once, and wants the next walk as soon as one is over.
class WantingPublisher final : public EventPublisher {
 public:
  explicit WantingPublisher(Wanted wanted) : wanted_(wanted) {}

  void Want(const StatePublisher& stream) {
    if (wanted_ == Wanted::kSnapshots) wants_.walks = stream.stats().walks + 1;
    if (wanted_ == Wanted::kResyncs && !stream.renewing()) ++wants_.resyncs;
    wants_.chunks = stream.stats().chunks + 1;
  }

  PublishResult Publish(KVEventBatch&& batch) noexcept override { return Keep(std::move(batch)); }
  PublishResult PublishChunk(StateChunk&& chunk) noexcept override { return Keep(std::move(chunk.blocks)); }
  KVEventBatch TakeSpare() noexcept override {
    return num_spares_ == 0 ? KVEventBatch() : std::move(spares_[--num_spares_]);
  }
  StateWants state_wants() const noexcept override { return wants_; }
  bool resyncs_after_loss() const noexcept override { return true; }
  using EventPublisher::Close;
  void Close(std::chrono::milliseconds /*deadline*/) noexcept override {}
  PublisherStats stats() const noexcept override { return {}; }

 private:
  PublishResult Keep(KVEventBatch&& batch) noexcept {
    benchmark::DoNotOptimize(batch);
    batch.Clear();
    if (num_spares_ < spares_.size()) spares_[num_spares_++] = std::move(batch);
    return PublishResult::kAccepted;
  }

  const Wanted wanted_;
  StateWants wants_;
  std::array<KVEventBatch, 4> spares_;
  std::size_t num_spares_ = 0;
};

class Subject {
 public:
  explicit Subject(Events events) : events_(events), pool_(Options(events)) {
    for (const std::size_t size : kSizes) Round(size);  // fills the pool, and what is reused gets its size
  }
  // With events that go through a StatePublisher.
  explicit Subject(Wanted wanted) : events_(Events::kOn), pool_(Options(Events::kOn)), publisher_(wanted) {
    stream_.emplace(StatePublisher::Options(), &publisher_, &pool_);
    for (const std::size_t size : kStepSizes) Round(size);
  }

  // Nanoseconds a block.
  double Round(std::size_t blocks_per_request) {
    tables_.resize(std::max(kLeastStepBlocks / blocks_per_request, std::size_t{1}));
    const std::size_t step = tables_.size() * blocks_per_request;
    const double took = TimeOf([&] {
      for (std::size_t first = 0; first < kBlocksPerRound; first += step) Step(first, blocks_per_request);
    });
    blocks_ += kBlocksPerRound;
    return took / static_cast<double>(kBlocksPerRound);
  }

  // Blocks that walks have told, snapshots and resyncs together.
  std::uint64_t walked() const { return stream_->stats().walked + stream_->stats().renewed; }

  // Every block was new, and was announced exactly if events are on.
  bool DidItsWork() const {
    return pool_.stats().new_prompt_blocks == blocks_ && pool_.stats().stored == (events_ == Events::kOn ? blocks_ : 0);
  }

 private:
  static scheduler::BlockPoolOptions Options(Events events) {
    scheduler::BlockPoolOptions options;
    options.num_blocks = kPoolBlocks + 1;
    options.block_size = kBlockSize;
    options.enable_events = events == Events::kOn;
    options.groups = {scheduler::GroupSpec{}};
    return options;
  }

  // Requests that share a step: what they announce leaves in one batch.
  void Step(std::size_t first_block, std::size_t blocks_per_request) {
    for (std::vector<BlockId>& table : tables_) {
      Start(first_block, blocks_per_request, &table);
      first_block += blocks_per_request;
    }
    pool_.AnnouncePending();
    if (stream_) {
      publisher_.Want(*stream_);
      (void)stream_->Publish(pool_.TakeEvents(stream_->TakeSpare()));
    } else if (events_ == Events::kOn) {
      spare_ = pool_.TakeEvents(std::move(spare_));
      benchmark::DoNotOptimize(spare_);
      spare_.Clear();
    }
    for (std::vector<BlockId>& table : tables_) {
      std::reverse(table.begin(), table.end());
      pool_.Free(table);
    }
  }

  void Start(std::size_t first_block, std::size_t blocks, std::vector<BlockId>* table) {
    const Content& content = Content::Get();
    const auto count = static_cast<std::uint32_t>(blocks);
    BlockChain chain;
    chain.hashes = std::span(content.hashes).subspan(first_block, blocks);
    chain.token_ids = std::span(content.tokens).subspan(first_block * kBlockSize, blocks * kBlockSize);
    chain.num_prompt_blocks = count;
    table->clear();
    pool_.Allocate(blocks, table);
    pool_.Register(chain, *table, 0, count, 0);
  }

  const Events events_;
  BlockPool pool_;
  std::vector<std::vector<BlockId>> tables_;  // of a step's requests
  KVEventBatch spare_;
  WantingPublisher publisher_{Wanted::kNothing};
  std::optional<StatePublisher> stream_;
  std::uint64_t blocks_ = 0;
};

void OnAgainstOff(benchmark::State& state) {
  const auto blocks_per_request = static_cast<std::size_t>(state.range(0));
  Subject off(Events::kOff);
  Subject on(Events::kOn);
  PairedRounds rounds;
  for (auto _ : state) {
    rounds.Run([&] { return off.Round(blocks_per_request); }, [&] { return on.Round(blocks_per_request); });
    state.SetIterationTime(rounds.last_other() * 1e-9);
  }
  if (!off.DidItsWork() || !on.DidItsWork()) return Fail(state, "blocks were not new, or not announced");
  state.counters["off_ns_per_block"] = rounds.base();
  state.counters["on_ns_per_block"] = rounds.other();
  state.counters["ratio"] = rounds.ratio();
  Goals goals;
  goals.Judge("ratio <= 1.25", rounds.ratio() <= kGoal);
  state.SetLabel(goals.text());
}

// What events add to a block on the step thread, by the blocks of a step, and what it is while snapshots or resyncs are
// under way, a piece of 512 blocks a step.
void StepThread(benchmark::State& state) {
  const auto blocks_per_step = static_cast<std::size_t>(state.range(0));
  Subject off(Events::kOff);
  Subject rest(Wanted::kNothing);
  Subject snapshots(Wanted::kSnapshots);
  Subject resyncs(Wanted::kResyncs);
  PairedRounds events;
  PairedRounds with_snapshots;
  PairedRounds with_resyncs;
  const auto round = [blocks_per_step](Subject* subject) { return subject->Round(blocks_per_step); };
  for (auto _ : state) {
    events.Run([&] { return round(&off); }, [&] { return round(&rest); });
    with_snapshots.Run([&] { return round(&rest); }, [&] { return round(&snapshots); });
    with_resyncs.Run([&] { return round(&rest); }, [&] { return round(&resyncs); });
    state.SetIterationTime(events.last_other() * 1e-9);
  }
  if (!off.DidItsWork() || !rest.DidItsWork()) return Fail(state, "blocks were not new, or not announced");
  if (rest.walked() != 0 || snapshots.walked() == 0 || resyncs.walked() == 0)
    return Fail(state, "walks are not as wanted");
  const auto piece_us = [&](const PairedRounds& rounds) {
    return rounds.difference() * static_cast<double>(blocks_per_step) / 1e3;
  };
  state.counters["on_ns_per_block"] = events.other();
  state.counters["added_ns_per_block"] = events.difference();
  state.counters["snapshots"] = with_snapshots.ratio();
  state.counters["snapshot_us_per_step"] = piece_us(with_snapshots);
  state.counters["resyncs"] = with_resyncs.ratio();
  state.counters["resync_us_per_step"] = piece_us(with_resyncs);
}

// What a block costs in the largest requests against those of 64 blocks.
void Growth(benchmark::State& state) {
  Subject off(Events::kOff);
  Subject on(Events::kOn);
  PairedRounds rounds_off;
  PairedRounds rounds_on;
  for (auto _ : state) {
    rounds_off.Run([&] { return off.Round(64); }, [&] { return off.Round(8192); });
    rounds_on.Run([&] { return on.Round(64); }, [&] { return on.Round(8192); });
    state.SetIterationTime(rounds_on.last_other() * 1e-9);
  }
  state.counters["growth_off"] = rounds_off.ratio();
  state.counters["growth_on"] = rounds_on.ratio();
}

void AddAll(int rounds) {
  for (const std::size_t size : kSizes) {
    benchmark::RegisterBenchmark("pool", OnAgainstOff)
        ->Arg(static_cast<std::int64_t>(size))
        ->Iterations(rounds)
        ->UseManualTime();
  }
  for (const std::size_t size : kStepSizes) {
    benchmark::RegisterBenchmark("step_thread", StepThread)
        ->Arg(static_cast<std::int64_t>(size))
        ->Iterations(rounds)
        ->UseManualTime();
  }
  benchmark::RegisterBenchmark("pool_growth_8192_to_64", Growth)->Iterations(rounds)->UseManualTime();
}

}  // namespace
}  // namespace kvwire::test

int main(int argc, char** argv) { return kvwire::test::RunBenchmarks(argc, argv, kvwire::test::AddAll); }
