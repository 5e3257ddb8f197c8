// SPDX-License-Identifier: Apache-2.0
// Faults that other event producers have had.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/unit/scheduler/rig.h"

namespace kvwire::scheduler {
namespace {

TEST_CASE("D1: two copies of a hash are two stores; evicting one leaves the hash, evicting both removes it") {
  for (const Removals removals : {Removals::kExact, Removals::kPerCopy}) {
    SchedulerConfig config = SmallConfig(16);
    config.removals = removals;
    Rig rig(config);
    const EventTexts texts = CountedNames();
    rig.Add(1, Range(1, 8), 1);
    rig.Step();
    rig.Add(2, Range(1, 8), 1);
    rig.Step();
    CHECK(rig.Published(texts) == Texts{"S h0,h1 < nil : 1..8", "|", "S h1 < h0 : 5..8"});
    const BlockHash h1 = ChainOf(HasherWithSeed("0"), Range(1, 8), 4)[1];
    CHECK(rig.pool().num_copies(h1, 0) == 2);
    REQUIRE(rig.scheduler().EvictBlocks(Blocks{2}));
    CHECK(rig.Published(texts) == (removals == Removals::kExact ? Texts{} : Texts{"R h1"}));
    CHECK(rig.pool().FindCached(h1, 0) == 3);
    CHECK(rig.pool().digest().entries().at(0).count == 2);
    REQUIRE(rig.scheduler().EvictBlocks(Blocks{3}));
    CHECK(rig.Published(texts) == (removals == Removals::kExact ? Texts{"R h1", "R h1"} : Texts{"R h1"}));
    CHECK(rig.pool().FindCached(h1, 0) == kNullBlock);
    CHECK(rig.pool().digest().entries().at(0).count == 1);
  }
}

TEST_CASE("D8: a block whose parent was taken away before it was announced is not announced either") {
  Rig rig(SmallConfig(16));
  const EventTexts texts = CountedNames();
  rig.Add(1, Range(1, 14));
  SchedulerOutput step = rig.Schedule();
  REQUIRE(rig.scheduler().EvictBlocks(Blocks{2}));
  CHECK(rig.Published(texts).empty());
  rig.Update(step, {15});
  CHECK(rig.Published(texts) == Texts{"S h0 < nil : 1..4"});
  rig.Step({16});
  rig.Step({17});
  // The block of 13..16 is full now; its parent is not cached.
  CHECK(rig.Published(texts).empty());
  rig.scheduler().Abort(1);
  // A new request starts a sound chain again.
  rig.Add(2, Range(1, 16), 1);
  rig.Step();
  CHECK(rig.Published(texts) == Texts{"S h1,h2,h3 < h0 : 5..16"});
}

TEST_CASE("D9: the first new block after a prefix hit has the last reused block as parent") {
  Rig rig(SmallConfig(16));
  const EventTexts texts = CountedNames();
  rig.Add(1, Range(1, 8), 1);
  rig.Step();
  rig.Published(texts);
  rig.Add(2, Range(1, 20), 1);
  rig.Step();
  CHECK(rig.Published(texts) == Texts{"S h2,h3,h4 < h1 : 9..20"});
}

TEST_CASE("D9: a block in the middle that is cached already is not stored again; the next one's parent is it") {
  Rig rig(SmallConfig(16));
  const EventTexts texts = CountedNames();
  rig.Add(1, Range(1, 20), 1);
  rig.Step();
  rig.Published(texts);
  // Only the second block stays.
  REQUIRE(rig.scheduler().EvictBlocks(Blocks{1, 3, 4, 5}));
  CHECK(rig.Published(texts) == Texts{"R h0", "R h2", "R h3", "R h4"});
  rig.Add(2, Range(1, 4), 1);
  rig.Step();
  CHECK(rig.Published(texts) == Texts{"S h0 < nil : 1..4"});
  rig.Add(3, Range(1, 20), 1);
  rig.Step();
  CHECK(rig.Published(texts) == Texts{"S h2,h3,h4 < h1 : 9..20"});
}

TEST_CASE("D10: full mode announces the four reused blocks, then the new one; incremental only the new one") {
  for (const bool full : {true, false}) {
    Rig rig(SmallConfig(16));
    const EventTexts texts = CountedNames();
    rig.Add(1, Range(1, 16), 1);
    rig.Step();
    rig.Published(texts);
    rig.Add(2, Range(1, 20), 1, full ? FullReports() : ExtraArgs());
    rig.Step();
    const Texts tail = {"S h4 < h3 : 17..20"};
    CHECK(rig.Published(texts) == (full ? Texts{"S h0,h1,h2,h3 < nil : 1..16", tail[0]} : tail));
    // A consumer that counts is not left with the report.
    CHECK(rig.scheduler().EvictHash(ChainOf(HasherWithSeed("0"), Range(1, 4), 4)[0]) == 1);
    CHECK(rig.Published(texts) == (full ? Texts{"R h0", "R h0"} : Texts{"R h0"}));
    CHECK(rig.scheduler().stats().reported == (full ? 4u : 0u));
    CHECK(rig.scheduler().stats().stored == 5);
  }
}

TEST_CASE("D11: a request that is aborted before the update announces nothing and leaves nothing to hit") {
  Rig rig(SmallConfig(16));
  const EventTexts texts = CountedNames();
  rig.Add(1, Range(1, 12));
  const SchedulerOutput step = rig.Schedule();
  REQUIRE(rig.scheduler().Abort(1));
  rig.Update(step);
  CHECK(rig.Published(texts).empty());
  for (const BlockHash& hash : ChainOf(HasherWithSeed("0"), Range(1, 12), 4)) {
    CHECK(rig.pool().FindCached(hash, 0) == kNullBlock);
  }
  CHECK(rig.pool().num_free() == 15);
}

TEST_CASE("D11: what a request that was executed holds of an aborted one is announced") {
  Rig rig(SmallConfig(16));
  const EventTexts texts = CountedNames();
  rig.Add(1, Range(1, 12));
  rig.Add(2, Range(1, 9));
  const SchedulerOutput step = rig.Schedule();
  CHECK(step.requests[1].num_computed_tokens == 8);
  REQUIRE(rig.scheduler().Abort(1));
  rig.Update(step);
  CHECK(rig.Published(texts) == Texts{"S h0,h1 < nil : 1..8"});
  CHECK(rig.pool().FindCached(ChainOf(HasherWithSeed("0"), Range(1, 12), 4)[2], 0) == kNullBlock);
}

TEST_CASE("D11: a request preempted before the update announces nothing until it runs again") {
  Rig rig(SmallConfig(16));
  const EventTexts texts = CountedNames();
  rig.Add(1, Range(1, 8));
  const SchedulerOutput step = rig.Schedule();
  CHECK_FALSE(rig.scheduler().ResetPrefixCache(ResetMode::kFailWhileRunning));
  CHECK(rig.scheduler().ResetPrefixCache(ResetMode::kPreemptRunning));
  CHECK(rig.Published(texts).empty());
  rig.Update(step, {99});
  CHECK(rig.Published(texts) == Texts{"C"});
  CHECK(rig.scheduler().num_waiting() == 1);
  rig.Step({9});
  CHECK(rig.Published(texts) == Texts{"S h0,h1 < nil : 1..8"});
  CHECK(rig.scheduler().stats().output_tokens == 1);
}

TEST_CASE("D12: nothing is published while the model runs") {
  Rig rig(SmallConfig(8));
  rig.Add(1, Range(1, 8), 1);
  rig.Step();
  CHECK(rig.publisher().stats().submitted == 1);
  rig.Add(2, Range(100, 20), 1);
  const SchedulerOutput step = rig.Schedule();
  CHECK(rig.publisher().stats().submitted == 1);
  // Changes from outside wait for the step too.
  REQUIRE(rig.scheduler().EvictBlocks(Blocks{1, 2}));
  CHECK(rig.publisher().stats().submitted == 1);
  rig.Update(step);
  CHECK(rig.publisher().stats().submitted == 2);
}

TEST_CASE(
    "D17: stores never exceed the confirmed tokens, and neither rejected drafts nor placeholders are in an event") {
  SchedulerConfig config = SmallConfig(20);
  config.num_speculative_tokens = 3;
  Rig rig(config);
  EventTexts texts(4);
  texts.Name("h", ChainOf(HasherWithSeed("0"), Range(1, 16), 4));
  rig.Add(1, Range(1, 6), 8);
  SchedulerOutput step = rig.Schedule();
  constexpr TokenId kPlaceholder = 0xffffffffu;
  // Of four guesses three are taken, of these none is a placeholder.
  RunnerOutput output{{{1, 7}}, {{1, {8, 99, 10, 11}}}};
  rig.scheduler().UpdateFromOutput(step, output);
  CHECK(rig.Published(texts) == Texts{"S h0 < nil : 1..4"});
  step = rig.Schedule();
  REQUIRE(step.requests.size() == 1);
  CHECK(step.requests[0].num_scheduled_tokens == 4);
  CHECK(std::vector<TokenId>(step.requests[0].draft_token_ids.begin(), step.requests[0].draft_token_ids.end()) ==
        std::vector<TokenId>{8, 99, 10});
  // 8 was right, 99 was not: 9 follows. Block 1 holds 5..8, confirmed only now; it is announced with the next step.
  output = {{{1, 8}, {1, 9}}, {{1, {kPlaceholder, 11}}}};
  rig.scheduler().UpdateFromOutput(step, output);
  CHECK(rig.Published(texts).empty());
  step = rig.Schedule();
  CHECK(step.requests[0].num_computed_tokens == 8);
  CHECK(step.requests[0].draft_token_ids.empty());
  output = {{{1, 10}}, {{1, {11, 12, 13}}}};
  rig.scheduler().UpdateFromOutput(step, output);
  CHECK(rig.Published(texts) == Texts{"S h1 < h0 : 5..8"});
  step = rig.Schedule();
  // One more token than the drafts that were right; what else the runner says is not believed.
  output = {{{1, 11}, {1, 12}, {1, 13}, {1, 14}, {1, 15}}, {}};
  const std::vector<FinishedRequest> finished = rig.scheduler().UpdateFromOutput(step, output);
  REQUIRE(finished.size() == 1);
  CHECK(finished[0].output == Range(7, 8));
  CHECK(rig.scheduler().stats().draft_tokens == 6);
  CHECK(rig.scheduler().stats().accepted_draft_tokens == 4);
}

TEST_CASE("a request that may not grow as far gets fewer drafts, and a preempted one none") {
  SchedulerConfig config = SmallConfig(20);
  config.num_speculative_tokens = 8;
  Rig rig(config);
  rig.Add(1, Range(1, 6), 3);
  rig.Add(2, Range(101, 6), 8);
  SchedulerOutput step = rig.Schedule();
  rig.scheduler().UpdateFromOutput(step, {{{1, 7}, {2, 107}}, {{1, {8, 9, 10}}, {2, {108, 109}}}});
  REQUIRE(rig.scheduler().PreemptNewest() == RequestId{2});
  step = rig.Schedule();
  REQUIRE(step.requests.size() == 2);
  CHECK(step.requests[0].draft_token_ids.size() == 1);
  CHECK(step.requests[1].draft_token_ids.empty());
}

TEST_CASE("D20: events without prefix caching are warned about, and the effective state can be asked") {
  CollectingEventPublisher publisher;
  for (const bool events : {true, false}) {
    for (const bool caching : {true, false}) {
      Texts warnings;
      SchedulerConfig config = SmallConfig(8);
      config.enable_kv_cache_events = events;
      config.enable_prefix_caching = caching;
      config.log = [&](LogLevel level, std::string_view text) {
        CHECK(level == LogLevel::kWarning);
        warnings.emplace_back(text);
      };
      auto created = Scheduler::Create(config, HasherWithSeed("0"), &publisher);
      REQUIRE(created);
      CHECK((*created)->events_effective() == (events && caching));
      REQUIRE(warnings.size() == (events && !caching ? 1 : 0));
      if (warnings.empty()) continue;
      CHECK(warnings[0].find("enable_kv_cache_events") != std::string::npos);
      CHECK(warnings[0].find("enable_prefix_caching") != std::string::npos);
    }
  }
}

// Says in which order it was called.
class OrderPublisher final : public EventPublisher {
 public:
  PublishResult Publish(KVEventBatch&& batch) noexcept override {
    calls.push_back("publish " + std::to_string(batch.size()));
    return full ? PublishResult::kDroppedQueueFull : PublishResult::kAccepted;
  }
  void Wake() noexcept override { calls.push_back("wake"); }
  using EventPublisher::Close;
  void Close(std::chrono::milliseconds deadline) noexcept override {
    calls.push_back("close " + std::to_string(deadline.count()));
  }
  PublisherStats stats() const noexcept override { return {}; }

