// SPDX-License-Identifier: Apache-2.0
#include "engine/http/request_body.h"

#include <string>

#include <doctest/doctest.h>

namespace kvwire::engine {
namespace {

std::string ErrorOf(const std::string& text, int status = 400) {
  const auto body = ParseBody(text);
  REQUIRE_FALSE(body.has_value());
  CHECK(body.error().status == status);
  CHECK_FALSE(body.error().param.has_value());
  return body.error().message;
}

TEST_CASE("a body is a JSON object") {
  CHECK(ParseBody(R"({"a": [1, {"b": null}], "c": {"a": 1}})").value()["a"][0] == 1);
  CHECK(ParseBody("{}").value().empty());
  CHECK(ErrorOf("[1]") == "the body is \"[1]\", expected a JSON object");
  CHECK(ErrorOf("null") == "the body is \"null\", expected a JSON object");
}

TEST_CASE("what is wrong with a body is said with its place") {
  CHECK(ErrorOf("") == "the body is no JSON at byte 1, after \"\"");
  CHECK(ErrorOf("{\"a\": tru}") == "the body is no JSON at byte 10, after \"{\"a\": tru}\"");
  CHECK(ErrorOf("{} {}") == "the body is no JSON at byte 4, after \"{} {\"");
  CHECK(ErrorOf("{\"a\": \"\xff\"}") == "the body is no UTF-8 at byte 7, near \"\\xff\"}\"");
  CHECK(ErrorOf("{\"a\": \"\xed\xa0\x80\"}").find("no UTF-8 at byte 7") != std::string::npos);
  CHECK(ErrorOf(R"({"a": "\ud800"})").find("no JSON") != std::string::npos);
  CHECK(ErrorOf(R"({"a": 1e999})") == "the body has the number 1e999 at byte 11, expected one that a double holds");
}

TEST_CASE("a key that an object has twice is refused, at any depth; in two objects it is not") {
  CHECK(ErrorOf(R"({"n": 1, "n": 2})") == "the body has the key \"n\" twice in one object, expected once");
  CHECK(ErrorOf(R"({"a": [{"b\u0001": 1, "b\u0001": 1}]})") ==
        "the body has the key \"b\\x01\" twice in one object, expected once");
  CHECK(ParseBody(R"({"a": {"b": 1}, "b": [{"b": 1}, {"b": 1}]})").has_value());
}

TEST_CASE("size, depth and number of values have bounds") {
  std::string large = R"({"a": ")" + std::string(kMaxBodyBytes - 8, 'x') + "\"}";
  REQUIRE(large.size() == kMaxBodyBytes + 1);
  CHECK(ErrorOf(large, 413) == "the body has 33554433 bytes, expected at most 33554432");
  large.erase(7, 1);
  CHECK(ParseBody(large).has_value());

  const auto nested = [](std::size_t depth) {
    return R"({"a": )" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
  };
  CHECK(ParseBody(nested(kMaxBodyDepth)).has_value());
  CHECK(ErrorOf(nested(kMaxBodyDepth + 1)) == "the body nests objects and lists deeper than 32");
  CHECK(ErrorOf(std::string(1'000'000, '[')) == "the body nests objects and lists deeper than 32");

  std::string many = R"({"a": [1)";
  for (std::size_t i = 3; i < kMaxBodyValues; ++i) many += ",1";
  CHECK(ParseBody(many + "]}").has_value());
  CHECK(ErrorOf(many + ",1]}") == "the body has more than 4194304 values");
}

}  // namespace
}  // namespace kvwire::engine
