// SPDX-License-Identifier: Apache-2.0
// A file that is said to be a recording.
#include <algorithm>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "kv_events/subscribe/recording.h"
#include "tests/fuzz/fuzz_target.h"

namespace kvwire::fuzz {
namespace {

// A file in memory, with a name that any program part can open.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(::memfd_create("kvwire_recording", 0)) { KVWIRE_PROMISE(descriptor_ >= 0); }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

  void Write(const std::uint8_t* data, std::size_t size) const {
    KVWIRE_PROMISE(::pwrite(descriptor_, data, size, 0) == static_cast<ssize_t>(size));
  }

  std::vector<std::uint8_t> Read() const {
    std::vector<std::uint8_t> content(static_cast<std::size_t>(::lseek(descriptor_, 0, SEEK_END)));
    KVWIRE_PROMISE(::pread(descriptor_, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()));
    return content;
  }

 private:
  const int descriptor_;
};

using Outcome = RecordingReader::Outcome;

}  // namespace
}  // namespace kvwire::fuzz

// What was read as messages is, written again, the part of the file that the reader calls good.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvwire;
  const fuzz::MemoryFile file;
  file.Write(data, size);
  const auto reader = RecordingReader::Open(file.path());
  if (!reader) {
    KVWIRE_PROMISE(fuzz::IsOneLine(reader.error().message));
    return 0;
  }
  const fuzz::MemoryFile copy;
  const auto writer = RecordingWriter::Create(copy.path());
  KVWIRE_PROMISE(writer.has_value());
  RecordedMessage message;
  fuzz::Outcome outcome = (*reader)->Next(&message);
  for (; outcome == fuzz::Outcome::kMessage; outcome = (*reader)->Next(&message)) {
    KVWIRE_PROMISE(message.topic.size() <= kMaxRecordedTopic && message.payload.size() <= kMaxRecordedPayload);
    const Status appended = (*writer)->Append(message.wall_nanos, message.sequence, message.topic, message.payload);
    KVWIRE_PROMISE(appended.has_value());
  }
  KVWIRE_PROMISE((*reader)->Next(&message) == outcome);
  KVWIRE_PROMISE((*writer)->Close().has_value());
  const std::uint64_t good = (*reader)->good_bytes();
  KVWIRE_PROMISE(good <= size);
  KVWIRE_PROMISE((outcome == fuzz::Outcome::kEnd) == (good == size));
  KVWIRE_PROMISE(std::ranges::equal(copy.Read(), std::span(data, static_cast<std::size_t>(good))));
  return 0;
}
