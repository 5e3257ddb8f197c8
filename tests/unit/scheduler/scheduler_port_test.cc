// SPDX-License-Identifier: Apache-2.0
// The scheduler behaviours of the C++ port of vLLM: 512 blocks of 16 tokens, prompts of one repeated token.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/unit/scheduler/rig.h"

namespace kvwire::scheduler {
namespace {

constexpr std::string_view kSeed = "vllm.cpp/none_hash/v1";

SchedulerConfig PortConfig(std::uint32_t num_blocks = 512) {
  SchedulerConfig config = SmallConfig(num_blocks, 16);
  config.max_num_seqs = 16;
  config.max_num_batched_tokens = 8192;
  config.max_model_len = 8192;
  return config;
}

std::vector<TokenId> Fill(TokenId token, std::size_t count) { return std::vector<TokenId>(count, token); }

EventTexts Names() {
  EventTexts texts(16);
  texts.Name("one", ChainOf(HasherWithSeed(kSeed), Fill(1, 32), 16));
  texts.Name("five", ChainOf(HasherWithSeed(kSeed), Fill(5, 48), 16));
  texts.Name("nine", ChainOf(HasherWithSeed(kSeed), Fill(9, 48), 16));
  return texts;
}

TEST_CASE("one batch per step, at the end of the update, with wall time and rank") {
  Rig rig(PortConfig(), kSeed, 3);
  rig.Add(1, Fill(1, 32));
  const SchedulerOutput step = rig.Schedule();
  CHECK(rig.publisher().batches().empty());
  rig.clock().wall = 1700000123.25;
  rig.Update(step);
  REQUIRE(rig.publisher().batches().size() == 1);
  const KVEventBatch& batch = rig.publisher().batches().front();
  CHECK(batch.ts == 1700000123.25);
  CHECK(batch.data_parallel_rank == 3);
  REQUIRE(batch.size() == 1);
  const auto stored = std::get<BlockStored>(batch.at(0));
  REQUIRE(stored.block_hashes.size() == 2);
  CHECK(stored.block_hashes[0].Low64() == 8439583300082424625u);
  CHECK(stored.block_hashes[1].Low64() == 17395466715382410675u);
  CHECK(Names().Of(batch) == Texts{"S one0,one1 < nil : 1x32"});
}

TEST_CASE("a step without events publishes nothing") {
  Rig rig(PortConfig(), kSeed);
  rig.Add(1, Fill(1, 32));
  rig.Step();
  CHECK(rig.publisher().batches().size() == 1);
  rig.Step();
  CHECK(rig.publisher().batches().size() == 1);
}

TEST_CASE("shutdown reaches the publisher, once") {
  Rig rig(PortConfig(), kSeed);
  CHECK_FALSE(rig.publisher().closed());
  rig.scheduler().Shutdown();
  CHECK(rig.publisher().closed());
  rig.scheduler().Shutdown();
  CHECK(rig.publisher().stats().submitted == 0);
}

TEST_CASE("a full request reports the reused prefix, then stores the tail; a default one stores the tail") {
  for (const bool exact : {true, false}) {
    for (const bool full : {true, false}) {
      SchedulerConfig config = PortConfig();
      config.vllm_exact = exact;
      Rig rig(config, kSeed);
      const EventTexts texts = Names();
      rig.Add(1, Fill(5, 48));
      rig.Step();
      CHECK(rig.Published(texts) == Texts{"S five0,five1,five2 < nil : 5x48"});
      rig.scheduler().Abort(1);
      rig.Add(2, Fill(5, 48), 16, full ? FullReports() : ExtraArgs());
      rig.Step();
      if (full) {
        CHECK(rig.Published(texts) == Texts{"S five0,five1 < nil : 5x32", "S five2 < five1 : 5x16"});
      } else {
        CHECK(rig.Published(texts) == Texts{"S five2 < five1 : 5x16"});
      }
    }
  }
}

TEST_CASE("with events off the publisher is never called") {
  for (const bool exact : {true, false}) {
    SchedulerConfig config = PortConfig(8);
    config.enable_kv_cache_events = false;
    config.vllm_exact = exact;
    Rig rig(config, kSeed);
    rig.Add(1, Fill(5, 48));
    rig.Step();
    rig.scheduler().Abort(1);
    rig.Add(2, Fill(5, 48), 16, FullReports());
    rig.Step();
    CHECK(rig.scheduler().stats().hit_tokens == 32);
    CHECK(rig.scheduler().ResetPrefixCache(ResetMode::kPreemptRunning));
    rig.Step();
    CHECK(rig.pool().recorded().empty());
    CHECK(rig.publisher().stats() == PublisherStats());
    CHECK(rig.scheduler().stats().events == 0);
    CHECK(rig.pool().digest() == StateDigest());
  }
}

TEST_CASE("with events off no publisher is needed") {
  SchedulerConfig config = PortConfig(8);
  config.enable_kv_cache_events = false;
  auto created = Scheduler::Create(config, HasherWithSeed(kSeed), nullptr);
  REQUIRE(created);
  Scheduler& scheduler = **created;
  NewRequest request;
  request.prompt = Fill(1, 32);
  REQUIRE(scheduler.AddRequest(request));
  const SchedulerOutput step = scheduler.Schedule();
  CHECK(scheduler.UpdateFromOutput(step, RunnerOutput{{{0, 7}}}).size() == 1);
  CHECK(scheduler.ResetPrefixCache(ResetMode::kFailWhileRunning));
  scheduler.Shutdown();
}

TEST_CASE("A10: evictions and stores of one step leave in one batch, evictions first") {
  for (const bool exact : {true, false}) {
    SchedulerConfig config = PortConfig(4);
    config.vllm_exact = exact;
    Rig rig(config, kSeed);
    const EventTexts texts = Names();
    rig.Add(1, Fill(5, 48), 1);
    rig.Step();
    rig.Published(texts);
    rig.Add(2, Fill(9, 32), 1);
    rig.Step();
    CHECK(rig.Published(texts) == Texts{"R five2", "R five1", "S nine0,nine1 < nil : 9x32"});
  }
}

}  // namespace
}  // namespace kvwire::scheduler
