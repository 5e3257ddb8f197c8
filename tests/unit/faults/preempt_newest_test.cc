// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "tests/unit/scheduler/rig.h"

namespace kvwire::scheduler {
namespace {

TEST_CASE("the request that was admitted last is preempted, and ends with the same tokens") {
  Rig rig(SmallConfig(32));
  rig.Add(1, Range(1, 6), 3);
  rig.Add(2, Range(50, 6), 3);
  CHECK(rig.Step({10, 20}).empty());
  REQUIRE(rig.scheduler().num_running() == 2);
  CHECK(rig.scheduler().PreemptNewest() == 2);
  CHECK(rig.scheduler().num_running() == 1);
  CHECK(rig.scheduler().num_waiting() == 1);
  CHECK(rig.scheduler().stats().preemptions == 1);
  CHECK(rig.Step({11, 21}).empty());
  CHECK(rig.scheduler().num_running() == 2);
  const std::vector<FinishedRequest> finished = rig.Step({12, 22});
  REQUIRE(finished.size() == 2);
  CHECK(finished[0].output == std::vector<TokenId>{10, 11, 12});
  CHECK(finished[0].num_preemptions == 0);
  CHECK(finished[1].output == std::vector<TokenId>{20, 21, 22});
  CHECK(finished[1].num_preemptions == 1);
}

TEST_CASE("a request that was preempted before a step is the next to be preempted after it") {
  Rig rig(SmallConfig(32));
  rig.Add(1, Range(1, 6), 8);
  rig.Add(2, Range(50, 6), 8);
  rig.Step();
  CHECK(rig.scheduler().PreemptNewest() == 2);
  CHECK(rig.scheduler().PreemptNewest() == 1);
  CHECK_FALSE(rig.scheduler().PreemptNewest().has_value());
  rig.Step();
  CHECK(rig.scheduler().num_running() == 2);
  CHECK(rig.scheduler().PreemptNewest() == 2);
}

TEST_CASE("without a running request nobody is preempted") {
  Rig rig(SmallConfig(32));
  CHECK_FALSE(rig.scheduler().PreemptNewest().has_value());
  rig.Add(1, Range(1, 6));
  CHECK_FALSE(rig.scheduler().PreemptNewest().has_value());
  CHECK(rig.scheduler().stats().preemptions == 0);
}

}  // namespace
}  // namespace kvwire::scheduler
