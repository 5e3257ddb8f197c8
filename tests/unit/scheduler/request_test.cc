// SPDX-License-Identifier: Apache-2.0
#include "scheduler/request.h"

#include <string>

#include <doctest/doctest.h>

#include "tests/unit/scheduler/rig.h"

namespace kvwire::scheduler {
namespace {

TEST_CASE("the report mode comes from extra_args, and only the exact text full has an effect") {
  CHECK(ReportModeOf({}) == ReportMode::kIncremental);
  CHECK(ReportModeOf({{"other", std::string("full")}}) == ReportMode::kIncremental);
  CHECK(ReportModeOf({{"kv_cache_report_mode", std::string("full")}}) == ReportMode::kFull);
  for (const ExtraArg& value : {ExtraArg(std::string("FULL")), ExtraArg(std::string("full ")), ExtraArg(std::string()),
                                ExtraArg(std::int64_t{1}), ExtraArg(1.0), ExtraArg(true), ExtraArg()}) {
    CHECK(ReportModeOf({{"kv_cache_report_mode", value}}) == ReportMode::kIncremental);
  }
}

TEST_CASE("hashes follow the tokens: full blocks only, extended when an output token completes one") {
  BlockHasher hasher = HasherWithSeed("0");
  NewRequest description;
  description.prompt = Range(1, 6);
  Request request(description, 4, &hasher);
  CHECK(request.block_hashes().size() == 1);
  CHECK(request.extra_keys().empty());
  request.AppendToken(7, &hasher);
  CHECK(request.block_hashes().size() == 1);
  request.AppendToken(8, &hasher);
  REQUIRE(request.block_hashes().size() == 2);
  CHECK(request.block_hashes()[0].Low64() == 2164874634404590027u);
  CHECK(request.block_hashes()[1].Low64() == 17270480062156288726u);
  CHECK(request.num_prompt_tokens() == 6);
  CHECK(request.num_output_tokens() == 2);
}

TEST_CASE("adapter, items and salt make the extra keys of the blocks and change the hashes") {
  BlockHasher hasher = HasherWithSeed("0");
  NewRequest description;
  description.prompt = Range(1, 8);
  description.lora = LoraAdapter{42, "my_lora"};
  description.cache_salt = "s";
  const Request request(description, 4, &hasher);
  REQUIRE(request.extra_keys().size() == 2);
  CHECK(request.extra_keys()[0] == ExtraKeys{std::string("my_lora"), std::string("s")});
  CHECK(request.extra_keys()[1] == ExtraKeys{std::string("my_lora")});
  CHECK(request.block_hashes()[0].Low64() == 1942634994386164600u);
  CHECK(request.block_hashes()[1].Low64() == 17985991987034172171u);
}

TEST_CASE("without a hasher a request has no hashes") {
  NewRequest description;
  description.prompt = Range(1, 8);
  Request request(description, 4, nullptr);
  request.AppendToken(9, nullptr);
  CHECK(request.block_hashes().empty());
}

}  // namespace
}  // namespace kvwire::scheduler
