// SPDX-License-Identifier: Apache-2.0
#include "engine/trace.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>
#include <utility>

#include <doctest/doctest.h>

namespace kvwire::engine {
namespace {

std::string ErrorOf(const std::string& line) {
  const auto request = ParseTraceLine(7, line);
  REQUIRE_FALSE(request.has_value());
  CHECK(request.error().code == ErrorCode::kInvalidArgument);
  return request.error().message;
}

// A file that disappears again.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content) {
    char path[] = "/tmp/kvwire_trace_XXXXXX";
    const int fd = ::mkstemp(path);
    REQUIRE(fd >= 0);
    path_ = path;
    std::FILE* file = ::fdopen(fd, "wb");
    REQUIRE(std::fwrite(content.data(), 1, content.size(), file) == content.size());
    std::fclose(file);
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST_CASE("a trace line is read; unknown keys are ignored") {
  const auto request = ParseTraceLine(
      3, R"({"timestamp": 27.5, "input_length": 1025, "output_length": 9, "hash_ids": [0, 5, 17179869183], "x": {}})");
  REQUIRE(request.has_value());
  CHECK(*request == TraceRequest{3, 27.5, 1025, 9, {0, 5, 17179869183}});
}

TEST_CASE("what is wrong with a trace line is named with line, field and value") {
  CHECK(ErrorOf("hello") == "trace line 7: \"hello\" is not a JSON object");
  CHECK(ErrorOf("[1, 2]") == "trace line 7: \"[1, 2]\" is not a JSON object");
  CHECK(ErrorOf(R"({"input_length": 1, "output_length": 1, "hash_ids": [1]})") ==
        "trace line 7: timestamp is missing, expected milliseconds, 0 or more");
  CHECK(ErrorOf(R"({"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [1]})") ==
        "trace line 7: timestamp is -1, expected milliseconds, 0 or more");
  CHECK(ErrorOf(R"({"timestamp": 0, "output_length": 1, "hash_ids": [1]})") ==
        "trace line 7: input_length is missing, expected an integer from 1 to 16777216");
  CHECK(ErrorOf(R"({"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []})") ==
        "trace line 7: input_length is 0, expected an integer from 1 to 16777216");
  CHECK(ErrorOf(R"({"timestamp": 0, "input_length": 16777217, "output_length": 1, "hash_ids": []})") ==
        "trace line 7: input_length is 16777217, expected an integer from 1 to 16777216");
  CHECK(ErrorOf(R"({"timestamp": 0, "input_length": 5, "output_length": "x", "hash_ids": [1]})") ==
        "trace line 7: output_length is \"x\", expected an integer from 1 to 16777216");
  CHECK(ErrorOf(R"({"timestamp": 0, "input_length": 5, "output_length": 1.5, "hash_ids": [1]})") ==
        "trace line 7: output_length is 1.5, expected an integer from 1 to 16777216");
  CHECK(ErrorOf(R"({"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1]})") ==
        "trace line 7: hash_ids is a list of 1, expected a list of 2 ids, one for each 512 tokens of input_length 513");
  CHECK(ErrorOf(R"({"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": 4})") ==
        "trace line 7: hash_ids is 4, expected a list of 1 ids, one for each 512 tokens of input_length 5");
  CHECK(ErrorOf(R"({"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1, -2]})") ==
        "trace line 7: hash_ids[1] is -2, expected an integer from 0 to 17179869183");
  CHECK(ErrorOf(R"({"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [17179869184]})") ==
        "trace line 7: hash_ids[0] is 17179869184, expected an integer from 0 to 17179869183");
}

