// SPDX-License-Identifier: Apache-2.0
// Which consumers every profile must please, and which it cannot.
#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "consumers.h"
#include "wire_test_support.h"

namespace kvwire {

namespace {

using Switches = KVEventsConfig::Extensions;

// What must hold of a profile in one of its hash forms: who accepts every payload, and who refuses some, which shows
// that the rows tell the profiles apart.
struct Promise {
  std::string profile;
  HashForm hash_form;
  Names accepted_by;
  Names refused_by;
};

const Promise kPromises[] = {
    {"vllm",
     HashForm::kUint64,
     {"vLLM example", "Mooncake conductor", "SMG", "Dynamo"},
     {"llm-d", "AIBrix", "kthena", "sgl-router", "llm-d, SGLang adapter"}},
    {"vllm",
     HashForm::kBytes,
     {"vLLM example", "llm-d", "Mooncake conductor", "SMG"},
     {"Dynamo", "sgl-router", "xLLM service"}},
    {"vllm-0.22",
     HashForm::kUint64,
     {"old vLLM example", "kthena", "AIBrix"},
     {"vLLM example", "llm-d, SGLang adapter", "Dynamo"}},
    {"vllm-0.22", HashForm::kBytes, {"llm-d"}, {"old vLLM example", "kthena", "AIBrix"}},
    {"llm-d",
     HashForm::kUint64,
     {"llm-d", "vLLM example", "Mooncake conductor", "SMG", "Dynamo"},
     {"AIBrix", "kthena", "llm-d, SGLang adapter"}},
    {"llm-d", HashForm::kBytes, {"llm-d", "vLLM example", "Mooncake conductor", "SMG"}, {"Dynamo"}},
    {"dynamo", HashForm::kUint64, {"Dynamo", "vLLM example"}, {"llm-d", "AIBrix"}},
    {"aibrix",
     HashForm::kUint64,
     {"AIBrix", "kthena", "old vLLM example", "Dynamo"},
     {"llm-d", "vLLM example", "Mooncake conductor"}},
    {"kthena", HashForm::kUint64, {"kthena", "AIBrix", "old vLLM example"}, {"vLLM example", "SMG"}},
    {"xllm", HashForm::kUint64, {"xLLM service"}, {"Dynamo", "llm-d", "AIBrix"}},
    {"sglang",
     HashForm::kFirstInt64,
     {"llm-d, SGLang adapter", "sgl-router", "llm-d", "Dynamo"},
     {"vLLM example", "Mooncake conductor"}},
    {"trtllm", HashForm::kUint64, {"vLLM example", "Mooncake conductor", "SMG", "Dynamo"}, {"AIBrix", "llm-d"}},
};

// Hashes of 8 and of 32 bytes; as integers small, medium, above 2^63 and, where they are signed, negative.
std::vector<BlockHash> MixedHashes() {
  std::vector<BlockHash> hashes = {H(5), H(0xfffffffe), H(0x0102030405060708), H(0x8000000000000001),
                                   H(~std::uint64_t{0})};
  for (const char* hex : {"0000000000000007000000000000000000000000000000000000000000000009",
                          "f00000000000000100000000000000000000000000000000f1f2f3f4f5f6f7f8",
                          "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e"}) {
    hashes.push_back(*BlockHash::FromBytes(FromHex(hex)));
  }
  return hashes;
}

// Every kind of event with every kind of field, in small batches, and all together in a last one. `media` are the tiers
// that the blocks are in.
std::vector<KVEventBatch> MixedBatches(const Names& media) {
  const std::vector<BlockHash> hashes = MixedHashes();
  const std::vector<TokenId> tokens = {0, 127, 128, 65536, kMaxTokenId, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const std::vector<ExtraKeys> keys = {ExtraKeys{std::string("salt"), MultimodalKey{"image", 3}}, ExtraKeys{}};
  std::vector<KVEventBatch> batches;
  KVEventBatch all;
  const auto add = [&](const auto& event) {
    KVEventBatch batch;
    batch.ts = 1700000000.25;
    batch.data_parallel_rank = static_cast<std::int64_t>(batches.size() % 3);
    batch.Add(event);
    batches.push_back(std::move(batch));
    all.Add(event);
  };
  std::size_t turn = 0;
  for (const std::string& medium : media) {
    for (std::size_t first = 0; first + 2 <= hashes.size(); ++first) {
      for (const bool with_tokens : {true, false}) {
        for (const int group_fields : {0, 1, 2, 3}) {
          ++turn;
          BlockStored stored;
          stored.block_hashes = std::span(hashes).subspan(first, 2);
          if (turn % 2 == 0) stored.parent_block_hash = hashes[turn % hashes.size()];
          if (with_tokens) stored.token_ids = tokens;
          stored.block_size = 8;
          stored.medium = medium;
          if (turn % 3 == 0) stored.lora_id = 7;
          if (turn % 3 != 1) stored.lora_name = "adapter";
          if (turn % 4 != 0)
            stored.extra_keys = {false,
                                 turn % 4 == 1 ? std::span<const ExtraKeys>(keys) : std::span<const ExtraKeys>()};
          if (group_fields > 0) stored.group_idx = static_cast<std::uint32_t>(group_fields - 1);
          if (group_fields > 1) stored.kv_cache_spec_kind = "full_attention";
          if (group_fields > 2) stored.kv_cache_spec_sliding_window = 128;
          add(stored);
        }
      }
      BlockRemoved removed;
      removed.block_hashes = std::span(hashes).subspan(first, 1 + first % 2);
      removed.medium = medium;
      if (first % 2 == 0) removed.group_idx = 0;
      add(removed);
    }
  }
  add(AllBlocksCleared{});
  all.ts = 1700000001.5;
  all.data_parallel_rank = 0;
  batches.push_back(std::move(all));
  return batches;
}

// What a consumer complains of in the mixed batches, each complaint once.
Complaints ComplaintsOf(const std::string& consumer, const Switches& switches) {
  std::set<std::string> complaints;
  // A host has no third tier to tell the xLLM service of.
  const Names media = consumer == "xLLM service" ? Names{"GPU", "CPU"} : Names{"GPU", "CPU", "STORAGE"};
  for (const KVEventBatch& batch : MixedBatches(media)) {
    const Complaints of_payload = Complain(ConsumerCalled(consumer), Encode(batch, switches));
    complaints.insert(of_payload.begin(), of_payload.end());
  }
  return {complaints.begin(), complaints.end()};
}

Switches SwitchesFor(const Promise& promise) {
  Switches switches = SwitchesOf(promise.profile);
  switches.hash_form = promise.hash_form;
  return switches;
}

std::string Joined(const Complaints& complaints) {
  std::string text;
  for (const std::string& complaint : complaints) text += (text.empty() ? "" : "; ") + complaint;
  return text;
}

}  // namespace

TEST_CASE("every payload of a profile is one that the profile's consumers accept") {
  for (const Promise& promise : kPromises) {
    CAPTURE(promise.profile);
    CAPTURE(static_cast<int>(promise.hash_form));
    for (const std::string& consumer : promise.accepted_by) {
      CAPTURE(consumer);
      CHECK(Joined(ComplaintsOf(consumer, SwitchesFor(promise))) == "");
    }
  }
}

TEST_CASE("the rows tell consumers apart: whom a profile is not for refuses some of its payloads") {
  for (const Promise& promise : kPromises) {
    CAPTURE(promise.profile);
    CAPTURE(static_cast<int>(promise.hash_form));
    for (const std::string& consumer : promise.refused_by) {
      CAPTURE(consumer);
      CHECK(Joined(ComplaintsOf(consumer, SwitchesFor(promise))) != "");
    }
  }
}

TEST_CASE("every profile of the configuration, in every hash form that it leaves open, has a promise") {
  std::set<std::pair<std::string, HashForm>> promised;
  for (const Promise& promise : kPromises) promised.emplace(promise.profile, promise.hash_form);
  const Names profiles = AllProfiles();
  CHECK(profiles.size() >= 9);
  std::set<std::pair<std::string, HashForm>> possible;
  for (const std::string& profile : profiles) {
    // A profile that leaves the form open keeps what the environment chose.
    for (const HashForm form : {HashForm::kUint64, HashForm::kBytes}) {
      Switches switches;
      switches.hash_form = form;
      REQUIRE(ApplyProfile(profile, &switches));
      possible.emplace(profile, switches.hash_form);
    }
  }
  CHECK(promised == possible);
}

TEST_CASE("a profile with one switch turned is refused by the consumer that needs the switch") {
  struct Case {
    std::string profile;
    std::string consumer;
    void (*turn)(Switches*);
    std::string complaint;
  };
  const Case cases[] = {
      {"sglang", "llm-d, SGLang adapter", [](Switches* s) { s->array_tail = ArrayTail::kFull; },
       "BlockRemoved of 4 elements; BlockStored of 12 elements"},
      {"sglang", "llm-d, SGLang adapter", [](Switches* s) { s->wide_hashes = WideHashes::kMinimal; },
       "a hash in fewer than nine bytes"},
      {"sglang", "sgl-router", [](Switches* s) { s->hash_form = HashForm::kUint64; }, "a hash above the largest"},
      {"llm-d", "llm-d", [](Switches* s) { s->wide_hashes = WideHashes::kMinimal; }, "a hash in fewer than nine bytes"},
      {"vllm", "Mooncake conductor", [](Switches* s) { s->hash_form = HashForm::kInt64; }, "a negative hash"},
      {"vllm", "vLLM example", [](Switches* s) { s->event_format = EventFormat::kArray; }, "an array event"},
      {"dynamo", "Dynamo", [](Switches* s) { s->hash_form = HashForm::kBytes; }, "a hash as bytes"},
      {"dynamo", "Dynamo", [](Switches* s) { s->medium_cpu = "cpu"; }, "medium cpu"},
      {"aibrix", "Dynamo", [](Switches* s) { s->array_tail = ArrayTail::kFull; },
       "BlockRemoved of 4 elements; BlockStored of 12 elements"},
      {"aibrix", "AIBrix", [](Switches* s) { s->event_format = EventFormat::kMap; }, "a map event"},
      {"kthena", "kthena", [](Switches* s) { s->hash_form = HashForm::kBytes; }, "a hash as bytes"},
      {"xllm", "xLLM service", [](Switches* s) { s->hash_form = HashForm::kInt64; }, "a negative hash"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.profile);
    CAPTURE(c.consumer);
    Switches switches = SwitchesOf(c.profile);
    CHECK(Joined(ComplaintsOf(c.consumer, switches)) == "");
    c.turn(&switches);
    CHECK(Joined(ComplaintsOf(c.consumer, switches)) == c.complaint);
  }
}

TEST_CASE("a batch without a rank, or with bytes behind it, is refused by every row") {
  KVEventBatch batch;
  batch.Add(AllBlocksCleared{});
  Bytes trailing;
  for (const Consumer& consumer : AllConsumers()) {
    CAPTURE(consumer.name);
    CHECK(Joined(Complain(consumer, Encode(batch))).find("the rank is not an integer") != std::string::npos);
    batch.data_parallel_rank = 0;
    trailing = Encode(batch);
    trailing.push_back(0xc0);
    CHECK(Joined(Complain(consumer, trailing)).find("bytes after the batch") != std::string::npos);
    batch.data_parallel_rank.reset();
  }
}

}  // namespace kvwire
