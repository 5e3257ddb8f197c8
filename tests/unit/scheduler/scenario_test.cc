// SPDX-License-Identifier: Apache-2.0
// The scenarios of vLLM's pool and scheduler, event for event, in the mode that keeps its order.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/unit/scheduler/rig.h"

namespace kvwire::scheduler {
namespace {

SchedulerConfig Exact(std::uint32_t num_blocks) {
  SchedulerConfig config = SmallConfig(num_blocks);
  config.vllm_exact = true;
  return config;
}

Blocks TableOf(const SchedulerOutput& step, std::size_t i) { return step.requests.at(i).block_tables[0]; }

TEST_CASE("S1: a prompt, a decoded block, and the free queue afterwards") {
  Rig rig(Exact(8));
  const EventTexts texts = CountedNames();
  rig.Add(1, Range(1, 8));
  SchedulerOutput step = rig.Schedule();
  CHECK(TableOf(step, 0) == Blocks{1, 2});
  rig.Update(step, {9});
  CHECK(rig.Published(texts) == Texts{"S h0,h1 < nil : 1..8"});
  step = rig.Schedule();
  CHECK(TableOf(step, 0) == Blocks{1, 2, 3});
  rig.Update(step, {10});
  rig.Step({11});
  rig.Step({12});
  CHECK(rig.Published(texts).empty());
  rig.Step({13});
  CHECK(rig.Published(texts) == Texts{"S h2 < h1 : 9..12"});
  rig.scheduler().Abort(1);
  CHECK(rig.Published(texts).empty());
  CHECK(rig.FreeQueue() == Blocks{4, 5, 6, 7, 3, 2, 1});
}

TEST_CASE("S2: the same prompt twice, then a request that needs every block") {
  Rig rig(Exact(8));
  EventTexts texts = CountedNames();
  rig.Add(1, Range(1, 8));
  rig.Add(2, Range(1, 8));
  const SchedulerOutput step = rig.Schedule();
  CHECK(TableOf(step, 1) == Blocks{1, 3});
  CHECK(step.requests[1].num_computed_tokens == 4);
  rig.Update(step);
  CHECK(rig.Published(texts) == Texts{"S h0,h1 < nil : 1..8", "S h1 < h0 : 5..8"});
  rig.scheduler().Abort(1);
  rig.scheduler().Abort(2);
  CHECK(rig.FreeQueue() == Blocks{4, 5, 6, 7, 2, 3, 1});
  texts.Name("c", ChainOf(HasherWithSeed("0"), Range(100, 28), 4));
  rig.Add(3, Range(100, 28), 1);
  rig.Step();
  CHECK(rig.Published(texts) == Texts{"R h1", "R h1", "R h0", "S c0,c1,c2,c3,c4,c5,c6 < nil : 100..127"});
}

TEST_CASE("S3: what a full report announces") {
  Rig rig(Exact(16));
  const EventTexts texts = CountedNames();
  rig.Add(1, Range(1, 12));
  rig.Step();
  rig.scheduler().Abort(1);
  CHECK(rig.Published(texts) == Texts{"S h0,h1,h2 < nil : 1..12"});
  SUBCASE("a hit of every cached block") {
    rig.Add(2, Range(1, 13), 16, FullReports());
    rig.Step();
    CHECK(rig.Published(texts) == Texts{"S h0,h1,h2 < nil : 1..12"});
    CHECK(rig.scheduler().stats().hit_tokens == 12);
  }
  SUBCASE("a hit of all but the last, which is computed again") {
    rig.Add(3, Range(1, 12), 16, FullReports());
    rig.Step();
    CHECK(rig.Published(texts) == Texts{"S h0,h1 < nil : 1..8", "S h2 < h1 : 9..12"});
  }
  SUBCASE("another spelling is incremental") {
    rig.Add(4, Range(1, 12), 16, {{"kv_cache_report_mode", std::string("FULL")}});
    rig.Step();
    CHECK(rig.Published(texts) == Texts{"S h2 < h1 : 9..12"});
  }
}

TEST_CASE("S4: a prompt in chunks of 6, 6 and 2 tokens") {
  SchedulerConfig config = Exact(8);
  config.max_num_batched_tokens = 6;
  Rig rig(config);
  const EventTexts texts = CountedNames();
  rig.Add(1, Range(1, 14), 4);
  SchedulerOutput step = rig.Schedule();
  CHECK(step.requests[0].num_scheduled_tokens == 6);
  CHECK_FALSE(step.requests[0].samples);
  rig.Update(step);
  CHECK(rig.Published(texts) == Texts{"S h0 < nil : 1..4"});
  step = rig.Schedule();
  CHECK(step.requests[0].num_computed_tokens == 6);
  rig.Update(step);
  CHECK(rig.Published(texts) == Texts{"S h1,h2 < h0 : 5..12"});
  step = rig.Schedule();
  CHECK(step.requests[0].num_scheduled_tokens == 2);
  CHECK(step.requests[0].samples);
  rig.Update(step);
  CHECK(rig.Published(texts).empty());
}

TEST_CASE("S8: a reset while busy, idle, and again") {
  Rig rig(Exact(8));
  const EventTexts texts = CountedNames();
  rig.Add(1, Range(1, 8));
  rig.Step();
  rig.Published(texts);
  CHECK_FALSE(rig.scheduler().ResetPrefixCache(ResetMode::kFailWhileRunning));
  CHECK(rig.Published(texts).empty());
  rig.scheduler().Abort(1);
  CHECK(rig.scheduler().ResetPrefixCache(ResetMode::kFailWhileRunning));
  CHECK(rig.Published(texts) == Texts{"C"});
  CHECK(rig.scheduler().ResetPrefixCache(ResetMode::kFailWhileRunning));
  CHECK(rig.Published(texts) == Texts{"C"});
  rig.Add(2, Range(1, 8));
  const SchedulerOutput step = rig.Schedule();
  CHECK(TableOf(step, 0) == Blocks{3, 4});
  rig.Update(step);
  CHECK(rig.Published(texts) == Texts{"S h0,h1 < nil : 1..8"});
}

TEST_CASE("S9: without prefix caching nothing is stored, and a reset is announced all the same") {
  SchedulerConfig config = Exact(6);
  config.enable_prefix_caching = false;
  Rig rig(config);
  const EventTexts texts = CountedNames();
  rig.Add(1, Range(1, 8), 4);
  rig.Step();
  CHECK(rig.Published(texts).empty());
  rig.scheduler().Abort(1);
  CHECK(rig.FreeQueue() == Blocks{2, 1, 3, 4, 5});
  CHECK(rig.scheduler().ResetPrefixCache(ResetMode::kFailWhileRunning));
  CHECK(rig.Published(texts) == Texts{"C"});
}

TEST_CASE("S10: adapter and salt are in hashes, extra keys and LoRA fields") {
  Rig rig(Exact(8));
  NewRequest request;
  request.id = 1;
  request.prompt = Range(1, 8);
  request.lora = LoraAdapter{42, "my_lora"};
  request.cache_salt = "s";
  REQUIRE(rig.scheduler().AddRequest(request));
  rig.Step();
  CHECK(rig.Published(EventTexts(4)) ==
        Texts{"S 1942634994386164600,17985991987034172171 < nil : 1..8 [keys (my_lora s) (my_lora)] "
              "[lora 42 my_lora]"});
}

TEST_CASE("S14: a full request that cannot be admitted reports at every attempt in this mode, once in ours") {
  for (const bool exact : {true, false}) {
    CAPTURE(exact);
    SchedulerConfig config = Exact(8);
    config.vllm_exact = exact;
    Rig rig(config);
    EventTexts texts = CountedNames();
    texts.Name("a", ChainOf(
                        HasherWithSeed("0"),
                        [] {
                          std::vector<TokenId> tokens = Range(100, 19);
                          tokens.push_back(7);
                          return tokens;
                        }(),
                        4));
    rig.Add(1, Range(1, 8), 1);
    rig.Step();
    rig.Published(texts);
    rig.Add(2, Range(100, 19), 2);
    rig.Add(3, Range(1, 13), 2, FullReports());
    const std::string report = "S h0,h1 < nil : 1..8";
    rig.Step();
    rig.Step();
    rig.Step();
    const Texts published = rig.Published(texts);
    if (exact) {
      CHECK(published == Texts{"S a0,a1,a2,a3 < nil : 100..115", report, "|", "S a4 < a3 : 116,117,118,7", report, "|",
                               report, "R a4", "R a3", "S h2 < h1 : 9..12"});
    } else {
      CHECK(published == Texts{"S a0,a1,a2,a3 < nil : 100..115", "|", "S a4 < a3 : 116,117,118,7", "|", "R a4", "R a3",
                               report, "S h2 < h1 : 9..12"});
    }
  }
}

TEST_CASE("stores of an aborted request stay announced in this mode") {
  Rig rig(Exact(8));
  const EventTexts texts = CountedNames();
  rig.Add(1, Range(1, 8));
  const SchedulerOutput step = rig.Schedule();
  rig.scheduler().Abort(1);
  rig.Update(step);
  CHECK(rig.Published(texts) == Texts{"S h0,h1 < nil : 1..8"});
}

}  // namespace
}  // namespace kvwire::scheduler
