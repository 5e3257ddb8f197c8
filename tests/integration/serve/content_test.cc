// SPDX-License-Identifier: Apache-2.0
// What besides its tokens is part of a prompt's blocks, asked for over HTTP and read from the published events.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "engine/http/chat_prompt.h"
#include "tests/integration/serve/server_bench.h"

namespace kvwire::test {
namespace {

using nlohmann::json;

constexpr const char* kCompletions = "/v1/completions";
constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kPrompt = "a prompt of 23 letters.";  // five full blocks of four

json Parsed(const httplib::Result& result) {
  REQUIRE(result);
  REQUIRE_MESSAGE(result->status == 200, result->body);
  return json::parse(result->body);
}

engine::RoutesConfig WithAdapters(const std::vector<std::string>& names) {
  engine::RoutesConfig config;
  config.models = {"sim"};
  for (const std::string& name : names) config.lora_modules.push_back({name, "/adapters/" + name, "sim"});
  return config;
}

void Ask(const ServerBench& bench, json request, const char* path = kCompletions) {
  request["max_tokens"] = 1;
  Parsed(bench.Post(path, request));
}

std::vector<BlockHash> HashesOf(const std::vector<SeenStore>& events) {
  std::vector<BlockHash> hashes;
  for (const SeenStore& event : events) {
    hashes.insert(hashes.end(), event.block_hashes.begin(), event.block_hashes.end());
  }
  return hashes;
}

TEST_CASE("D21: the events of an adapter's request carry its id and name, those of the model neither") {
  const ServerBench bench(SmallInstance(), WithAdapters({"first", "second"}));
  Ask(bench, {{"prompt", kPrompt}});
  Ask(bench, {{"prompt", kPrompt}, {"model", "sim"}});
  Ask(bench, {{"prompt", kPrompt}, {"model", "second"}});
  // A second turn goes on behind the cached blocks.
  const json again = Parsed(bench.Post(
      kCompletions, {{"prompt", std::string(kPrompt) + " and more"}, {"model", "second"}, {"max_tokens", 1}}));
  CHECK(again["model"] == "second");
  CHECK(again["usage"]["prompt_tokens_details"]["cached_tokens"] == 20);
  const std::vector<SeenStore> stored = bench.Stores();
  REQUIRE(stored.size() == 3);
  CHECK(stored[0].block_hashes.size() == 5);
  CHECK_FALSE(stored[0].lora_id.has_value());
  CHECK_FALSE(stored[0].lora_name.has_value());
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    CHECK(stored[i].lora_id == 2);
    CHECK(stored[i].lora_name == "second");
    for (const ExtraKeys& keys : stored[i].extra_keys) CHECK(keys == ExtraKeys{std::string("second")});
  }
  CHECK(stored[1].token_ids == stored[0].token_ids);
  CHECK(stored[2].parent_block_hash == stored[1].block_hashes.back());
  for (const BlockHash& hash : stored[1].block_hashes) {
    for (const BlockHash& other : stored[0].block_hashes) CHECK(hash != other);
  }
}

TEST_CASE("F3: adapters in another order have the same hashes, and events that differ in lora_id only") {
  const auto events = [](const std::vector<std::string>& order) {
    const ServerBench bench(SmallInstance(), WithAdapters(order));
    for (const char* const name : {"A", "B"}) Ask(bench, {{"prompt", kPrompt}, {"model", name}});
    return bench.Stores();
  };
  std::vector<SeenStore> one = events({"A", "B"});
  std::vector<SeenStore> other = events({"B", "A"});
  REQUIRE(one.size() == 2);
  REQUIRE(other.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(one[i].lora_id == std::int64_t(i + 1));
    CHECK(other[i].lora_id == std::int64_t(2 - i));
    other[i].lora_id = one[i].lora_id;
    CHECK(one[i] == other[i]);
  }
}

TEST_CASE("models and adapters are listed, an adapter with its path and parent; another name is unknown") {
  const ServerBench bench(SmallInstance(), WithAdapters({"first", "second"}));
  const json models = Parsed(bench.Get("/v1/models"));
  CHECK(models["object"] == "list");
  REQUIRE(models["data"].size() == 3);
  CHECK(models["data"][0]["id"] == "sim");
  CHECK(models["data"][0]["parent"].is_null());
  CHECK(models["data"][2]["id"] == "second");
  CHECK(models["data"][2]["root"] == "/adapters/second");
  CHECK(models["data"][2]["parent"] == "sim");
  CHECK(ErrorOf(bench.Post(kCompletions, {{"prompt", "x"}, {"model", "third"}}))["code"] == 404);
}

TEST_CASE("salts: the chains of two salts and of none have no hash in common, the salt is the first block's key only") {
  const ServerBench bench;
  Ask(bench, {{"prompt", kPrompt}});
  for (const char* const salt : {"red", "blue"}) Ask(bench, {{"prompt", kPrompt}, {"cache_salt", salt}});
  Ask(bench, {{"messages", json::array({{{"role", "user"}, {"content", "four"}}})}, {"cache_salt", "red"}}, kChat);
  const std::vector<SeenStore> stored = bench.Stores();
  REQUIRE(stored.size() == 4);
  std::set<std::string> hashes;
  for (const BlockHash& hash : HashesOf(stored)) hashes.insert(hash.ToHex());
  CHECK(hashes.size() == HashesOf(stored).size());
  CHECK(stored[0].block_hashes.size() == 5);
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {
    REQUIRE(stored[i].extra_keys.size() == stored[i].block_hashes.size());
    CHECK(stored[i].extra_keys[0] == ExtraKeys{std::string(i == 2 ? "blue" : "red")});
    for (std::size_t block = 1; block < stored[i].extra_keys.size(); ++block) {
      CHECK(stored[i].extra_keys[block].empty());
    }
  }
}

json ImageChat(const json& image) {
  return {{"messages",
           json::array({{{"role", "user"},
                         {"content", json::array({{{"type", "text"}, {"text", "What is it?"}},
                                                  image,
                                                  {{"type", "text"}, {"text", "And where was it taken?"}}})}}})}};
}

json ImageAt(const std::string& url) { return {{"type", "image_url"}, {"image_url", {{"url", url}}}}; }

TEST_CASE("F5: prompts that differ in the image only have the same tokens, and other hashes from the image on") {
  const ServerBench bench;
  Ask(bench, ImageChat(ImageAt("http://pictures/cat.png")), kChat);
  Ask(bench, ImageChat(ImageAt("data:image/png;base64,AAAA")), kChat);
  const std::vector<SeenStore> stored = bench.Stores();
  // The second prompt stores only what the first one has not: it begins with the block where the image begins.
  REQUIRE(stored.size() == 2);
  const std::string before = "<|user|>\nWhat is it?\n";
  const std::size_t first = before.size() / 4;
  const std::size_t last = (before.size() + engine::kImageTokens - 1) / 4;
  const std::size_t blocks = stored[0].block_hashes.size();
  REQUIRE(blocks > last + 1);
  CHECK(stored[1].block_hashes.size() == blocks - first);
  CHECK(std::vector<TokenId>(stored[0].token_ids.begin() + std::ptrdiff_t(first * 4), stored[0].token_ids.end()) ==
        std::vector<TokenId>(stored[1].token_ids.begin(), stored[1].token_ids.end()));
  CHECK(stored[1].parent_block_hash == stored[0].block_hashes[first - 1]);
  REQUIRE(stored[0].extra_keys.size() == blocks);
  REQUIRE(stored[1].extra_keys.size() == blocks - first);
  for (std::size_t block = 0; block < blocks; ++block) {
    CAPTURE(block);
    const bool overlaps = block >= first && block <= last;
    ExtraKeys expected;
    const auto offset = std::int64_t(before.size()) - std::int64_t(block * 4);
    if (overlaps) expected = {MultimodalKey{engine::ImageIdentifier("http://pictures/cat.png"), offset}};
    CHECK(stored[0].extra_keys[block] == expected);
    if (block < first) continue;
    if (overlaps) expected = {MultimodalKey{engine::ImageIdentifier("data:image/png;base64,AAAA"), offset}};
    CHECK(stored[1].extra_keys[block - first] == expected);
    CHECK(stored[1].block_hashes[block - first] != stored[0].block_hashes[block]);
  }
}

TEST_CASE("an image is what its uuid says; without one, what its address says") {
  const ServerBench bench;
  const auto cached = [&](json image) {
    json request = ImageChat(std::move(image));
    request["max_tokens"] = 1;
    const json usage = Parsed(bench.Post(kChat, request))["usage"];
    return std::pair(usage["prompt_tokens"].get<int>(), usage["prompt_tokens_details"]["cached_tokens"].get<int>());
  };
  json named = ImageAt("http://pictures/cat.png");
  named["uuid"] = "cat";
  const int length = cached(named).first;
  CHECK(length == 16 + int(std::string("<|user|>\nWhat is it?\n\nAnd where was it taken?\n<|assistant|>\n").size()));
  const int all = length / 4 * 4 - (length % 4 == 0 ? 4 : 0);
  named["image_url"]["url"] = "http://pictures/moved.png";
  CHECK(cached(named) == std::pair(length, all));
  named["image_url"] = nullptr;
  CHECK(cached(named) == std::pair(length, all));
  CHECK(cached(ImageAt("cat")).second == 20);
  CHECK(cached(ImageAt("cat")).second == all);
  // The same tokens are what /tokenize tells.
  const json tokens = Parsed(bench.Post("/tokenize", ImageChat(named)));
  CHECK(tokens["count"] == length);
  CHECK(tokens["tokens"][20 + 1] == engine::kImageToken);
}

TEST_CASE("F5: items of a prompt of tokens are keys of the blocks that they overlap") {
  const ServerBench bench;
  json tokens = json::array();
  for (int i = 0; i < 20; ++i) tokens.push_back(i);
  Ask(bench, {{"prompt", tokens},
              {"kvwire_multimodal", json::array({{{"identifier", "x"}, {"offset", 6}, {"length", 2}},
                                                 {{"identifier", "y"}, {"offset", 11}, {"length", 2}}})}});
  const std::vector<SeenStore> stored = bench.Stores();
  REQUIRE(stored.size() == 1);
  using Key = MultimodalKey;
  CHECK(stored[0].extra_keys == std::vector<ExtraKeys>{{}, {Key{"x", 2}}, {Key{"y", 3}}, {Key{"y", -1}}, {}});
}

}  // namespace
}  // namespace kvwire::test
