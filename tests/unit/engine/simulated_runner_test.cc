// SPDX-License-Identifier: Apache-2.0
#include "engine/simulated_runner.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace kvwire::engine {
namespace {

using scheduler::BlockId;
using scheduler::RunnerOutput;
using scheduler::ScheduledRequest;
using scheduler::SchedulerOutput;

constexpr std::uint32_t kBlockSize = 4;

std::unique_ptr<SimulatedRunner> MakeRunner() {
  SimulatedRunner::Options options;
  options.num_blocks = 16;
  options.block_size = kBlockSize;
  auto runner = SimulatedRunner::Create(options);
  REQUIRE(runner.has_value());
  return std::move(*runner);
}

// A request as the runner sees it; grows with what is drawn.
struct Sequence {
  Sequence(std::uint64_t the_id, std::vector<BlockId> blocks, std::vector<TokenId> the_tokens,
           std::uint32_t the_computed)
      : id(the_id), tables{std::move(blocks)}, tokens(std::move(the_tokens)), computed(the_computed) {}

  std::uint64_t id;
  std::vector<std::vector<BlockId>> tables;  // by group
  std::vector<TokenId> tokens;
  std::uint32_t computed;

  ScheduledRequest Schedule(std::uint32_t count) const {
    ScheduledRequest request;
    request.id = id;
    request.block_tables = tables;
    request.token_ids = tokens;
    request.num_computed_tokens = computed;
    request.num_scheduled_tokens = count;
    request.samples = computed + count == tokens.size();
    return request;
  }
};

// Runs one step of `count` tokens and takes the drawn token over.
void Advance(SimulatedRunner& runner, Sequence& sequence, std::uint32_t count) {
  SchedulerOutput step;
  step.requests.push_back(sequence.Schedule(count));
  const RunnerOutput output = runner.Run(step);
  sequence.computed += count;
  for (const auto& sampled : output.sampled) sequence.tokens.push_back(sampled.token);
}

const std::vector<TokenId> kPrompt{11, 12, 13, 14, 15, 16, 17, 18, 19, 20};

TEST_CASE("a word stands for every token before it") {
  auto runner = MakeRunner();
  Sequence sequence{1, {3, 9, 5}, kPrompt, 0};
  Advance(*runner, sequence, 10);
  std::uint64_t word = SimulatedRunner::kRootWord;
  for (std::uint32_t p = 0; p < 10; ++p) {
    word = SimulatedRunner::ChainWord(word, kPrompt[p]);
    CHECK(runner->WordAt(sequence.tables[0][p / kBlockSize], p % kBlockSize) == word);
  }
  CHECK(runner->WordAt(5, 2) == 0);
}

TEST_CASE("a copy takes the first words of a block to another, before anything is computed") {
  auto runner = MakeRunner();
  Sequence sequence{1, {3, 9, 5}, kPrompt, 0};
  Advance(*runner, sequence, 10);
  // Goes on within its second block, whose first two words it takes from the other's; the source changes behind these.
  Sequence other{2, {3, 7}, {11, 12, 13, 14, 15, 16, 99}, 6};
  Sequence writer{3, {12, 9}, {1, 2, 3, 4, 5, 6}, 0};
  SchedulerOutput step;
  step.copies.push_back({9, 7, 0, 2});
  step.requests.push_back(writer.Schedule(6));
  step.requests.push_back(other.Schedule(1));
  runner->Run(step);
  std::uint64_t word = SimulatedRunner::kRootWord;
  for (std::uint32_t p = 0; p < 7; ++p) {
    word = SimulatedRunner::ChainWord(word, other.tokens[p]);
    CHECK(runner->WordAt(other.tables[0][p / kBlockSize], p % kBlockSize) == word);
  }
  CHECK(runner->WordAt(7, 3) == 0);
}

TEST_CASE("chunks, decode steps and other physical blocks draw the same tokens") {
  auto whole = MakeRunner();
  Sequence a{1, {1, 2, 3, 4}, kPrompt, 0};
  Advance(*whole, a, 10);
  for (int i = 0; i < 4; ++i) Advance(*whole, a, 1);

  auto chunked = MakeRunner();
  Sequence b{2, {15, 7, 2, 9}, kPrompt, 0};
  Advance(*chunked, b, 3);
  CHECK(b.tokens.size() == kPrompt.size());  // not the last chunk: nothing is drawn
  Advance(*chunked, b, 6);
  Advance(*chunked, b, 1);
  for (int i = 0; i < 4; ++i) Advance(*chunked, b, 1);

  CHECK(a.tokens == b.tokens);
  for (std::size_t i = kPrompt.size(); i < a.tokens.size(); ++i) CHECK(a.tokens[i] >= 131072);
}

TEST_CASE("a cached block gives the same tokens as computing it") {
  auto runner = MakeRunner();
  Sequence first{1, {1, 2, 3}, kPrompt, 0};
  Advance(*runner, first, 10);
  Sequence second{2, {1, 2, 6}, kPrompt, 8};
  Advance(*runner, second, 2);
  CHECK(second.tokens.back() == first.tokens.back());
}

TEST_CASE("a stolen, stale or early block changes what is drawn") {
  auto reference = MakeRunner();
  Sequence expected{1, {1, 2, 3}, kPrompt, 0};
  Advance(*reference, expected, 10);
  const TokenId right = expected.tokens.back();

  SUBCASE("stolen: another request writes into the last block in the same step") {
    auto runner = MakeRunner();
    Sequence victim{1, {1, 2, 3}, kPrompt, 0};
    Sequence thief{2, {3}, {91, 92, 93}, 0};
    SchedulerOutput step;
    step.requests.push_back(victim.Schedule(10));
    step.requests.push_back(thief.Schedule(3));
    CHECK(runner->Run(step).sampled.at(0).token != right);
  }
  SUBCASE("stolen: the predecessor's block was overwritten between two chunks") {
    auto runner = MakeRunner();
    Sequence victim{1, {1, 2, 3}, kPrompt, 0};
    Advance(*runner, victim, 8);
    Sequence thief{2, {2}, {91, 92, 93, 94}, 0};
    Advance(*runner, thief, 4);
    Advance(*runner, victim, 2);
    CHECK(victim.tokens.back() != right);
  }
  SUBCASE("stale: the block that is hit holds another prompt") {
    auto runner = MakeRunner();
    Sequence other{1, {1, 2}, {50, 51, 52, 53, 54, 55, 56, 57}, 0};
    Advance(*runner, other, 8);
    Sequence victim{2, {1, 2, 3}, kPrompt, 8};
    Advance(*runner, victim, 2);
    CHECK(victim.tokens.back() != right);
  }
  SUBCASE("early: the block that is hit was not computed") {
    auto runner = MakeRunner();
    Sequence victim{2, {1, 2, 3}, kPrompt, 8};
    Advance(*runner, victim, 2);
    CHECK(victim.tokens.back() != right);
  }
}

TEST_CASE("an overwritten block far behind the newest position shows within a few tokens") {
  auto clean = MakeRunner();
  Sequence a{1, {1, 2, 3, 4, 5, 6, 7, 8}, kPrompt, 0};
  Advance(*clean, a, 10);
  for (int i = 0; i < 20; ++i) Advance(*clean, a, 1);

  auto runner = MakeRunner();
  Sequence b{1, {1, 2, 3, 4, 5, 6, 7, 8}, kPrompt, 0};
  Advance(*runner, b, 10);
  Sequence thief{2, {1}, {91, 92, 93, 94}, 0};
  Advance(*runner, thief, 4);
  for (int i = 0; i < 20; ++i) Advance(*runner, b, 1);
  CHECK(a.tokens != b.tokens);
}

TEST_CASE("an impossible runner is refused by name") {
  SimulatedRunner::Options options;
  const auto no_blocks = SimulatedRunner::Create(options);
  REQUIRE_FALSE(no_blocks.has_value());
  CHECK(no_blocks.error().message.find("num_blocks is 0; allowed: 2 or more") != std::string::npos);
  options.num_blocks = 4;
  options.first_output_token = kMaxTokenId;
  options.num_output_tokens = 2;
  const auto no_tokens = SimulatedRunner::Create(options);
  REQUIRE_FALSE(no_tokens.has_value());
  CHECK(no_tokens.error().message.find("2147483647") != std::string::npos);
  options.num_output_tokens = 1;
  CHECK(SimulatedRunner::Create(options).has_value());
}

TEST_CASE("the time model charges prefill by uncached tokens and decode by requests") {
  using std::chrono::nanoseconds;
  TimeModel model;
  CHECK(model.is_zero());
  model.prefill_overhead = nanoseconds(1000);
  model.prefill_per_token = nanoseconds(10);
  model.decode_per_request = nanoseconds(7);
  const Sequence prompt{1, {1, 2, 3}, kPrompt, 4};
  const Sequence decoding{2, {4, 5, 6}, kPrompt, 9};
  SchedulerOutput step;
  CHECK(model.Duration(step) == nanoseconds(0));
  step.requests.push_back(decoding.Schedule(1));
  step.requests.push_back(decoding.Schedule(1));
  CHECK(model.Duration(step) == nanoseconds(14));
  step.requests.push_back(prompt.Schedule(6));
  CHECK(model.Duration(step) == nanoseconds(14 + 1000 + 60));
  step.requests.back() = prompt.Schedule(1);  // a chunk of one token is prefill all the same
  CHECK(model.Duration(step) == nanoseconds(14 + 1000 + 10));
}

TEST_CASE("a model time that does not fit is the longest, never less") {
  scheduler::SchedulerOutput step;
  step.requests.resize(2);
  step.requests[0].num_scheduled_tokens = 1'000'000;
  step.requests[1].num_scheduled_tokens = 1;
  step.requests[1].samples = true;
  TimeModel model;
  model.prefill_per_token = std::chrono::hours(24 * 365 * 100);
  CHECK(model.Duration(step) == std::chrono::nanoseconds::max());
  model.prefill_overhead = std::chrono::nanoseconds::max();
  model.decode_per_request = std::chrono::nanoseconds::max();
  CHECK(model.Duration(step) == std::chrono::nanoseconds::max());
}

TEST_CASE("words that no memory holds are refused with blocks and tokens") {
  SimulatedRunner::Options options;
  options.num_blocks = 4294967295u;
  options.block_size = 4294967295u;
  const auto runner = SimulatedRunner::Create(options);
  REQUIRE_FALSE(runner.has_value());
  CHECK(runner.error().code == ErrorCode::kUnavailable);
  CHECK(runner.error().message.find("4294967295 blocks of 4294967295 tokens") != std::string::npos);
}

}  // namespace
}  // namespace kvwire::engine