  Texts calls;
  bool full = false;
};

TEST_CASE("A9: what happens on an idle engine is published and the publisher woken at once") {
  OrderPublisher publisher;
  auto created = Scheduler::Create(SmallConfig(8), HasherWithSeed("0"), &publisher);
  REQUIRE(created);
  Scheduler& scheduler = **created;
  NewRequest request;
  request.prompt = Range(1, 8);
  REQUIRE(scheduler.AddRequest(request));
  const SchedulerOutput step = scheduler.Schedule();
  scheduler.UpdateFromOutput(step, RunnerOutput{{{0, 7}}});
  // In a step the host places the wake.
  CHECK(publisher.calls == Texts{"publish 1"});
  SUBCASE("reset") {
    REQUIRE(scheduler.ResetPrefixCache(ResetMode::kFailWhileRunning));
    CHECK(publisher.calls == Texts{"publish 1", "publish 1", "wake"});
  }
  SUBCASE("blocks taken away by id") {
    REQUIRE(scheduler.EvictBlocks(Blocks{1, 2}));
    CHECK(publisher.calls == Texts{"publish 1", "publish 2", "wake"});
  }
  SUBCASE("a hash taken away") {
    CHECK(scheduler.EvictHash(ChainOf(HasherWithSeed("0"), Range(1, 8), 4)[1]) == 1);
    CHECK(publisher.calls == Texts{"publish 1", "publish 1", "wake"});
  }
  SUBCASE("nothing happened") {
    REQUIRE(scheduler.EvictBlocks(Blocks{5}));
    CHECK(publisher.calls == Texts{"publish 1"});
  }
}

TEST_CASE("A9: what is recorded in an unfinished step leaves before the publisher is closed") {
  OrderPublisher publisher;
  auto created = Scheduler::Create(SmallConfig(8), HasherWithSeed("0"), &publisher);
  REQUIRE(created);
  Scheduler& scheduler = **created;
  NewRequest request;
  request.prompt = Range(1, 8);
  REQUIRE(scheduler.AddRequest(request));
  SchedulerOutput step = scheduler.Schedule();
  scheduler.UpdateFromOutput(step, RunnerOutput{{{0, 7}}});
  request.prompt = Range(100, 28);
  REQUIRE(scheduler.AddRequest(request));
  step = scheduler.Schedule();
  scheduler.Shutdown(std::chrono::milliseconds(50));
  CHECK(publisher.calls == Texts{"publish 1", "publish 2", "close 50"});
}

TEST_CASE("a batch that the publisher does not take is counted") {
  OrderPublisher publisher;
  publisher.full = true;
  auto created = Scheduler::Create(SmallConfig(8), HasherWithSeed("0"), &publisher);
  REQUIRE(created);
  REQUIRE((*created)->ResetPrefixCache(ResetMode::kFailWhileRunning));
  const SchedulerStats stats = (*created)->stats();
  CHECK(stats.batches == 1);
  CHECK(stats.dropped_batches == 1);
  CHECK(stats.events == 1);
  CHECK(stats.clears == 1);
}

}  // namespace
}  // namespace kvwire::scheduler
