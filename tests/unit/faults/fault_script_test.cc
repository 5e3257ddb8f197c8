// SPDX-License-Identifier: Apache-2.0
#include "engine/faults/fault_script.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace kvwire::test {
namespace {

using engine::Fault;
using engine::FaultKind;
using engine::FaultPlace;
using engine::FaultScript;

constexpr const char* kHash64 = "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF";

FaultScript MustParse(const std::string& json) {
  auto script = FaultScript::FromJson(json);
  REQUIRE_MESSAGE(script.has_value(), script.error().message);
  return *std::move(script);
}

TEST_CASE("a script is read with all that it says, and written again the same") {
  const std::string json = R"({"seed":7,"faults":[{"kind":"drop","at":12},{"kind":"duplicate","every":10,"count":3},)"
                           R"({"kind":"delay","probability":0.01,"ms":50},{"kind":"undecodable","at":0},)"
                           R"({"kind":"overflow","every":1},{"kind":"evict","at":3,"block":"0011223344556677"},)"
                           R"({"kind":"preempt","at":4},{"kind":"reset","at":5},)"
                           R"({"kind":"restart","at":6,"first_number":9}]})";
  const FaultScript script = MustParse(json);
  CHECK(script.seed == 7);
  REQUIRE(script.faults.size() == 9);
  for (std::size_t i = 0; i < 9; ++i) CHECK(script.faults[i].kind == static_cast<FaultKind>(i));
  CHECK(script.faults[0].at == 12);
  CHECK(script.faults[1].every == 10);
  CHECK(script.faults[1].count == 3);
  CHECK(script.faults[2].probability == 0.01);
  CHECK(script.faults[2].delay_ms == 50);
  CHECK(script.faults[5].block == BlockHash::FromUint64(0x0011223344556677));
  CHECK(script.faults[8].first_number == 9);
  CHECK(script.ToJson() == json);
  CHECK(MustParse(script.ToJson()) == script);
}

TEST_CASE("a script may leave out its seed and its faults") {
  CHECK(MustParse("{}") == FaultScript());
  CHECK(MustParse(R"({"seed": 18446744073709551615})").seed == ~std::uint64_t{0});
}

TEST_CASE("a block is named by 64 digits of SHA-256, 32 of XXH3-128 or the last 16, in one group or in all") {
  for (const std::size_t digits : {16, 32, 64}) {
    const std::string json =
        R"({"faults": [{"kind": "evict", "at": 1, "block": ")" + std::string(digits, 'a') + "\"}]}";
    const Result<FaultScript> script = FaultScript::FromJson(json);
    REQUIRE_MESSAGE(script.has_value(), script.error().message);
    CHECK(script->faults[0].block.ToHex() == std::string(digits, 'a'));
    CHECK_FALSE(script->faults[0].group.has_value());
  }
  const std::string grouped = R"({"seed":0,"faults":[{"kind":"evict","at":1,"block":"0123456789abcdef","group":2}]})";
  const Result<FaultScript> script = FaultScript::FromJson(grouped);
  CHECK(script.value().faults[0].group == 2);
  CHECK(script.value().ToJson() == grouped);
}

