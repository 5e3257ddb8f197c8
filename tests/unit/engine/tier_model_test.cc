// SPDX-License-Identifier: Apache-2.0
// The check of engine, scheduler and memory, with lower tiers.
#include <cstdint>
#include <string>

#include <doctest/doctest.h>

#include "tests/unit/engine/engine_fixture.h"
#include "tests/unit/engine/model_check.h"

namespace kvwire::engine {
namespace {

TEST_CASE("the same holds with a host tier, whatever the number of workers") {
  for (const std::uint32_t num_workers : {1u, 2u, 4u}) {
    CAPTURE(num_workers);
    RequireSound(1000, kDense, 0, {30, num_workers});
    RequireSound(1000, kDense, 0, {12, num_workers});
  }
}

TEST_CASE("the same holds with a host tier for groups and drafts: a hit mixes device and host") {
  using enum scheduler::KVCacheKind;
  for (const std::uint32_t num_workers : {1u, 2u, 4u}) {
    CAPTURE(num_workers);
    RequireSound(1000, {{kFullAttention, 4, 0}, {kSlidingWindow, 4, 8}}, 0, {60, num_workers});
    RequireSound(1000, {{kFullAttention, 8, 0}, {kSlidingWindow, 4, 6}}, 0, {40, num_workers});
    RequireSound(1000, {{kFullAttention, 4, 0}, {kMamba, 8, 0}}, 3, {40, num_workers});
    RequireSound(1000, {{kFullAttention, 4, 0}, {kSlidingWindow, 4, 3}, {kSlidingWindow, 8, 11}, {kMamba, 4, 0}}, 0,
                 {80, num_workers});
  }
}

TEST_CASE(
    "G3 and D11: the same holds when stores and loads fail: neither is announced, nothing is computed from them") {
  using enum scheduler::KVCacheKind;
  for (const std::uint32_t num_workers : {1u, 2u, 4u}) {
    CAPTURE(num_workers);
    RequireSound(1000, kDense, 0, {30, num_workers, 20, 30});
    RequireSound(1000, kDense, 2, {60, num_workers, 0, 90});
    RequireSound(600, {{kFullAttention, 8, 0}, {kSlidingWindow, 4, 6}, {kMamba, 4, 0}}, 0, {60, num_workers, 10, 40});
  }
}

TEST_CASE("the same holds for a host tier that a reset keeps: it is announced again") {
  using enum scheduler::KVCacheKind;
  using enum scheduler::TierReset;
  for (const std::uint32_t num_workers : {1u, 2u, 4u}) {
    CAPTURE(num_workers);
    RequireSound(1000, kDense, 0, {30, num_workers, 10, 20, kKeep});
    RequireSound(600, {{kFullAttention, 8, 0}, {kSlidingWindow, 4, 6}, {kMamba, 4, 0}}, 0,
                 {60, num_workers, 10, 20, kKeep});
  }
}

// The kinds of docs/model-configs, with blocks and windows that a small pool has several of.
const Groups kExamples[] = {kDense,
                            {{scheduler::KVCacheKind::kFullAttention, 4, 0}, {scheduler::KVCacheKind::kMamba, 8, 0}},
                            {{scheduler::KVCacheKind::kFullAttention, 4, 0},
                             {scheduler::KVCacheKind::kSlidingWindow, 4, 8},
                             {scheduler::KVCacheKind::kSlidingWindow, 4, 8}}};

TEST_CASE("the same holds with a disk tier, alone and below a host tier that is smaller") {
  for (const Groups& groups : kExamples) {
    CAPTURE(groups.size());
    const auto blocks = static_cast<std::uint32_t>(20 * groups.size());
    for (const std::uint32_t num_workers : {1u, 2u, 4u}) {
      CAPTURE(num_workers);
      RequireSound(400, groups, 0, {0, num_workers, 0, 0, scheduler::TierReset::kClear, blocks});
      RequireSound(400, groups, 0, {blocks / 2, num_workers, 0, 0, scheduler::TierReset::kClear, blocks});
    }
  }
}

TEST_CASE("G3 and D11: the same holds with both tiers when stores and loads fail, and when a reset keeps them") {
  for (const Groups& groups : kExamples) {
    CAPTURE(groups.size());
    const auto blocks = static_cast<std::uint32_t>(20 * groups.size());
    for (const std::uint32_t num_workers : {1u, 2u, 4u}) {
      CAPTURE(num_workers);
      RequireSound(400, groups, 0, {blocks / 2, num_workers, 15, 30, scheduler::TierReset::kClear, blocks});
      RequireSound(400, groups, 0, {blocks / 2, num_workers, 10, 20, scheduler::TierReset::kKeep, blocks});
    }
  }
}

TEST_CASE("a lower tier that the machine could not keep account of is refused by name") {
  for (const bool on_disk : {false, true}) {
    CAPTURE(on_disk);
    EngineConfig config = SmallConfig();
    (on_disk ? config.scheduler.disk_blocks : config.scheduler.host_blocks) = 1u << 30;
    CollectingEventPublisher publisher;
    const auto engine = EngineCore::Create(config, MakeHasher(), nullptr, &publisher);
    REQUIRE_FALSE(engine.has_value());
    CHECK(engine.error().code == ErrorCode::kUnavailable);
    CHECK(engine.error().message.starts_with(std::string(on_disk ? "disk" : "host") +
                                             "_blocks: 1073741824 blocks of 4 tokens need about "));
  }
}

TEST_CASE("a host block that a worker did not write is caught") {
  RequireCaught(Fault::kHiddenStoreFailure, {30, 2, 20});
}
TEST_CASE("a host block that a worker did not load is caught") {
  RequireCaught(Fault::kHiddenLoadFailure, {30, 2, 0, 20});
}
TEST_CASE("a disk block that a worker did not write, or did not load, is caught") {
  RequireCaught(Fault::kHiddenStoreFailure, {0, 2, 20, 0, scheduler::TierReset::kClear, 30});
  RequireCaught(Fault::kHiddenLoadFailure, {0, 2, 0, 20, scheduler::TierReset::kClear, 30});
}

}  // namespace
}  // namespace kvwire::engine
