// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/dev_routes.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/serve/dev_page.h"
#include "tests/integration/serve/dev_bench.h"
#include "tests/integration/serve/server_bench.h"

namespace kvwire::test {
namespace {

using nlohmann::json;

constexpr const char* kPaths[] = {"/", "/kv/state", "/dev/pool", "/dev/events", "/dev/faults"};

TEST_CASE("the developer's paths are not there without --dev") {
  const ServerBench bench;
  for (const char* const path : kPaths) {
    CAPTURE(path);
    CHECK(ErrorOf(bench.Get(path))["code"] == 404);
  }
  for (const char* const path : {"/kv/lookup", "/dev/faults"}) {
    CAPTURE(path);
    CHECK(ErrorOf(bench.Post(path, json::object()))["code"] == 404);
  }
}

TEST_CASE("/ is the page") {
  const DevBench dev;
  const auto page = dev.Get("/");
  REQUIRE(page);
  CHECK(page->status == 200);
  CHECK(page->get_header_value("Content-Type") == "text/html; charset=utf-8");
  CHECK(page->body == engine::DevPage());
  for (const char* const path : {"/dev/pool", "/dev/events", "/dev/faults", "/reset_prefix_cache"}) {
    CHECK(Contains(page->body, path));
  }
}

TEST_CASE("the state of an engine that published nothing has no batch and no blocks") {
  const DevBench dev;
  const json state = dev.Ask("/kv/state");
  CHECK(state["data_parallel_rank"] == 0);
  CHECK(state["batch"].is_null());
  CHECK(state["num_blocks"] == 0);
  CHECK(state["blocks"] == json::array());
  CHECK(state["digest"] == HeldBlocks().digest().ToString());
}

TEST_CASE("the state equals what the stream says up to the same number, on every rank") {
  const DevBench dev(2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    for (int i = 0; i < 8; ++i) {
      // A hundred blocks are full after a few of these: there are evictions.
      dev.Complete(std::string(80, static_cast<char>('a' + i + static_cast<int>(rank))) + kPrompt, rank);
      const json state = dev.Ask(fmt::format("/kv/state?rank={}&blocks=1", rank));
      CAPTURE(state.dump());
      CHECK(state["data_parallel_rank"] == rank);
      REQUIRE(state["batch"].is_number_unsigned());
      const auto held = dev.HeldAt(state["batch"], rank);
      REQUIRE(held.has_value());
      CHECK(held->size() > 0);
      CHECK(state["digest"] == held->digest().ToString());
      CHECK(state["num_blocks"] == held->size());
      CHECK(state["blocks"] == json(Lines(*held)));
      const json brief = dev.Ask(fmt::format("/kv/state?rank={}&blocks=0", rank));
      CHECK_FALSE(brief.contains("blocks"));
      CHECK(brief["digest"] == state["digest"]);
      CHECK(brief["batch"] == state["batch"]);
      CHECK(brief["num_blocks"] == state["num_blocks"]);
    }
  }
  CHECK(dev.Ask("/kv/state?rank=0")["digest"] != dev.Ask("/kv/state?rank=1")["digest"]);
}

TEST_CASE("a query that is not allowed is refused with its name, its value and what is allowed") {
  const DevBench dev(2);
  struct Bad {
    std::string path;
    std::string param;
    std::string value;
    std::string allowed;
  };
  for (const Bad& bad : {Bad{"/kv/state?rank=2", "rank", "\"2\"", "0 to 1"},
                         {"/kv/state?rank=-1", "rank", "\"-1\"", "0 to 1"},
                         {"/kv/state?rank=", "rank", "\"\"", "0 to 1"},
                         {"/kv/state?rank=1x", "rank", "\"1x\"", "0 to 1"},
                         {"/kv/state?rank=18446744073709551616", "rank", "\"18446744073709551616\"", "0 to 1"},
                         {"/kv/state?blocks=2", "blocks", "\"2\"", "0 to 1"},
                         {"/kv/state?blocks=true", "blocks", "\"true\"", "0 to 1"},
                         {"/dev/pool?rank=2", "rank", "\"2\"", "0 to 1"},
                         {"/dev/events?rank=2", "rank", "\"2\"", "0 to 1"},
                         {"/dev/events?after=x", "after", "\"x\"", "0 to 18446744073709551615"},
                         {"/dev/faults?rank=2", "rank", "\"2\"", "0 to 1"}}) {
    CAPTURE(bad.path);
    const json error = DevBench::Refusal(dev.Get(bad.path));
    CHECK(error["param"] == bad.param);
    CHECK(Contains(error["message"], bad.param));
    CHECK(Contains(error["message"], bad.value));
    CHECK(Contains(error["message"], bad.allowed));
  }
}

TEST_CASE("a lookup counts the blocks from the prompt's beginning that are held, for texts and for tokens") {
  const DevBench dev(2);
  json tokens = json::array();
  for (const char letter : std::string(kPrompt)) tokens.push_back(static_cast<int>(letter));
  for (const json& prompt : {json(kPrompt), tokens}) {
    const json before = dev.Tell("/kv/lookup", {{"prompt", prompt}});
    CHECK(before["num_tokens"] == 23);
    CHECK(before["block_size"] == 4);
    REQUIRE(before["ranks"].size() == 2);
    for (const json& rank : before["ranks"]) {
      CHECK(rank["held_prefix_blocks"] == 0);
      CHECK(rank["batch"].is_null() == (prompt.is_string() || rank["data_parallel_rank"] == 0));
      REQUIRE(rank["blocks"].size() == 5);
      for (const json& block : rank["blocks"]) {
        CHECK(block["copies"] == 0);
        CHECK(block["announced"] == false);
        CHECK(block["hash"].get<std::string>().size() == 64);
      }
    }
    dev.Complete(kPrompt, 1);
    const json after = dev.Tell("/kv/lookup", {{"prompt", prompt}});
    CHECK(after["ranks"][0]["held_prefix_blocks"] == 0);
    CHECK(after["ranks"][1]["held_prefix_blocks"] == 5);
    CHECK(after["ranks"][1]["batch"].is_number_unsigned());
    for (const json& block : after["ranks"][1]["blocks"]) {
      CHECK(block["copies"] == 1);
      CHECK(block["announced"] == true);
    }
    // Equal beginnings are held as far as they are equal.
    CHECK(dev.Tell("/kv/lookup", {{"prompt", "a prompt of 9 lines"}})["ranks"][1]["held_prefix_blocks"] == 3);
    // Another tenant's blocks are others.
    const json salted = dev.Tell("/kv/lookup", {{"prompt", prompt}, {"cache_salt", "x"}});
    CHECK(salted["ranks"][1]["held_prefix_blocks"] == 0);
    CHECK(salted["ranks"][1]["blocks"][0]["hash"] != after["ranks"][1]["blocks"][0]["hash"]);
    CHECK(dev.Tell("/dev/faults", {{"rank", 1}, {"now", {{"kind", "reset"}}}}) == json{{"done", "reset"}});
    CHECK(dev.Tell("/kv/lookup", {{"prompt", prompt}})["ranks"][1]["held_prefix_blocks"] == 0);
  }
  CHECK(dev.Tell("/kv/lookup", {{"prompt", "abc"}})["ranks"][0]["blocks"].empty());
}

TEST_CASE("a lookup ends at the first block that is not held") {
  const DevBench dev;
  dev.Complete(kPrompt);
  const json all = dev.Tell("/kv/lookup", {{"prompt", kPrompt}})["ranks"][0];
  REQUIRE(all["held_prefix_blocks"] == 5);
  dev.Tell("/dev/faults", {{"now", {{"kind", "evict"}, {"block", all["blocks"][2]["hash"]}}}});
  const json holed = dev.Tell("/kv/lookup", {{"prompt", kPrompt}})["ranks"][0];
  CHECK(holed["held_prefix_blocks"] == 2);
  CHECK(holed["blocks"][2]["copies"] == 0);
  CHECK(holed["blocks"][2]["announced"] == false);
  CHECK(holed["blocks"][3]["copies"] == 1);
}

TEST_CASE(
    "a lookup of a prompt that leaves no room, or of too many blocks on all ranks, is refused with both numbers") {
  const DevBench dev;
  CHECK(dev.Tell("/kv/lookup", {{"prompt", std::string(999, 'x')}})["num_tokens"] == 999);
  const json error = DevBench::Refusal(dev.Post("/kv/lookup", json{{"prompt", std::string(1000, 'x')}}.dump()));
  CHECK(error["message"] == "the prompt has 1000 tokens; max_model_len is 1000, for prompt and output together");
  CHECK(error["param"] == "prompt");
  engine::InstanceConfig config = SmallInstance(2);
  config.scheduler.block_size = 1;
  config.scheduler.max_model_len = 1u << 20;
  const DevBench large(std::move(config));
  const auto look_up = [&](std::size_t size) {
    return large.Post("/kv/lookup", json{{"prompt", std::string(size, 'x')}}.dump());
  };
  CHECK(look_up(1u << 17)->status == 200);
  const json many = DevBench::Refusal(look_up((1u << 17) + 1));
  CHECK(Contains(many["message"], "131073 full blocks"));
  CHECK(Contains(many["message"], "2 ranks"));
  CHECK(Contains(many["message"], "at most 262144"));
}

TEST_CASE("a lookup with an adapter's name, a salt or items finds the blocks of such a request only") {
  const DevBench dev;
  const auto submit = [&](auto&& describe) {
    scheduler::NewRequest request;
    request.prompt.assign({1, 2, 3, 4, 5, 6, 7, 8, 9});
    describe(&request);
    const auto admission = dev.instance().Submit(std::move(request), 0);
    REQUIRE(admission.has_value());
    CHECK(Eventually([&] { return admission->output->Take(std::chrono::milliseconds(10)).finished.has_value(); }));
  };
  const auto prefix = [&](json more) {
    more["prompt"] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    return dev.Tell("/kv/lookup", more)["ranks"][0]["prefix_tokens"].get<int>();
  };
  const json item = json::array({{{"identifier", "cat"}, {"offset", 5}, {"length", 1}}});
  submit([](auto* request) { request->lora = scheduler::LoraAdapter{7, "tuned"}; });
  CHECK(prefix({}) == 0);
  CHECK(prefix({{"lora_name", "tuned"}}) == 8);
  CHECK(prefix({{"lora_name", "other"}}) == 0);
  submit([](auto* request) { request->multimodal = {{"cat", 5, 1}}; });
  CHECK(prefix({{"kvwire_multimodal", item}}) == 8);
  CHECK(prefix({}) == 4);
  CHECK(prefix({{"kvwire_multimodal", item}, {"cache_salt", "x"}}) == 0);
}

TEST_CASE("a lookup with the name of no adapter is refused with the name and those that there are") {
  const DevBench dev;
  for (const char* const name : {"tune", "", "sim"}) {
    const json error = DevBench::Refusal(dev.Post("/kv/lookup", json{{"prompt", {1}}, {"lora_name", name}}.dump()));
    CHECK(error["param"] == "lora_name");
    CHECK(error["message"] == fmt::format(R"(lora_name is "{}", expected the name of an adapter: tuned, other)", name));
  }
  CHECK(dev.Tell("/kv/lookup", {{"prompt", {1}}, {"lora_name", nullptr}})["num_tokens"] == 1);
}

TEST_CASE("with several groups a lookup has each one's copies and the tokens that all have; evictions are by group") {
  using scheduler::KVCacheKind;
  engine::InstanceConfig config = SmallInstance();
  config.scheduler.groups = {{KVCacheKind::kFullAttention, 4, 0}, {KVCacheKind::kSlidingWindow, 4, 8}};
  const DevBench dev(std::move(config));
  dev.Complete(kPrompt);
  const auto look_up = [&] { return dev.Tell("/kv/lookup", {{"prompt", kPrompt}})["ranks"][0]; };
  const auto copies = [&](std::size_t block) { return look_up()["blocks"][block]["copies_by_group"]; };
  const json all = look_up();
  CHECK(all["prefix_tokens"] == 20);
  CHECK(all["held_prefix_blocks"] == 5);
  REQUIRE(all["blocks"].size() == 5);
  for (const json& block : all["blocks"]) {
    CHECK(block["copies"] == block["copies_by_group"][0].get<int>() + block["copies_by_group"][1].get<int>());
  }
  CHECK(copies(4) == json{1, 1});
  const auto evict = [&](std::size_t block, std::uint32_t group) {
    return json{{"now", {{"kind", "evict"}, {"block", all["blocks"][block]["hash"]}, {"group", group}}}};
  };
  // Of the window's group the last block goes: what is left of it ends one block earlier.
  dev.Tell("/dev/faults", evict(4, 1));
  CHECK(copies(4) == json{1, 0});
  CHECK(look_up()["prefix_tokens"] == 16);
  CHECK(look_up()["blocks"][4]["announced"] == true);
  CHECK(Contains(dev.RefusedFault(evict(4, 1))["message"], "is not in the device's prefix cache of group 1"));
  CHECK(Contains(dev.RefusedFault(evict(4, 9))["message"], "is not in the device's prefix cache of group 9"));
  // Without a group every copy goes.
  dev.Tell("/dev/faults", {{"now", {{"kind", "evict"}, {"block", all["blocks"][3]["hash"]}}}});
  CHECK(copies(3) == json{0, 0});
  // The page's paths tell of all groups.
  const json pool = dev.Ask("/dev/pool");
  int cached = 0;
  const json now = look_up();
  for (const json& block : now["blocks"]) cached += block["copies"].get<int>();
  CHECK(Letters(pool, "ch") >= std::size_t(cached));
  const json state = dev.Ask("/kv/state");
  CHECK(state["digest"].get<std::string>().find("1/GPU") != std::string::npos);
  std::size_t groups[2] = {};
  const json log = dev.Ask("/dev/events");
  for (const json& event : log["events"]) {
    for (const std::size_t group : {std::size_t{0}, std::size_t{1}}) {
      groups[group] += Contains(event["text"], "group_idx=" + std::to_string(group)) ? 1 : 0;
    }
  }
  CHECK(groups[0] >= 2);
  CHECK(groups[1] >= 3);
  // The next request computes what is no longer there, and everything is announced again.
  dev.Complete(kPrompt);
  CHECK(look_up()["prefix_tokens"] == 20);
}

TEST_CASE("a block is evicted by the name that the lookup gives it, whatever the algorithm") {
  for (const auto& [algorithm, digits] :
       {std::pair(HashAlgorithm::kXxhashCbor, std::size_t{32}), std::pair(HashAlgorithm::kSha256, std::size_t{64})}) {
    engine::InstanceConfig config = SmallInstance();
    config.hash_algorithm = algorithm;
    const DevBench dev(std::move(config));
    dev.Complete(kPrompt);
    const auto look_up = [&] { return dev.Tell("/kv/lookup", {{"prompt", kPrompt}})["ranks"][0]; };
    const std::string hash = look_up()["blocks"][2]["hash"];
    CHECK(hash.size() == digits);
    dev.Tell("/dev/faults", {{"now", {{"kind", "evict"}, {"block", hash}}}});
    CHECK(look_up()["held_prefix_blocks"] == 2);
    CHECK(look_up()["blocks"][3]["copies"] == 1);
  }
}

TEST_CASE("a lookup of anything else than a prompt is refused with the field's name") {
  const DevBench dev;
  struct Bad {
    std::string body;
    json param;
  };
  for (const Bad& bad : {Bad{"{}", "prompt"},
                         {R"({"prompt": 7})", "prompt"},
                         {R"({"prompt": [1, -1]})", "prompt[1]"},
                         {R"({"prompt": "a", "cache_salt": 1})", "cache_salt"},
                         {R"({"prompt": "a", "salt": "x"})", "salt"},
                         {R"({"prompt": "a", "lora_name": 1})", "lora_name"},
                         {R"({"prompt": "a", "kvwire_multimodal": []})", "kvwire_multimodal"},
                         {R"({"prompt": [1], "kvwire_multimodal": [1]})", "kvwire_multimodal[0]"},
                         {R"({"prompts": "a"})", "prompts"},
                         {"[]", nullptr},
                         {"", nullptr},
                         {"{", nullptr}}) {
    CAPTURE(bad.body);
    CHECK(DevBench::Refusal(dev.Post("/kv/lookup", bad.body))["param"] == bad.param);
  }
}

TEST_CASE("a key that is not known is refused with its name and those that are") {
  const DevBench dev;
  const json lookup = DevBench::Refusal(dev.Post("/kv/lookup", R"({"prompt": "a", "model": null})"));
  CHECK(lookup["param"] == "model");
  CHECK(lookup["message"] ==
        "model is null, which is no known key; expected prompt, cache_salt, lora_name or kvwire_multimodal");
  const json fault = dev.RefusedFault({{"faults", json::array()}, {"ranks", {0}}});
  CHECK(fault["param"] == "ranks");
  CHECK(fault["message"] == "ranks is [0], which is no known key; expected rank, now, seed or faults");
  const json now = dev.RefusedFault({{"now", {{"kind", "reset"}, {"blocks", 1}}}});
  CHECK(now["param"] == "now");
  for (const char* part : {"now", "\"blocks\"", "1", "allowed", "\"kind\""}) CHECK(Contains(now["message"], part));
}

TEST_CASE("a script is refused where it can have no effect: without events no batch has a number") {
  engine::InstanceConfig off = SmallInstance();
  off.events.enable_kv_cache_events = false;
  const DevBench dev(std::move(off));
  for (const char* kind : {"drop", "duplicate", "undecodable", "overflow", "reset", "preempt"}) {
    CAPTURE(kind);
    const json error = dev.RefusedFault({{"faults", {{{"kind", kind}, {"every", 2}}}}});
    CHECK(error["param"] == "faults");
    for (const char* part : {"faults[0].kind", kind, "events are off", "now"}) CHECK(Contains(error["message"], part));
  }
  // What needs no batch is as ever.
  CHECK(dev.Tell("/dev/faults", json::object())["faults"].empty());
  CHECK(dev.Tell("/dev/faults", {{"now", {{"kind", "reset"}}}}) == json{{"done", "reset"}});
  CHECK(dev.Ask("/dev/faults")["happened"]["reset"] == 1);

  // A publisher that publishes nothing has numbers, but no wire.
  engine::InstanceConfig null = SmallInstance();
  null.events.publisher = PublisherKind::kNull;
  const DevBench quiet(std::move(null));
  const json error =
      quiet.RefusedFault({{"faults", {{{"kind", "reset"}, {"every", 2}}, {{"kind", "drop"}, {"at", 2}}}}});
  for (const char* part : {"faults[1].kind", "drop", "publisher"}) CHECK(Contains(error["message"], part));
  CHECK(quiet.Tell("/dev/faults", {{"faults", {{{"kind", "reset"}, {"at", 0}}}}})["faults"].size() == 1);
}

}  // namespace
}  // namespace kvwire::test