TEST_CASE("what is wrong in a script is refused with field, value and what is allowed") {
  struct Row {
    std::string json;
    std::string message;
  };
  const std::string kinds =
      R"("drop", "duplicate", "delay", "undecodable", "overflow", "evict", "preempt", "reset" or "restart")";
  const std::string hash = "faults[0].block: \"";
  const std::string digits = "\"; allowed: 16, 32 or 64 hexadecimal digits";
  const Row rows[] = {
      {"", "faults: \"\" is not a JSON object"},
      {"[]", "faults: \"[]\" is not a JSON object"},
      {"{\"faults\":", "faults: \"{\"faults\":\" is not a JSON object"},
      {R"({"sed": 1})", R"(unknown key "sed" with the value 1; allowed: "seed" or "faults")"},
      {R"({"seed": -1})", "seed: -1; allowed: 0 to 18446744073709551615"},
      {R"({"seed": "x"})", "seed: \"x\"; allowed: 0 to 18446744073709551615"},
      {R"({"faults": {}})", "faults: {}; allowed: a list of faults"},
      {R"({"faults": [3]})", "faults[0]: 3; allowed: an object"},
      {R"({"faults": [{"at": 1}]})", "faults[0].kind: missing; allowed: " + kinds},
      {R"({"faults": [{"kind": "lose", "at": 1}]})", "faults[0].kind: \"lose\"; allowed: " + kinds},
      {R"({"faults": [{"kind": 1, "at": 1}]})", "faults[0].kind: 1; allowed: " + kinds},
      {R"({"faults": [{"kind": "drop", "at": 1, "ms": 5}]})",
       R"(faults[0]: unknown key "ms" with the value 5; allowed: "kind", "at", "every", "probability" or "count")"},
      {R"({"faults": [{"kind": "delay", "at": 1, "block": 5}]})",
       R"(faults[0]: unknown key "block" with the value 5; )"
       R"(allowed: "kind", "at", "every", "probability", "count" or "ms")"},
      {R"({"faults": [{"kind": "evict", "at": 1, "block": "0123456789abcdef", "group": 65536}]})",
       "faults[0].group: 65536; allowed: 0 to 65535"},
      {R"({"faults": [{"kind": "drop"}]})", "faults[0]: 0 of at, every and probability; allowed: exactly one of them"},
      {R"({"faults": [{"kind": "drop", "at": 1}, {"kind": "drop", "at": 1, "every": 2}]})",
       "faults[1]: 2 of at, every and probability; allowed: exactly one of them"},
      {R"({"faults": [{"kind": "drop", "at": -1}]})", "faults[0].at: -1; allowed: 0 to 9223372036854775807"},
      {R"({"faults": [{"kind": "drop", "at": 1.5}]})", "faults[0].at: 1.5; allowed: 0 to 9223372036854775807"},
      {R"({"faults": [{"kind": "drop", "at": 9223372036854775808}]})",
       "faults[0].at: 9223372036854775808; allowed: 0 to 9223372036854775807"},
      {R"({"faults": [{"kind": "drop", "every": 0}]})", "faults[0].every: 0; allowed: 1 to 9223372036854775807"},
      {R"({"faults": [{"kind": "drop", "probability": 1.5}]})", "faults[0].probability: 1.5; allowed: 0 to 1"},
      {R"({"faults": [{"kind": "drop", "probability": "1"}]})", "faults[0].probability: \"1\"; allowed: 0 to 1"},
      {R"({"faults": [{"kind": "drop", "every": 2, "count": 0}]})",
       "faults[0].count: 0; allowed: 1 to 9223372036854775807"},
      {R"({"faults": [{"kind": "drop", "at": 2, "count": 1}]})", "faults[0].count: 1; allowed: none with \"at\""},
      {R"({"faults": [{"kind": "delay", "at": 2}]})", "faults[0].ms: missing; allowed: 1 to 60000"},
      {R"({"faults": [{"kind": "delay", "at": 2, "ms": 0}]})", "faults[0].ms: 0; allowed: 1 to 60000"},
      {R"({"faults": [{"kind": "delay", "at": 2, "ms": 60001}]})", "faults[0].ms: 60001; allowed: 1 to 60000"},
      {R"({"faults": [{"kind": "evict", "at": 2}]})", "faults[0].block: missing; allowed: the name of a block"},
      {R"({"faults": [{"kind": "evict", "at": 2, "block": "00112233"}]})", hash + "00112233" + digits},
      {R"({"faults": [{"kind": "evict", "at": 2, "block": "001122334455667g"}]})", hash + "001122334455667g" + digits},
      {R"({"faults": [{"kind": "evict", "at": 2, "block": 17}]})", hash + "17" + digits},
      {R"({"faults": [{"kind": "restart", "at": 2, "first_number": -5}]})",
       "faults[0].first_number: -5; allowed: 0 to 9223372036854775807"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.json);
    const auto script = FaultScript::FromJson(row.json);
    REQUIRE_FALSE(script.has_value());
    CHECK(script.error().code == ErrorCode::kInvalidArgument);
    CHECK(script.error().message.substr(0, row.message.size()) == row.message);
  }
}

TEST_CASE("a script has at most 1000 faults") {
  std::string list;
  for (int i = 0; i < 1000; ++i) list += R"({"kind":"drop","at":1},)";
  CHECK(FaultScript::FromJson("{\"faults\":[" + list.substr(0, list.size() - 1) + "]}").has_value());
  const auto refused = FaultScript::FromJson("{\"faults\":[" + list + R"({"kind":"drop","at":1}]})");
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message == "faults: a list of more than 1000; allowed: 1000 at most");
}

TEST_CASE("a block is named by all bytes of its hash or by their last 64 bits") {
  const auto whole = engine::ParseBlockName(kHash64, "block");
  REQUIRE(whole.has_value());
  CHECK(whole->size() == 32);
  CHECK(whole->Low64() == 0x8899aabbccddeeff);
  const auto low = engine::ParseBlockName("8899AABBCCDDEEFF", "block");
  REQUIRE(low.has_value());
  CHECK(low->size() == 8);
  CHECK(low->Low64() == whole->Low64());
}

TEST_CASE("kinds that are carried out elsewhere are refused by name") {
  const FaultScript script = MustParse(R"({"faults":[{"kind":"drop","at":1},{"kind":"overflow","at":2}]})");
  const FaultPlace link[] = {FaultPlace::kLink};
  const Status refused = script.CheckPlaces(link, "play");
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message ==
        R"(faults[1].kind: "overflow", which play cannot do; allowed: "drop", "duplicate", "delay" or "undecodable")");
  const FaultPlace both[] = {FaultPlace::kLink, FaultPlace::kQueue};
  CHECK(script.CheckPlaces(both, "play").has_value());
}

}  // namespace
}  // namespace kvwire::test
