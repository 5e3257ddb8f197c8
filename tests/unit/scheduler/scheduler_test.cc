// SPDX-License-Identifier: Apache-2.0
#include "scheduler/scheduler.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/unit/scheduler/rig.h"

namespace kvwire::scheduler {
namespace {

std::vector<RequestId> IdsOf(const SchedulerOutput& step) {
  std::vector<RequestId> ids;
  for (const ScheduledRequest& request : step.requests) ids.push_back(request.id);
  return ids;
}

std::string Refusal(Rig& rig, RequestId id, std::vector<TokenId> prompt, std::uint32_t max_tokens) {
  NewRequest request;
  request.id = id;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  const Status added = rig.scheduler().AddRequest(std::move(request));
  return added ? "" : added.error().message;
}

TEST_CASE("a configuration that cannot work is refused by field, value and bound") {
  CollectingEventPublisher publisher;
  const auto refusal = [&](const SchedulerConfig& config, EventPublisher* to) {
    const auto created = Scheduler::Create(config, HasherWithSeed("0"), to);
    return created ? std::string() : created.error().message;
  };
  SchedulerConfig config = SmallConfig(1);
  CHECK(refusal(config, &publisher) == "num_blocks is 1; allowed: 2 or more");
  config = SmallConfig(8, 0);
  CHECK(refusal(config, &publisher) == "block_size is 0; allowed: 1 or more");
  config = SmallConfig(8);
  config.max_num_seqs = 0;
  CHECK(refusal(config, &publisher) == "max_num_seqs is 0; allowed: 1 or more");
  config = SmallConfig(8);
  config.max_num_batched_tokens = 0;
  CHECK(refusal(config, &publisher) == "max_num_batched_tokens is 0; allowed: 1 or more");
  config = SmallConfig(8);
  config.max_model_len = 1;
  CHECK(refusal(config, &publisher) == "max_model_len is 1; allowed: 2 or more");
  CHECK(refusal(SmallConfig(8), nullptr) == "enable_kv_cache_events is true, but there is no publisher");
  CHECK(refusal(SmallConfig(8), &publisher).empty());
}

TEST_CASE("a request that cannot be served is refused with the reason") {
  SchedulerConfig config = SmallConfig(8);
  config.max_model_len = 64;
  Rig rig(config);
  CHECK(Refusal(rig, 1, {}, 1) == "the prompt is empty");
  CHECK(Refusal(rig, 1, {1}, 0) == "max_tokens is 0; allowed: 1 or more");
  CHECK(Refusal(rig, 1, {1, 0x80000000u}, 1) == "token 1 of the prompt is 2147483648; allowed: 0 to 2147483647");
  CHECK(Refusal(rig, 1, Range(1, 60), 5) == "prompt and max_tokens make 65 tokens; max_model_len is 64");
  CHECK(Refusal(rig, 1, Range(1, 20), 10) == "the request needs 8 blocks; the pool has 7");
  CHECK(Refusal(rig, 1, Range(1, 20), 9).empty());
  CHECK(Refusal(rig, 1, Range(1, 4), 1) == "request id 1 is in use");
  CHECK(rig.scheduler().stats().requests_refused == 6);
  CHECK(rig.scheduler().stats().requests_added == 1);
  rig.scheduler().Shutdown();
  CHECK(Refusal(rig, 2, Range(1, 4), 1) == "the scheduler is shut down");
}

TEST_CASE("the largest request that fits runs to its end") {
  Rig rig(SmallConfig(8));
  rig.Add(1, Range(1, 20), 9);
  std::size_t finished = 0;
  for (int step = 0; step < 9; ++step) finished += rig.Step().size();
  CHECK(finished == 1);
  CHECK_FALSE(rig.scheduler().has_unfinished_requests());
}

TEST_CASE("a finished request comes back with its output and its counts, and its id is free again") {
  Rig rig(SmallConfig(16));
  rig.Add(1, Range(1, 8), 1);
  rig.Step();
  rig.Add(1, Range(1, 10), 3);
  CHECK(rig.Step({50}).empty());
  CHECK(rig.Step({51}).empty());
  const std::vector<FinishedRequest> finished = rig.Step({52});
  REQUIRE(finished.size() == 1);
  CHECK(finished[0].id == 1);
  CHECK(finished[0].reason == FinishReason::kLength);
  CHECK(finished[0].num_prompt_tokens == 10);
  CHECK(finished[0].num_cached_tokens == 8);
  CHECK(finished[0].num_preemptions == 0);
  CHECK(finished[0].output == std::vector<TokenId>{50, 51, 52});
  CHECK(rig.scheduler().Schedule().empty());
  CHECK(rig.pool().num_free() == 15);
}

TEST_CASE("the token budget is shared: running requests first, then the waiting in order") {
  SchedulerConfig config = SmallConfig(64);
  config.max_num_batched_tokens = 10;
  Rig rig(config);
  rig.Add(1, Range(1, 7));
  rig.Add(2, Range(100, 8));
  rig.Add(3, Range(200, 2));
  SchedulerOutput step = rig.Schedule();
  CHECK(IdsOf(step) == std::vector<RequestId>{1, 2});
  CHECK(step.requests[1].num_scheduled_tokens == 3);
  CHECK_FALSE(step.requests[1].samples);
  CHECK(step.num_scheduled_tokens == 10);
  rig.Update(step);
  step = rig.Schedule();
  CHECK(IdsOf(step) == std::vector<RequestId>{1, 2, 3});
  CHECK(step.requests[0].num_scheduled_tokens == 1);
  CHECK(step.requests[1].num_computed_tokens == 3);
  CHECK(step.requests[1].num_scheduled_tokens == 5);
  CHECK(step.requests[2].num_scheduled_tokens == 2);
  rig.Update(step);
}

TEST_CASE("no more than max_num_seqs requests run") {
  SchedulerConfig config = SmallConfig(64);
  config.max_num_seqs = 2;
  Rig rig(config);
  for (RequestId id = 1; id <= 3; ++id) rig.Add(id, Range(static_cast<TokenId>(100 * id), 4), 2);
  CHECK(IdsOf(rig.Schedule()) == std::vector<RequestId>{1, 2});
  CHECK(rig.scheduler().num_waiting() == 1);
}

TEST_CASE("the request admitted last is preempted, and computes again with what is still cached") {
  Rig rig(SmallConfig(6));
  EventTexts texts = CountedNames();
  texts.Name("b", ChainOf(HasherWithSeed("0"), Range(101, 8), 4));
  rig.Add(1, Range(1, 8), 4);
  rig.Add(2, Range(101, 8), 4);
  rig.Step({9, 109});
  CHECK(rig.Published(texts) == Texts{"S h0,h1 < nil : 1..8", "S b0,b1 < nil : 101..108"});
  // Each needs a third block; there is one.
  SchedulerOutput step = rig.Schedule();
  CHECK(IdsOf(step) == std::vector<RequestId>{1});
  CHECK(rig.scheduler().num_waiting() == 1);
  CHECK(rig.scheduler().stats().preemptions == 1);
  rig.Update(step, {10});
  rig.Step({11});
  CHECK(rig.Step({12}).size() == 1);
  CHECK(rig.Published(texts).empty());
  step = rig.Schedule();
  CHECK(IdsOf(step) == std::vector<RequestId>{2});
  CHECK(step.requests[0].num_computed_tokens == 8);
  CHECK(step.requests[0].token_ids.back() == 109);
  rig.Update(step, {110});
  rig.Step({111});
  const std::vector<FinishedRequest> finished = rig.Step({112});
  REQUIRE(finished.size() == 1);
  CHECK(finished[0].output == std::vector<TokenId>{109, 110, 111, 112});
  CHECK(finished[0].num_preemptions == 1);
  // A second admission is not a second prompt.
  CHECK(rig.scheduler().stats().prompt_tokens == 16);
  CHECK(rig.scheduler().stats().hit_tokens == 0);
}

TEST_CASE("a preempted request goes before those that wait") {
  Rig rig(SmallConfig(6));
  rig.Add(1, Range(1, 8), 4);
  rig.Add(2, Range(101, 8), 4);
  rig.Step();
  rig.Add(3, Range(201, 4), 1);
  SchedulerOutput step = rig.Schedule();
  CHECK(IdsOf(step) == std::vector<RequestId>{1});
  CHECK(rig.scheduler().num_waiting() == 2);
  rig.scheduler().Abort(1);
  rig.Update(step);
  step = rig.Schedule();
  CHECK(IdsOf(step) == std::vector<RequestId>{2, 3});
}

TEST_CASE("what a step's output points to stays valid when its requests are aborted or preempted") {
  Rig rig(SmallConfig(16));
  rig.Add(1, Range(1, 8));
  rig.Add(2, Range(101, 8));
  const SchedulerOutput step = rig.Schedule();
  REQUIRE(rig.scheduler().Abort(1));
  CHECK_FALSE(rig.scheduler().Abort(1));
  REQUIRE(rig.scheduler().ResetPrefixCache(ResetMode::kPreemptRunning));
  rig.Add(1, Range(201, 8));
  CHECK(Blocks(step.requests[0].block_tables[0].begin(), step.requests[0].block_tables[0].end()) == Blocks{1, 2});
  CHECK(step.requests[0].token_ids.front() == 1);
  CHECK(Blocks(step.requests[1].block_tables[0].begin(), step.requests[1].block_tables[0].end()) == Blocks{3, 4});
  CHECK(step.requests[1].token_ids.front() == 101);
  rig.Update(step, {50, 51});
  CHECK(rig.scheduler().stats().output_tokens == 0);
  CHECK(IdsOf(rig.Schedule()) == std::vector<RequestId>{2, 1});
}

TEST_CASE("an abort of a waiting request and of an unknown one") {
  SchedulerConfig config = SmallConfig(16);
  config.max_num_seqs = 1;
  Rig rig(config);
  rig.Add(1, Range(1, 8), 2);
  rig.Add(2, Range(101, 8), 2);
  rig.Step();
  CHECK(rig.scheduler().Abort(2));
  CHECK_FALSE(rig.scheduler().Abort(3));
  rig.Step();
  CHECK_FALSE(rig.scheduler().has_unfinished_requests());
  CHECK(rig.scheduler().stats().requests_aborted == 1);
  CHECK(rig.scheduler().stats().requests_finished == 1);
}

TEST_CASE("a request for which the runner gives no token ends with an error, the others go on") {
  Texts errors;
  SchedulerConfig config = SmallConfig(16);
  config.log = [&](LogLevel level, std::string_view text) {
    CHECK(level == LogLevel::kError);
    errors.emplace_back(text);
  };
  Rig rig(config);
  rig.Add(1, Range(1, 8), 4);
  rig.Add(2, Range(101, 8), 4);
  SchedulerOutput step = rig.Schedule();
  std::vector<FinishedRequest> finished = rig.scheduler().UpdateFromOutput(step, RunnerOutput{{{2, 50}}});
  REQUIRE(finished.size() == 1);
  CHECK(finished[0].id == 1);
  CHECK(finished[0].reason == FinishReason::kError);
  CHECK(errors == Texts{"the runner gave no token for request 1"});
  step = rig.Schedule();
  CHECK(IdsOf(step) == std::vector<RequestId>{2});
  finished = rig.scheduler().UpdateFromOutput(step, RunnerOutput{{{2, 0x80000000u}}});
  CHECK(finished.size() == 1);
  CHECK(rig.pool().num_free() == 15);
}

TEST_CASE("D11: blocks of a request that the runner did not execute are never announced") {
  Rig rig(SmallConfig(16));
  rig.Add(1, Range(1, 8), 4);
  rig.Add(2, Range(101, 8), 4);
  const SchedulerOutput step = rig.Schedule();
  rig.scheduler().UpdateFromOutput(step, RunnerOutput{{{2, 50}}});
  CHECK(rig.scheduler().stats().stored == 2);  // those of request 2
  // The same prompt again finds nothing.
  rig.Add(3, Range(1, 8), 1);
  rig.Step();
  CHECK(rig.scheduler().stats().hit_blocks == 0);
}

TEST_CASE("a blocked request is admitted as soon as blocks come free") {
  Rig rig(SmallConfig(8));
  rig.Add(1, Range(1, 19), 4);
  rig.Add(2, Range(101, 12), 1);
  for (int i = 0; i < 3; ++i) {
    const SchedulerOutput step = rig.Schedule();
    CHECK(IdsOf(step) == std::vector<RequestId>{1});
    CHECK(rig.Update(step).empty());
  }
  CHECK(rig.scheduler().num_running() == 1);
  rig.scheduler().Abort(1);
  CHECK(IdsOf(rig.Schedule()) == std::vector<RequestId>{2});
}

TEST_CASE("a blocked request is admitted when what it needs becomes a hit in blocks that others hold") {
  Rig rig(SmallConfig(8));
  // 1 decodes the very tokens that 2 has as its prompt.
  rig.Add(1, Range(1, 15), 6);
  rig.Add(2, Range(1, 18), 1);
  SchedulerOutput step = rig.Schedule();
  CHECK(IdsOf(step) == std::vector<RequestId>{1, 2});
  rig.Update(step, {16, 30});
  rig.Add(3, Range(1, 20), 1);
  rig.Add(4, Range(200, 20), 1);
  step = rig.Schedule();
  // 3 finds the four blocks that 1 fills in this step; 4 finds no room.
  CHECK(IdsOf(step) == std::vector<RequestId>{1, 3});
  CHECK(step.requests[1].num_computed_tokens == 16);
  rig.Update(step, {17, 30});
}

TEST_CASE("a request that would fit does not overtake a blocked one") {
  Rig rig(SmallConfig(7));
  rig.Add(1, Range(1, 5), 4);
  rig.Add(2, Range(101, 5), 4);
  rig.Step();
  rig.Add(3, Range(201, 9), 1);
  rig.Add(4, Range(301, 4), 1);
  for (int i = 0; i < 2; ++i) {
    const SchedulerOutput step = rig.Schedule();
    CHECK(IdsOf(step) == std::vector<RequestId>{1, 2});
    rig.Update(step);
  }
  CHECK(rig.scheduler().num_waiting() == 2);
}

TEST_CASE("prompt figures: hits, new blocks and the copy of a block that had to be computed again") {
  Rig rig(SmallConfig(32));
  rig.Add(1, Range(1, 8), 1);
  rig.Step();
  rig.Add(2, Range(1, 8), 1);
  rig.Step();
  rig.Add(3, Range(1, 13), 1);
  rig.Step();
  const SchedulerStats stats = rig.scheduler().stats();
  CHECK(stats.prompt_tokens == 29);
  CHECK(stats.full_prompt_blocks == 7);
  CHECK(stats.hit_tokens == 12);
  CHECK(stats.hit_blocks == 3);
  CHECK(stats.new_prompt_blocks == 3);
  CHECK(stats.stored == 4);
  CHECK(stats.steps == 3);
  CHECK(stats.scheduled_tokens == 17);
  CHECK(stats.output_tokens == 3);
  CHECK(stats.batches == 3);
  CHECK(stats.events == 3);
}

TEST_CASE("blocks of output tokens are stored too and can be hit") {
  Rig rig(SmallConfig(16));
  const EventTexts texts = CountedNames();
  rig.Add(1, Range(1, 6), 4);
  rig.Step({7});
  rig.Step({8});
  rig.Step({9});
  rig.Step({10});
  CHECK(rig.Published(texts) == Texts{"S h0 < nil : 1..4", "|", "S h1 < h0 : 5..8"});
  rig.Add(2, Range(1, 12), 1);
  CHECK(rig.Schedule().requests[0].num_computed_tokens == 8);
}

TEST_CASE("another adapter or another salt is another prefix") {
  Rig rig(SmallConfig(32));
  NewRequest request;
  request.prompt = Range(1, 9);
  const auto computed = [&] {
    ++request.id;
    REQUIRE(rig.scheduler().AddRequest(request));
    const SchedulerOutput step = rig.Schedule();
    const std::uint32_t tokens = step.requests.at(0).num_computed_tokens;
    rig.Update(step);
    return tokens;
  };
  CHECK(computed() == 0);
  CHECK(computed() == 8);
  request.cache_salt = "salt";
  CHECK(computed() == 0);
  CHECK(computed() == 8);
  request.lora = LoraAdapter{1, "lora"};
  CHECK(computed() == 0);
  request.multimodal = {MultimodalItem{"image", 5, 2}};
  CHECK(computed() == 4);
  CHECK(computed() == 8);
}

}  // namespace
}  // namespace kvwire::scheduler
