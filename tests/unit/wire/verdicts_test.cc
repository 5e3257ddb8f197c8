// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <sstream>
#include <string>

#include <doctest/doctest.h>

#include "wire_test_support.h"

namespace kvwire {

namespace {

// What this decoder says of a payload on which five other decoders were run: the number of events it reads and, when
// it refuses something, the named reason. An empty `path` means that nothing is refused.
struct Verdict {
  std::string name;
  std::size_t events;
  std::string code;
  std::string path;
  std::string why;
};

const Verdict kVerdicts[] = {
    {"map.full", 1, "", "", "what vLLM sends"},
    {"map.tail", 1, "", "", "what vLLM sends"},
    {"map.removed", 1, "", "", "what vLLM sends"},
    {"map.cleared", 1, "", "", "what vLLM sends"},
    {"map.type_last", 1, "", "", "key order says nothing"},
    {"map.no_lora_id", 1, "", "", "some producers leave nils out"},
    {"map.no_lora_name", 1, "", "", "some producers leave nils out"},
    {"map.no_medium", 1, "", "", "absent means GPU"},
    {"map.no_parent", 1, "", "", "absent means none"},
    {"map.no_tokens", 0, "missing field", "events[0].token_ids", "an unknown content is said by nil or []"},
    {"map.removed_no_medium", 1, "", "", "absent means GPU"},
    {"map.unknown_key", 1, "", "", "later fields are ignored, and counted"},
    {"map.cache_salt_key", 1, "", "", "becomes an extra key"},
    {"map.tokens_empty", 1, "", "", "a store that does not know its tokens"},
    {"map.tokens_nil", 1, "", "", "the same, as other producers say it"},
    {"map.pairs", 1, "", "", "bigrams are flattened"},
    {"map.tok_over_u32", 0, "out of range", "events[0].token_ids[0]", "truncating would invent a token"},
    {"map.extra_salt", 1, "", "", "what vLLM sends"},
    {"map.extra_flat", 0, "bad type", "events[0].extra_keys[0]", "a bare text could be a name, a salt or an image"},
    {"map.hash_u64max", 1, "", "", "hashes are 64 bits without a sign"},
    {"map.hash_neg", 1, "", "", "the same bits"},
    {"map.hash_bin32", 1, "", "", "vLLM's bytes form"},
    {"map.hash_str", 1, "", "", "hex digits"},
    {"map.hash_fix5", 1, "", "", "the width says nothing"},
    {"map.hash_wide5", 1, "", "", "the width says nothing"},
    {"map.hash_u32", 1, "", "", "the width says nothing"},
    {"map.parent_fix0", 1, "", "", "a parent of hash 0, or none where the option says so"},
    {"map.parent_wide0", 1, "", "", "a parent of hash 0, or none where the option says so"},
    {"map.unknown_tag_2nd", 1, "unknown event", "events[1].type", "costs that event only"},
    {"map.dup_type", 0, "inconsistent", "events[0].type", "either reading is a guess"},
    {"map.as_bin", 1, "", "", "producers that encode twice"},
    {"arr.5", 1, "", "", "shorter than any release, but nothing needed is missing"},
    {"arr.6", 1, "", "", "vLLM 0.9"},
    {"arr.7", 1, "", "", "vLLM 0.10.2"},
    {"arr.8", 1, "", "", "vLLM 0.14"},
    {"arr.9", 1, "", "", "vLLM 0.17"},
    {"arr.11", 1, "", "", "a tail without window"},
    {"arr.13", 1, "", "", "a tail with locality"},
    {"arr.pos7_map", 1, "", "", "a salt in a map, becomes an extra key"},
    {"arr.removed2", 1, "", "", "vLLM 0.9"},
    {"arr.removed3", 1, "", "", "vLLM 0.10.2"},
    {"arr.removed4", 1, "", "", "vLLM 0.20"},
    {"arr.cleared", 1, "", "", "every array release"},
    {"arr.hash_fix5", 1, "", "", "the width says nothing"},
    {"arr.hash_wide5", 1, "", "", "the width says nothing"},
    {"arr.parent_fix0", 1, "", "", "a parent of hash 0, or none where the option says so"},
    {"arr.parent_wide0", 1, "", "", "a parent of hash 0, or none where the option says so"},
    {"arr.hash_bin32", 1, "", "", "vLLM's bytes form"},
    {"arr.hash_u64max", 1, "", "", "hashes are 64 bits without a sign"},
    {"arr.as_bin", 1, "", "", "producers that encode twice"},
    {"arr.tokens_nil", 1, "", "", "unknown content"},
    {"mix.arr+map", 2, "", "", "each event says what it is"},
    {"batch.rank_nil.map", 1, "", "", "unknown rank"},
    {"batch.rank_nil.arr", 1, "", "", "unknown rank"},
    {"batch.2.map", 1, "", "", "no rank"},
    {"batch.2.arr", 1, "", "", "no rank"},
    {"batch.4.map", 1, "", "", "later fields are ignored, and counted"},
    {"batch.4.arr", 1, "", "", "later fields are ignored, and counted"},
    {"batch.mapbatch.map", 1, "", "", "the third shape in the field"},
    {"batch.ts_int.arr", 1, "", "", "seconds or milliseconds"},
    {"batch.ts_int.map", 1, "", "", "seconds or milliseconds"},
    {"batch.ts_f32.arr", 1, "", "", "a narrower float"},
    {"batch.ts_nil.map", 1, "", "", "unknown time"},
    {"batch.events_nil", 0, "bad type", "events", "no list of events is not an empty one"},
    {"batch.events_empty", 0, "", "", "nothing happened"},
    {"batch.trailing.map", 0, "trailing bytes", "batch", "two messages in one, or garbage"},
    {"batch.trailing.arr", 0, "trailing bytes", "batch", "two messages in one, or garbage"},
    {"batch.empty_payload", 0, "truncated", "batch", "nothing to read"},
    {"batch.truncated", 0, "limit exceeded", "events[0]", "a text longer than what remains"},
};

// Name -> payload; "-" is an empty one.
std::map<std::string, Bytes> ReadPayloads() {
  std::map<std::string, Bytes> payloads;
  std::istringstream lines(ReadGolden("consumer_verdicts.txt"));
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string name;
    std::string word;
    words >> name;
    while (words >> word) {
    }
    payloads[name] = word == "-" ? Bytes{} : FromHex(word);
  }
  return payloads;
}

}  // namespace

