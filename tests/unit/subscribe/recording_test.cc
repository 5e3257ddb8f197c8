// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/recording.h"

#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

namespace kvwire {
namespace {

// A file name that is unique to the process, removed at the end.
struct TempFile {
  TempFile() : path("/tmp/kvwire_recording_test_" + std::to_string(::getpid())) {}
  ~TempFile() { std::remove(path.c_str()); }

  std::string Read() const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  void Write(const std::string& content) const { std::ofstream(path, std::ios::binary) << content; }

  const std::string path;
};

const std::vector<RecordedMessage> kMessages{
    {1'700'000'000'123'456'789, 0, "kv-events", {0x93, 0x01}},
    {1'700'000'001'000'000'000, 1, "", {}},
    {1'700'000'001'000'000'001, 7, std::string("a\0b", 3), std::vector<std::uint8_t>(100'000, 0xab)},
};

std::string Recorded(const TempFile& file) {
  auto writer = RecordingWriter::Create(file.path);
  REQUIRE(writer.has_value());
  for (const RecordedMessage& message : kMessages) {
    REQUIRE((*writer)->Append(message.wall_nanos, message.sequence, message.topic, message.payload).has_value());
  }
  REQUIRE((*writer)->Close().has_value());
  return file.Read();
}

struct Replayed {
  std::vector<RecordedMessage> messages;
  RecordingReader::Outcome outcome = RecordingReader::Outcome::kEnd;
  std::uint64_t good_bytes = 0;
};

Replayed ReadAll(const std::string& path) {
  auto reader = RecordingReader::Open(path);
  REQUIRE(reader.has_value());
  Replayed read;
  RecordedMessage message;
  while ((read.outcome = (*reader)->Next(&message)) == RecordingReader::Outcome::kMessage) {
    read.messages.push_back(message);
  }
  read.good_bytes = (*reader)->good_bytes();
  CHECK((*reader)->Next(&message) == read.outcome);
  return read;
}

TEST_CASE("a recording is read back byte for byte") {
  const TempFile file;
  const std::string content = Recorded(file);
  CHECK(content.substr(0, 12) == std::string("KVWIREC\n\0\0\0\1", 12));
  const Replayed read = ReadAll(file.path);
  CHECK(read.messages == kMessages);
  CHECK(read.outcome == RecordingReader::Outcome::kEnd);
  CHECK(read.good_bytes == content.size());
}

TEST_CASE("a recording that was cut off anywhere gives its whole messages") {
  const TempFile file;
  const std::string content = Recorded(file);
  const std::size_t first = 12 + 24 + 9 + 2;
  const std::size_t second = first + 24;
  for (const std::size_t cut : {first + 1, first + 23, second - 1, second + 24, second + 26, content.size() - 1}) {
    CAPTURE(cut);
    file.Write(content.substr(0, cut));
    const Replayed read = ReadAll(file.path);
    CHECK(read.outcome == RecordingReader::Outcome::kTruncated);
    CHECK(read.messages.size() == (cut < second ? 1 : 2));
    CHECK(read.good_bytes == (cut < second ? first : second));
  }
  file.Write(content.substr(0, 12));
  CHECK(ReadAll(file.path).outcome == RecordingReader::Outcome::kEnd);
}

TEST_CASE("a length above its limit is damage, not an allocation") {
  const TempFile file;
  for (const std::size_t field : {std::size_t{16}, std::size_t{20}}) {
    std::string content = Recorded(file);
    content[12 + field] = '\x7f';
    file.Write(content);
    const Replayed read = ReadAll(file.path);
    CHECK(read.outcome == RecordingReader::Outcome::kDamaged);
    CHECK(read.messages.empty());
    CHECK(read.good_bytes == 12);
  }
}

TEST_CASE("what is not a recording, or of another version, is refused by name") {
  const TempFile file;
  CHECK(RecordingReader::Open(file.path).error().code == ErrorCode::kUnavailable);
  for (const std::string& content : {std::string(), std::string("KVWIREC\n"), std::string("something else entirely")}) {
    file.Write(content);
    const auto reader = RecordingReader::Open(file.path);
    REQUIRE_FALSE(reader.has_value());
    CHECK(reader.error().message.find("is not a kvwire recording") != std::string::npos);
  }
  file.Write(std::string("KVWIREC\n\0\0\0\2", 12));
  const auto reader = RecordingReader::Open(file.path);
  REQUIRE_FALSE(reader.has_value());
  CHECK(reader.error().code == ErrorCode::kUnsupported);
}

TEST_CASE("a message too long to record is refused and a directory cannot be written") {
  const TempFile file;
  auto writer = RecordingWriter::Create(file.path);
  REQUIRE(writer.has_value());
  CHECK((*writer)->Append(0, 0, std::string(kMaxRecordedTopic + 1, 'x'), {}).error().code ==
        ErrorCode::kInvalidArgument);
  CHECK(RecordingWriter::Create("/").error().code == ErrorCode::kUnavailable);
}

TEST_CASE("what a file holds stays until the first message") {
  const TempFile file;
  file.Write("an older recording");
  {
    auto writer = RecordingWriter::Create(file.path);
    REQUIRE(writer.has_value());
    CHECK(file.Read() == "an older recording");
    REQUIRE((*writer)->Close().has_value());
  }
  CHECK(file.Read() == "an older recording");
  auto writer = RecordingWriter::Create(file.path);
  REQUIRE(writer.has_value());
  REQUIRE((*writer)->Append(1, 2, "t", {}).has_value());
  CHECK(file.Read().size() == 12 + 24 + 1);
}

TEST_CASE("every message can be read as soon as it was appended, and nothing at all is a recording too") {
  const TempFile file;
  auto writer = RecordingWriter::Create(file.path);
  REQUIRE(writer.has_value());
  for (std::size_t i = 0; i < kMessages.size(); ++i) {
    const RecordedMessage& message = kMessages[i];
    REQUIRE((*writer)->Append(message.wall_nanos, message.sequence, message.topic, message.payload).has_value());
    CHECK(ReadAll(file.path).messages.size() == i + 1);
  }
  const TempFile empty;
  std::remove(empty.path.c_str());
  auto none = RecordingWriter::Create(empty.path);
  REQUIRE(none.has_value());
  REQUIRE((*none)->Close().has_value());
  const Replayed read = ReadAll(empty.path);
  CHECK(read.messages.empty());
  CHECK(read.outcome == RecordingReader::Outcome::kEnd);
}

TEST_CASE("a write that fails is said, is final, and leaves the whole messages") {
  auto full = RecordingWriter::Create("/dev/full");
  REQUIRE(full.has_value());
  for (int i = 0; i < 2; ++i) {
    const Status appended = (*full)->Append(1, 2, "t", {});
    REQUIRE_FALSE(appended.has_value());
    CHECK(appended.error().message == "cannot write /dev/full: No space left on device");
  }
  CHECK_FALSE((*full)->Close().has_value());

  auto empty = RecordingWriter::Create("/dev/full");
  REQUIRE(empty.has_value());
  const Status closed = (*empty)->Close();
  REQUIRE_FALSE(closed.has_value());
  CHECK(closed.error().message == "cannot write /dev/full: No space left on device");

  // The file may grow to a certain size only.
  const TempFile file;
  auto writer = RecordingWriter::Create(file.path);
  REQUIRE(writer.has_value());
  REQUIRE((*writer)->Append(1, 2, "t", {}).has_value());
  const std::string good = file.Read();
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit small{good.size() + 30, limit.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const Status appended = (*writer)->Append(1, 3, "t", std::vector<std::uint8_t>(100, 1));
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  std::signal(SIGXFSZ, before);
  CHECK_FALSE(appended.has_value());
  CHECK_FALSE((*writer)->Append(1, 4, "t", {}).has_value());
  CHECK_FALSE((*writer)->Close().has_value());
  CHECK(file.Read() == good);
}

TEST_CASE("a directory is no recording, and is named as one") {
  const auto reader = RecordingReader::Open("/");
  REQUIRE_FALSE(reader.has_value());
  CHECK(reader.error().message == "cannot read /: is a directory");
}

}  // namespace
}  // namespace kvwire