TEST_CASE("an id always means the same tokens, whatever part of it is asked for") {
  std::vector<TokenId> whole(kTraceChunk);
  FillTraceTokens(12345, 0, whole);
  for (const std::uint32_t first : {0u, 1u, 2u, 15u, 16u, 511u}) {
    for (const std::uint32_t count : {0u, 1u, 2u, 5u}) {
      if (first + count > kTraceChunk) continue;
      std::vector<TokenId> part(count);
      FillTraceTokens(12345, first, part);
      CHECK(std::equal(part.begin(), part.end(), whole.begin() + first));
    }
  }
  CHECK(*std::max_element(whole.begin(), whole.end()) < kTraceVocabulary);
  CHECK(std::set<TokenId>(whole.begin(), whole.end()).size() > 500);
}

TEST_CASE("different ids differ in every aligned pair of tokens") {
  std::set<std::pair<TokenId, TokenId>> seen;
  for (std::uint64_t id = 0; id < 50000; ++id) {
    TokenId pair[2];
    FillTraceTokens(id, 6, pair);
    seen.emplace(pair[0], pair[1]);
  }
  CHECK(seen.size() == 50000);
}

TEST_CASE("a prompt is its ids' tokens, the last one cut") {
  const TraceRequest request{1, 0, 514, 1, {4, 9}};
  const std::vector<TokenId> tokens = TracePromptTokens(request);
  REQUIRE(tokens.size() == 514);
  std::vector<TokenId> first(kTraceChunk), second(2);
  FillTraceTokens(4, 0, first);
  FillTraceTokens(9, 0, second);
  CHECK(std::equal(first.begin(), first.end(), tokens.begin()));
  CHECK(tokens[512] == second[0]);
  CHECK(tokens[513] == second[1]);
}

TEST_CASE("a trace is read line by line, blank lines skipped, the last newline optional") {
  const std::string line = R"({"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [1]})";
  const TemporaryFile file(line + "\n\n  \r\n" + line);
  auto reader = TraceReader::Open(file.path());
  REQUIRE(reader.has_value());
  CHECK((*reader)->Next().value().value().line == 1);
  CHECK((*reader)->progress() > 0.4);
  CHECK((*reader)->Next().value().value().line == 4);
  CHECK_FALSE((*reader)->Next().value().has_value());
  CHECK_FALSE((*reader)->Next().value().has_value());
  CHECK((*reader)->progress() == 1.0);
}

TEST_CASE("a bad line ends the trace, and is counted in lines of the file") {
  const TemporaryFile file("\n{}\n");
  auto reader = TraceReader::Open(file.path());
  REQUIRE(reader.has_value());
  const auto request = (*reader)->Next();
  REQUIRE_FALSE(request.has_value());
  CHECK(request.error().message.find("trace line 2: timestamp is missing") == 0);
  CHECK_FALSE((*reader)->Next().value().has_value());
}

TEST_CASE("a line without end is refused, not kept") {
  const TemporaryFile file(std::string(kMaxTraceLineBytes + 1, 'x'));
  auto reader = TraceReader::Open(file.path());
  REQUIRE(reader.has_value());
  const auto request = (*reader)->Next();
  REQUIRE_FALSE(request.has_value());
  CHECK(request.error().message.find("longer than 1048576 bytes") != std::string::npos);
}

TEST_CASE("a trace that is not there is named") {
  const auto reader = TraceReader::Open("/nonexistent/trace.jsonl");
  REQUIRE_FALSE(reader.has_value());
  CHECK(reader.error().code == ErrorCode::kUnavailable);
  CHECK(reader.error().message.find("/nonexistent/trace.jsonl") != std::string::npos);
}

TEST_CASE("a directory is no trace, and is named as one") {
  const auto reader = TraceReader::Open("/");
  REQUIRE_FALSE(reader.has_value());
  CHECK(reader.error().message == "cannot read the trace \"/\": is a directory");
}

TEST_CASE("a line that is no JSON is quoted escaped") {
  const auto request = ParseTraceLine(3, "\x1b[2J\xff");
  REQUIRE_FALSE(request.has_value());
  CHECK(request.error().message == "trace line 3: \"\\x1b[2J\\xff\" is not a JSON object");
}

}  // namespace
}  // namespace kvwire::engine
