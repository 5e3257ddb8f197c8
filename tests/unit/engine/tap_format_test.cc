// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/tap_format.h"

#include <algorithm>
#include <string>

#include <doctest/doctest.h>

namespace kvwire::engine {
namespace {

// A batch whose texts would clear the screen, forge a line and are no UTF-8.
DecodedBatch HostileBatch() {
  const BlockHash hash = BlockHash::FromUint64(1);
  BlockStored stored;
  stored.block_hashes = {&hash, 1};
  stored.medium = "G\x1b[2JPU";
  stored.lora_name = "a\n     0  b\xff\xc2\x9b";
  DecodedBatch decoded;
  decoded.batch.Add(stored);
  decoded.rejected.resize(1);
  decoded.rejected[0].error.message = "unknown event \"\x7f\n\"";
  return decoded;
}

TEST_CASE("texts of a payload are printed on one line, without control characters") {
  const std::string text = BatchAsText(StreamMessage(), HostileBatch(), 10);
  CHECK(text.find("medium=G\\x1b[2JPU") != std::string::npos);
  CHECK(text.find("lora_name=a\\x0a\\x20\\x20\\x20\\x20\\x200\\x20\\x20b\\xff\\xc2\\x9b") != std::string::npos);
  CHECK(text.find("rejected: unknown event \"\\x7f\\x0a\"\n") != std::string::npos);
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);
  CHECK(text.find('\x1b') == std::string::npos);
}

TEST_CASE("a batch without a time has none in either form") {
  DecodedBatch decoded;
  decoded.batch.ts = 1.5;
  CHECK(BatchAsJson(StreamMessage(), decoded)["ts"] == 1.5);
  CHECK(BatchAsText(StreamMessage(), decoded, 1).find("  1.500  ") != std::string::npos);
  decoded.batch.ts = 0;
  decoded.without_time = true;
  CHECK(BatchAsJson(StreamMessage(), decoded)["ts"].is_null());
  CHECK(BatchAsText(StreamMessage(), decoded, 1).find("  no time  ") != std::string::npos);
}

TEST_CASE("a line of JSON has no control characters and reads the same") {
  const std::string text = "\x1b \x7f \xc2\x80 \xc2\x9b \xc2\xa0 \xe4\xb8\xad \\u007f";
  const std::string line = JsonLine(Json{{text, text}});
  CHECK(Json::parse(line) == Json{{text, text}});
  CHECK(line.find('\x7f') == std::string::npos);
  CHECK(line.find("\xc2\x80") == std::string::npos);
  CHECK(line.find("\xc2\x9b") == std::string::npos);
  CHECK(line.find("\xe4\xb8\xad") != std::string::npos);
  CHECK(JsonLine(Json("\xff")) == "\"\xef\xbf\xbd\"\n");
}

}  // namespace
}  // namespace kvwire::engine
