// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/serve/dev_page.h"
#include "tests/integration/serve/dev_bench.h"
#include "tests/integration/serve/server_bench.h"

namespace kvwire::test {
namespace {

using nlohmann::json;

TEST_CASE("the pool has a letter for every block but the null block") {
  const DevBench dev;
  const json fresh = dev.Ask("/dev/pool");
  CHECK(fresh["data_parallel_rank"] == 0);
  CHECK(fresh["num_ranks"] == 1);
  CHECK(fresh["num_blocks"] == 100);
  CHECK(fresh["next_batch"] == 0);
  CHECK(fresh["running"] == 0);
  CHECK(fresh["waiting"] == 0);
  CHECK(fresh["asleep"] == false);
  CHECK(fresh["blocks"] == std::string(99, 'f'));
  dev.Complete(kPrompt);
  const json used = dev.Ask("/dev/pool");
  CHECK(used["blocks"].get<std::string>().size() == 99);
  // Five of the prompt, one of the prompt's rest and the output; nobody uses them any more.
  CHECK(Letters(used, "c") == dev.Ask("/kv/state")["num_blocks"]);
  CHECK(Letters(used, "cf") == 99);
  CHECK(used["next_batch"].get<std::uint64_t>() == dev.Ask("/kv/state")["batch"].get<std::uint64_t>() + 1);
}

TEST_CASE("blocks of a running request are in use, and cached as soon as they are full") {
  engine::InstanceConfig config = SmallInstance();
  config.time_model.decode_per_request = std::chrono::milliseconds(20);
  const DevBench dev(std::move(config));
  scheduler::NewRequest request;
  for (TokenId i = 0; i < 23; ++i) request.prompt.push_back(i);
  request.max_tokens = 300;
  const auto admission = dev.instance().Submit(std::move(request), 0);
  REQUIRE(admission.has_value());
  // By itself it would run for six seconds.
  CHECK(Eventually([&] {
    const json pool = dev.Ask("/dev/pool");
    return Letters(pool, "h") >= 5 && Letters(pool, "u") >= 1;
  }));
  dev.instance().Abort(*admission);
}

TEST_CASE("the events come as lines, oldest first, each once for who asks after the last one he has") {
  const DevBench dev(2);
  const json empty = dev.Ask("/dev/events");
  CHECK(empty["data_parallel_rank"] == 0);
  CHECK(empty["events"] == json::array());
  dev.Complete(kPrompt);
  const json first = dev.Ask("/dev/events")["events"];
  REQUIRE(first.size() >= 1);
  std::uint64_t id = 0;
  for (const json& event : first) {
    CHECK(event["id"] == ++id);
    CHECK(event["batch"].is_number_unsigned());
    CHECK(event["ts"].is_number_float());
    CHECK(event["text"].get<std::string>().starts_with("BlockStored block_hashes=["));
  }
  CHECK(dev.Ask(fmt::format("/dev/events?after={}", id))["events"].empty());
  dev.Tell("/dev/faults", {{"rank", 0}, {"now", {{"kind", "reset"}}}});
  const json second = dev.Ask(fmt::format("/dev/events?after={}", id))["events"];
  REQUIRE(second.size() == 1);
  CHECK(second[0]["id"] == id + 1);
  CHECK(second[0]["text"] == "AllBlocksCleared");
  CHECK(dev.Ask("/dev/events")["events"].size() == id + 1);
  CHECK(dev.Ask("/dev/events?rank=1")["events"].empty());
}

TEST_CASE("the events say which log they are of: another one after a restart of the server, the same after a rank's") {
  const DevBench dev(2);
  const json log = dev.Ask("/dev/events")["log"];
  REQUIRE(log.is_string());
  CHECK_FALSE(log.get<std::string>().empty());
  CHECK(dev.Ask("/dev/events?rank=1")["log"] != log);
  dev.Complete(kPrompt);
  dev.Tell("/dev/faults", {{"now", {{"kind", "restart"}}}});
  dev.Complete(kPrompt);
  const json after = dev.Ask("/dev/events?after=1");
  CHECK(after["log"] == log);
  CHECK(after["events"].back()["id"].get<std::uint64_t>() > 1);
  // A server that comes after it counts from 1 again; who asks for what comes after a higher number sees it here.
  const DevBench next(2);
  next.Complete(kPrompt);
  const json late = next.Ask("/dev/events?after=100");
  CHECK(late["events"].empty());
  CHECK(late["log"] != log);
  CHECK(Contains(engine::DevPage(), "news.log"));
}

TEST_CASE("the hash that an event's line shows first can be evicted by it, as the page does") {
  const DevBench dev;
  dev.Complete(kPrompt);
  const std::string text = dev.Ask("/dev/events")["events"][0]["text"];
  constexpr std::string_view kBefore = "BlockStored block_hashes=[";
  REQUIRE(text.starts_with(kBefore));
  const std::size_t end = text.find_first_not_of("0123456789abcdef", kBefore.size());
  const std::string block = text.substr(kBefore.size(), end - kBefore.size());
  const json evict = {{"now", {{"kind", "evict"}, {"block", block}}}};
  CHECK(dev.Tell("/dev/faults", evict) == json{{"done", "evict"}});
  CHECK(dev.Ask("/dev/events")["events"].back()["text"].get<std::string>().starts_with("BlockRemoved"));
  const json state = dev.Ask("/kv/state");
  const auto held = dev.HeldAt(state["batch"]);
  REQUIRE(held.has_value());
  CHECK(state["blocks"] == json(Lines(*held)));
  // It is gone now.
  const json error = dev.RefusedFault(evict);
  CHECK(error["param"] == "now");
  CHECK(Contains(error["message"], "block"));
  CHECK(Contains(error["message"], block));
}

TEST_CASE("a script takes the place of the last one and is answered with itself; the counts say what happened") {
  const DevBench dev(2);
  const json counts = dev.Ask("/dev/faults?rank=1");
  CHECK(counts["data_parallel_rank"] == 1);
  CHECK(counts["happened"].size() == engine::kNumFaultKinds);
  for (const auto& [kind, count] : counts["happened"].items()) CHECK(count == 0);
  const json script = {{"seed", 7}, {"faults", {{{"kind", "overflow"}, {"every", 1}, {"count", 1}}}}};
  json both = script;
  both["rank"] = 1;
  CHECK(dev.Tell("/dev/faults", both) == script);
  dev.Complete(kPrompt, 0);
  dev.Complete(kPrompt, 1);
  CHECK(dev.Ask("/dev/faults?rank=1")["happened"]["overflow"] == 1);
  CHECK(dev.Ask("/dev/faults?rank=0")["happened"]["overflow"] == 0);
  // Without a rank: all of them.
  CHECK(dev.Tell("/dev/faults", {{"faults", {{{"kind", "reset"}, {"every", 1}, {"count", 1}}}}})["faults"].size() == 1);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    dev.Complete("another prompt, of more letters", rank);
    CHECK(Eventually([&] { return dev.Ask(fmt::format("/dev/faults?rank={}", rank))["happened"]["reset"] == 1; }));
    CHECK(dev.Ask(fmt::format("/dev/faults?rank={}", rank))["happened"]["overflow"] == rank);
  }
  CHECK(dev.Tell("/dev/faults", json::object())["faults"].empty());
}

TEST_CASE("faults happen now") {
  const DevBench dev(2);
  dev.Complete(kPrompt, 1);
  const auto now = [&dev](json fault) {
    return dev.Tell("/dev/faults", {{"rank", 1}, {"now", std::move(fault)}})["done"];
  };
  const std::uint64_t next = dev.Ask("/dev/pool?rank=1")["next_batch"];

  // Nothing runs: nothing is preempted, nothing is said.
  CHECK(now({{"kind", "preempt"}}) == "preempt");
  CHECK(dev.Ask("/dev/pool?rank=1")["next_batch"] == next);

  CHECK(now({{"kind", "reset"}}) == "reset");
  CHECK(dev.Ask("/kv/state?rank=1")["batch"] == next);
  CHECK(dev.Ask("/kv/state?rank=1")["num_blocks"] == 0);

  CHECK(now({{"kind", "restart"}, {"first_number", 7}}) == "restart");
  CHECK(dev.Ask("/kv/state?rank=1")["batch"].is_null());
  CHECK(dev.Ask("/dev/pool?rank=1")["next_batch"] == 7);
  dev.Complete(kPrompt, 1);
  CHECK(dev.Ask("/kv/state?rank=1")["batch"].get<std::uint64_t>() >= 7);

  // The number already past.
  const std::uint64_t past = dev.Ask("/dev/pool?rank=1")["next_batch"];
  CHECK(now({{"kind", "restart"}}) == "restart");
  CHECK(dev.Ask("/dev/pool?rank=1")["next_batch"] > past);
  const json happened = dev.Ask("/dev/faults?rank=1")["happened"];
  CHECK(happened["preempt"] == 0);
  CHECK(happened["reset"] == 1);
  CHECK(happened["restart"] == 2);
  const json untouched = dev.Ask("/dev/faults?rank=0")["happened"];
  for (const auto& [kind, count] : untouched.items()) CHECK(count == 0);
}

TEST_CASE("a fault that is not allowed is refused with the field's name, and nothing happens") {
  const DevBench dev(2);
  dev.Complete(kPrompt);
  struct Bad {
    json body;
    std::string param;
    std::vector<std::string> parts;
  };
  const std::string absent(16, '0');
  for (const Bad& bad :
       std::vector<Bad>{{{{"rank", 2}, {"now", {{"kind", "reset"}}}}, "rank", {"rank", "2", "0 to 1"}},
                        {{{"rank", "x"}}, "rank", {"rank", "\"x\"", "0 to 1"}},
                        {{{"now", {{"kind", "nope"}}}}, "now", {"now.kind", "nope", "\"reset\""}},
                        {{{"now", 7}}, "now", {"now", "7", "an object"}},
                        {{{"now", json::object()}}, "now", {"now.kind"}},
                        {{{"now", {{"kind", "drop"}}}}, "now", {"now.kind", "\"drop\"", "\"reset\""}},
                        {{{"now", {{"kind", "overflow"}}}}, "now", {"now.kind", "\"overflow\"", "\"reset\""}},
                        {{{"now", {{"kind", "reset"}, {"at", 3}}}}, "now.at", {"now.at", "3"}},
                        {{{"now", {{"kind", "reset"}, {"every", 3}}}}, "now.every", {"now.every", "3"}},
                        {{{"now", {{"kind", "evict"}}}}, "now", {"now.block"}},
                        {{{"now", {{"kind", "evict"}, {"block", "xyz"}}}}, "now", {"now.block", "xyz", "16, 32 or 64"}},
                        {{{"now", {{"kind", "evict"}, {"block", absent}}}}, "now", {"now.block", absent}},
                        {{{"now", {{"kind", "restart"}, {"first_number", -1}}}}, "now", {"now.first_number", "-1"}},
                        {{{"now", {{"kind", "reset"}}}, {"seed", 7}}, "seed", {"seed", "7", "now"}},
                        {{{"faults", {{{"kind", "drop"}}}}}, "faults", {"faults[0]", "at, every and probability"}},
                        {{{"faults", {{{"kind", "drop"}, {"at", -1}}}}}, "faults", {"faults[0].at", "-1"}},
                        {{{"nope", 1}}, "nope", {"nope", "1", "rank, now, seed or faults"}}}) {
    CAPTURE(bad.body.dump());
    const json error = dev.RefusedFault(bad.body);
    CHECK(error["param"] == bad.param);
    for (const std::string& part : bad.parts) CHECK_MESSAGE(Contains(error["message"], part), error["message"]);
  }
  CHECK(DevBench::Refusal(dev.Post("/dev/faults", "{"))["param"].is_null());
  CHECK(dev.Ask("/kv/state")["num_blocks"].get<std::uint64_t>() > 0);
  const json counts = dev.Ask("/dev/faults");
  for (const auto& [kind, count] : counts["happened"].items()) CHECK(count == 0);
}

TEST_CASE("an engine that was stopped answers with status 503") {
  const DevBench dev;
  dev.instance().Shutdown(std::chrono::milliseconds(1000));
  for (const char* const path : {"/kv/state", "/dev/pool"}) {
    CAPTURE(path);
    CHECK(ErrorOf(dev.Get(path))["code"] == 503);
  }
  CHECK(ErrorOf(dev.Post("/kv/lookup", R"({"prompt": "abcd"})"))["code"] == 503);
  CHECK(ErrorOf(dev.Post("/dev/faults", R"({"now": {"kind": "reset"}})"))["code"] == 503);
}

}  // namespace
}  // namespace kvwire::test
