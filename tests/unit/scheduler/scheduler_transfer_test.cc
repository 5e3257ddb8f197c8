// SPDX-License-Identifier: Apache-2.0
// Blocks that go from engine to engine, as the scheduler sees them.
#include <algorithm>
#include <optional>
#include <vector>

#include <doctest/doctest.h>

#include "tests/unit/scheduler/rig.h"

namespace kvwire::scheduler {
namespace {

constexpr std::uint32_t kBlockSize = 4;

NewRequest Make(RequestId id, std::size_t prompt_tokens, std::uint32_t max_tokens, TokenId first = 1) {
  NewRequest request;
  request.id = id;
  request.prompt = Range(first, prompt_tokens);
  request.max_tokens = max_tokens;
  return request;
}

NewRequest Receiver(RequestId id, std::size_t prompt_tokens, std::uint32_t max_tokens = 3, TokenId first = 1) {
  NewRequest request = Make(id, prompt_tokens, max_tokens, first);
  request.num_receivable_tokens = static_cast<std::uint32_t>(prompt_tokens);
  return request;
}

NewRequest Keeper(RequestId id, std::size_t prompt_tokens, TokenId first = 1) {
  NewRequest request = Make(id, prompt_tokens, 1, first);
  request.keep_blocks = true;
  return request;
}

void Add(Rig* rig, NewRequest request) {
  const Status added = rig->scheduler().AddRequest(std::move(request));
  if (!added) FAIL(added.error().message);
}

// A step that begins a reception and computes nothing.
Reception Begin(Rig* rig) {
  const SchedulerOutput step = rig->Schedule();
  REQUIRE(step.requests.empty());
  REQUIRE(step.receptions.size() == 1);
  rig->Update(step);
  return step.receptions.front();
}

EventTexts Named(std::size_t prompt_tokens, TokenId first = 1) {
  EventTexts texts(kBlockSize);
  texts.Name("h", ChainOf(HasherWithSeed("0"), Range(first, prompt_tokens), kBlockSize));
  return texts;
}

TEST_CASE("P1: received blocks are announced when their contents are there, and not before") {
  Rig rig(SmallConfig(16));
  Add(&rig, Receiver(1, 10));
  const Reception reception = Begin(&rig);
  CHECK(reception.request == 1);
  CHECK(reception.num_tokens == 8);
  REQUIRE(reception.parts.size() == 1);
  CHECK(reception.parts[0].first == 0);
  CHECK(reception.parts[0].blocks.size() == 2);
  CHECK(rig.scheduler().num_receiving() == 1);
  CHECK(rig.scheduler().num_running() == 0);
  CHECK(rig.scheduler().has_unfinished_requests());
  CHECK_FALSE(rig.scheduler().has_schedulable_requests());
  const EventTexts texts = Named(10);
  CHECK(rig.Published(texts).empty());
  const std::vector<BlockHash> chain = ChainOf(HasherWithSeed("0"), Range(1, 10), kBlockSize);
  CHECK(rig.scheduler().CachedTokens(chain) == 0);

  REQUIRE(rig.scheduler().OnReceived(1, Arrival::kComplete));
  CHECK(rig.Published(texts) == Texts{"S h0,h1 < nil : 1..8"});
  CHECK(rig.scheduler().CachedTokens(chain) == 8);
  const SchedulerOutput step = rig.Schedule();
  REQUIRE(step.requests.size() == 1);
  CHECK(step.requests[0].num_computed_tokens == 8);
  CHECK(step.requests[0].num_scheduled_tokens == 2);
  rig.Update(step);
  rig.Step();
  const std::vector<FinishedRequest> finished = rig.Step();
  REQUIRE(finished.size() == 1);
  CHECK(finished[0].num_cached_tokens == 8);
  CHECK(rig.scheduler().stats().received_tokens == 8);
  CHECK(rig.scheduler().stats().hit_tokens == 0);
  CHECK(rig.scheduler().stats().receptions == 1);
}

TEST_CASE("P2: of a prompt of full blocks everything is received and announced, and its last token is computed") {
  Rig rig(SmallConfig(16));
  Add(&rig, Receiver(1, 8));
  CHECK(Begin(&rig).num_tokens == 8);
  REQUIRE(rig.scheduler().OnReceived(1, Arrival::kComplete));
  CHECK(rig.Published(Named(8)) == Texts{"S h0,h1 < nil : 1..8"});
  const SchedulerOutput step = rig.Schedule();
  REQUIRE(step.requests.size() == 1);
  CHECK(step.requests[0].num_computed_tokens == 7);
  CHECK(step.requests[0].num_scheduled_tokens == 1);
  CHECK(step.requests[0].samples);
  rig.Update(step);
}

TEST_CASE("P3: what is cached here is not received") {
  Rig rig(SmallConfig(16));
  rig.Add(1, Range(1, 5), 1);
  rig.Step();
  rig.Published(Named(12));
  Add(&rig, Receiver(2, 12));
  const Reception reception = Begin(&rig);
  CHECK(reception.num_tokens == 12);
  CHECK(reception.parts[0].first == 1);
  CHECK(reception.parts[0].blocks.size() == 2);
  REQUIRE(rig.scheduler().OnReceived(2, Arrival::kComplete));
  CHECK(rig.Published(Named(12)) == Texts{"S h1,h2 < h0 : 5..12"});
  rig.Step();
  CHECK(rig.scheduler().stats().hit_tokens == 4);
  CHECK(rig.scheduler().stats().received_tokens == 8);

  SUBCASE("and a prompt that is all here is admitted at once, with a reception of nothing") {
    Add(&rig, Receiver(3, 9));
    const SchedulerOutput step = rig.Schedule();
    REQUIRE(step.receptions.size() == 1);
    CHECK(step.receptions[0].request == 3);
    CHECK(step.receptions[0].parts.empty());
    CHECK(step.requests.back().id == 3);
    CHECK(step.requests.back().num_computed_tokens == 8);
    CHECK_FALSE(rig.scheduler().is_receiving(3));
    rig.Update(step);
  }
}

TEST_CASE("P4: what failed to arrive is announced by nobody and computed") {
  Rig rig(SmallConfig(16));
  Add(&rig, Receiver(1, 10));
  Begin(&rig);
  REQUIRE(rig.scheduler().OnReceived(1, Arrival::kFailed));
  CHECK(rig.Published(Named(10)).empty());
  CHECK(rig.pool().num_free() == 15);
  const SchedulerOutput step = rig.Schedule();
  REQUIRE(step.requests.size() == 1);
  CHECK(step.receptions.empty());
  CHECK(step.requests[0].num_computed_tokens == 0);
  rig.Update(step);
  CHECK(rig.Published(Named(10)) == Texts{"S h0,h1 < nil : 1..8"});
  CHECK(rig.scheduler().stats().failed_receptions == 1);
  CHECK(rig.scheduler().stats().received_tokens == 0);
  CHECK_FALSE(rig.scheduler().OnReceived(1, Arrival::kComplete));
}

TEST_CASE("P5: a request that is aborted while it receives gives its blocks back; what arrives for it is nothing") {
  Rig rig(SmallConfig(16));
  Add(&rig, Receiver(1, 10));
  Begin(&rig);
  CHECK(rig.scheduler().Abort(1));
  CHECK(rig.pool().num_free() == 15);
  CHECK_FALSE(rig.scheduler().OnReceived(1, Arrival::kComplete));
  CHECK_FALSE(rig.scheduler().has_unfinished_requests());
  CHECK(rig.Published(Named(10)).empty());
}

TEST_CASE("P6: a reset takes the blocks of receptions only when it may preempt; then the request is computed") {
  Rig rig(SmallConfig(16));
  Add(&rig, Receiver(1, 10));
  Begin(&rig);
  SUBCASE("while it receives") {}
  SUBCASE("when it has received") { REQUIRE(rig.scheduler().OnReceived(1, Arrival::kComplete)); }
  rig.Published(Named(10));
  CHECK_FALSE(rig.scheduler().ResetPrefixCache(ResetMode::kFailWhileRunning));
  CHECK(rig.scheduler().ResetPrefixCache(ResetMode::kPreemptRunning));
  CHECK(rig.Published(Named(10)) == Texts{"C"});
  CHECK_FALSE(rig.scheduler().OnReceived(1, Arrival::kComplete));
  const SchedulerOutput step = rig.Schedule();
  REQUIRE(step.requests.size() == 1);
  CHECK(step.receptions.empty());
  CHECK(step.requests[0].num_computed_tokens == 0);
  rig.Update(step);
}

TEST_CASE("P7: others go on while a request receives, and it goes on with the step after its arrival") {
  Rig rig(SmallConfig(32));
  Add(&rig, Receiver(1, 10));
  rig.Add(2, Range(100, 6), 4);
  const SchedulerOutput first = rig.Schedule();
  REQUIRE(first.requests.size() == 1);
  CHECK(first.requests[0].id == 2);
  SUBCASE("a step is in flight when the data arrive: they are announced with it") {
    REQUIRE(rig.scheduler().OnReceived(1, Arrival::kComplete));
    CHECK(rig.Published(Named(10)).empty());
    rig.Update(first);
    CHECK(rig.Published(Named(10)).size() == 2);
  }
  SUBCASE("none is") {
    rig.Update(first);
    rig.Published(Named(10));
    REQUIRE(rig.scheduler().OnReceived(1, Arrival::kComplete));
    CHECK(rig.Published(Named(10)) == Texts{"S h0,h1 < nil : 1..8"});
  }
  const SchedulerOutput second = rig.Schedule();
  CHECK(second.requests.size() == 2);
  rig.Update(second);
}

TEST_CASE("P8: a finished request keeps its prompt's full blocks until they are released") {
  Rig rig(SmallConfig(8));
  Add(&rig, Keeper(1, 10));
  const std::vector<FinishedRequest> finished = rig.Step();
  REQUIRE(finished.size() == 1);
  CHECK(finished[0].kept.num_tokens == 8);
  REQUIRE(finished[0].kept.block_tables.size() == 1);
  CHECK(finished[0].kept.block_tables[0].size() == 2);
  CHECK(rig.scheduler().num_kept_blocks() == 2);
  CHECK(rig.pool().num_free() == 5);
  REQUIRE(rig.scheduler().FindKept(1) != nullptr);
  CHECK(*rig.scheduler().FindKept(1) == finished[0].kept);
  CHECK_FALSE(rig.scheduler().has_unfinished_requests());
  CHECK_FALSE(rig.scheduler().AddRequest(Make(1, 4, 1)).has_value());

  SUBCASE("by a release, after which they are cached as before") {
    CHECK(rig.scheduler().ReleaseKept(1));
    CHECK_FALSE(rig.scheduler().ReleaseKept(1));
    CHECK(rig.pool().is_registered(finished[0].kept.block_tables[0][0]));
  }
  SUBCASE("by an abort") { CHECK(rig.scheduler().Abort(1)); }
  SUBCASE("by a reset that may preempt") {
    CHECK_FALSE(rig.scheduler().ResetPrefixCache(ResetMode::kFailWhileRunning));
    CHECK(rig.scheduler().ResetPrefixCache(ResetMode::kPreemptRunning));
  }
  SUBCASE("by the shutdown") { rig.scheduler().Shutdown(); }
  CHECK(rig.pool().num_free() == 7);
  CHECK(rig.scheduler().num_kept_blocks() == 0);
  CHECK(rig.scheduler().FindKept(1) == nullptr);
}

TEST_CASE("P9: a prompt without a full block keeps nothing and receives nothing") {
  Rig rig(SmallConfig(8));
  Add(&rig, Keeper(1, 3));
  CHECK(rig.Step().at(0).kept.num_tokens == 0);
  CHECK(rig.pool().num_free() == 7);
  Add(&rig, Receiver(2, 3));
  const SchedulerOutput step = rig.Schedule();
  CHECK(step.requests.size() == 1);
  CHECK(step.receptions.at(0).parts.empty());
  rig.Update(step);
}

TEST_CASE("P10: in a pool full of kept blocks the oldest are given up for a request that could not run otherwise") {
  Rig rig(SmallConfig(7));
  Add(&rig, Keeper(1, 8, 100));
  rig.Step();
  Add(&rig, Keeper(2, 8, 200));
  rig.Step();
  CHECK(rig.pool().num_free() == 2);
  rig.Add(3, Range(300, 14), 1);
  const std::vector<FinishedRequest> finished = rig.Step();
  REQUIRE(finished.size() == 1);
  CHECK(finished[0].id == 3);
  CHECK(rig.scheduler().FindKept(1) == nullptr);
  CHECK(rig.scheduler().FindKept(2) != nullptr);
  CHECK(rig.scheduler().stats().kept_given_up == 1);
}

TEST_CASE(
    "P10: they are given up, too, for one that alone runs, cannot go on, and would find nothing of what it has "
    "computed") {
  SchedulerConfig config = SmallConfig(14);
  config.groups = {{KVCacheKind::kFullAttention, 4, 0}, {KVCacheKind::kMamba, 16, 0}};
  config.max_num_batched_tokens = 8;  // a hit ends at 16
  Rig rig(config);
  Add(&rig, Keeper(1, 40, 100));
  while (rig.scheduler().has_unfinished_requests()) rig.Step();
  REQUIRE(rig.scheduler().num_kept_blocks() == 9);
  rig.Add(2, Range(300, 24), 1);
  for (int i = 0; i < 20 && rig.scheduler().has_unfinished_requests(); ++i) rig.Step();
  CHECK_FALSE(rig.scheduler().has_unfinished_requests());
  CHECK(rig.scheduler().FindKept(1) == nullptr);
  CHECK(rig.scheduler().stats().kept_given_up == 1);
  CHECK(rig.scheduler().stats().preemptions == 0);
}

TEST_CASE("P11: requests that have received and fill the pool do not block each other") {
  Rig rig(SmallConfig(7));
  for (const RequestId id : {1u, 2u, 3u}) Add(&rig, Receiver(id, 8, 6, static_cast<TokenId>(100 * id)));
  const SchedulerOutput step = rig.Schedule();
  REQUIRE(step.receptions.size() == 3);
  rig.Update(step);
  CHECK(rig.pool().num_free() == 0);
  for (const RequestId id : {1u, 2u, 3u}) REQUIRE(rig.scheduler().OnReceived(id, Arrival::kComplete));
  std::size_t finished = 0;
  for (int i = 0; i < 100 && finished < 3; ++i) finished += rig.Step().size();
  CHECK(finished == 3);
  CHECK(rig.pool().num_free() == 6);
}

TEST_CASE("P12: whoever waits for the blocks of a reception is no work until it ends") {
  Rig rig(SmallConfig(7));
  Add(&rig, Receiver(1, 20, 1));
  rig.Add(2, Range(300, 8), 1);
  const SchedulerOutput step = rig.Schedule();
  CHECK(step.empty());
  rig.Update(step);
  CHECK(rig.scheduler().num_waiting() == 1);
  CHECK_FALSE(rig.scheduler().has_schedulable_requests());
  SUBCASE("complete") { REQUIRE(rig.scheduler().OnReceived(1, Arrival::kComplete)); }
  SUBCASE("failed") { REQUIRE(rig.scheduler().OnReceived(1, Arrival::kFailed)); }
  SUBCASE("aborted") { REQUIRE(rig.scheduler().Abort(1)); }
  CHECK(rig.scheduler().has_schedulable_requests());
  std::size_t finished = 0;
  while (rig.scheduler().has_schedulable_requests() && finished < 5) finished += rig.Step().size();
  CHECK_FALSE(rig.scheduler().has_unfinished_requests());
}

TEST_CASE("P13: a receiving request is no victim of preemption") {
  Rig rig(SmallConfig(8));
  Add(&rig, Receiver(1, 12, 2));
  rig.Add(2, Range(100, 7), 6);
  rig.Add(3, Range(200, 7), 6);
  rig.Step();
  for (int i = 0; i < 3; ++i) rig.Step();
  CHECK(rig.scheduler().stats().preemptions > 0);
  CHECK(rig.scheduler().is_receiving(1));
}

TEST_CASE("P14: a window group keeps and receives only the blocks that it needs to go on") {
  SchedulerConfig config = SmallConfig(40);
  config.groups = {{KVCacheKind::kFullAttention, 4, 0}, {KVCacheKind::kSlidingWindow, 4, 5}};
  Rig rig(config);
  Add(&rig, Keeper(1, 18));
  const KeptBlocks kept = rig.Step().at(0).kept;
  CHECK(kept.num_tokens == 16);
  REQUIRE(kept.block_tables.size() == 2);
  CHECK(std::count(kept.block_tables[0].begin(), kept.block_tables[0].end(), kNullBlock) == 0);
  CHECK(kept.block_tables[1].size() == 4);
  CHECK(std::count(kept.block_tables[1].begin(), kept.block_tables[1].end(), kNullBlock) == 3);
  CHECK(rig.scheduler().num_kept_blocks() == 5);
  REQUIRE(rig.scheduler().ReleaseKept(1));
  REQUIRE(rig.scheduler().ResetPrefixCache(ResetMode::kFailWhileRunning));

  NewRequest receiver = Receiver(2, 18);
  receiver.num_receivable_tokens = kept.num_tokens;
  Add(&rig, std::move(receiver));
  const Reception reception = Begin(&rig);
  REQUIRE(reception.parts.size() == 2);
  CHECK(reception.num_tokens == 16);
  CHECK(reception.parts[0].first == 0);
  CHECK(reception.parts[0].blocks.size() == 4);
  CHECK(reception.parts[1].first == 3);
  CHECK(reception.parts[1].blocks.size() == 1);
  REQUIRE(rig.scheduler().OnReceived(2, Arrival::kComplete));
  const SchedulerOutput step = rig.Schedule();
  CHECK(step.requests.at(0).num_computed_tokens == 16);
  rig.Update(step);

  SUBCASE("and of a prompt of full blocks leaves one to be computed") {
    Add(&rig, Receiver(3, 16, 1, 500));
    const SchedulerOutput begun = rig.Schedule();
    CHECK(begun.receptions.at(0).num_tokens == 12);
    rig.Update(begun);
  }
}

TEST_CASE("P15: without prefix caching blocks are received and announced by nobody") {
  SchedulerConfig config = SmallConfig(16);
  config.enable_prefix_caching = false;
  Rig rig(config);
  Add(&rig, Receiver(1, 10));
  Begin(&rig);
  REQUIRE(rig.scheduler().OnReceived(1, Arrival::kComplete));
  CHECK(rig.Schedule().requests.at(0).num_computed_tokens == 8);
  CHECK(rig.Published(Named(10)).empty());
}

}  // namespace
}  // namespace kvwire::scheduler