TEST_CASE("each of 69 payloads is read, or refused by name, as the table says") {
  const std::map<std::string, Bytes> payloads = ReadPayloads();
  CHECK(payloads.size() == 69);
  CHECK(std::size(kVerdicts) == payloads.size());
  for (const Verdict& verdict : kVerdicts) {
    CAPTURE(verdict.name);
    CAPTURE(verdict.why);
    REQUIRE(payloads.count(verdict.name) == 1);
    const tl::expected<DecodedBatch, DecodeError> decoded = DecodeBatch(payloads.at(verdict.name));
    if (!decoded) {
      CHECK(ToString(decoded.error().code) == verdict.code);
      CHECK(decoded.error().path == verdict.path);
      CHECK(verdict.events == 0);
      continue;
    }
    CHECK(decoded->batch.size() == verdict.events);
    if (verdict.path.empty()) {
      CHECK(Rejections(*decoded) == "");
    } else {
      REQUIRE(decoded->rejected.size() == 1);
      CHECK(ToString(decoded->rejected[0].error.code) == verdict.code);
      CHECK(decoded->rejected[0].error.path == verdict.path);
    }
  }
}

TEST_CASE("a parent of 0 is none only where the option says so") {
  const std::map<std::string, Bytes> payloads = ReadPayloads();
  for (const char* name : {"map.parent_fix0", "map.parent_wide0", "arr.parent_fix0", "arr.parent_wide0"}) {
    CAPTURE(name);
    DecodeOptions options;
    auto decoded = DecodeBatch(payloads.at(name), options);
    REQUIRE(decoded);
    CHECK(std::get<BlockStored>(decoded->batch.at(0)).parent_block_hash == H(0));
    options.zero_parent_is_none = true;
    decoded = DecodeBatch(payloads.at(name), options);
    REQUIRE(decoded);
    CHECK_FALSE(std::get<BlockStored>(decoded->batch.at(0)).parent_block_hash.has_value());
  }
}

}  // namespace kvwire
