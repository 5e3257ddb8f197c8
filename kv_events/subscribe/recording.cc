// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/recording.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvwire {

namespace {

constexpr std::string_view kMagic = "KVWIREC\n";
constexpr std::size_t kFileHeader = 12;
constexpr std::size_t kMessageHeader = 24;

void Put(std::uint8_t* out, std::uint64_t value, std::size_t width) {
  for (std::size_t i = width; i-- > 0; value >>= 8) out[i] = static_cast<std::uint8_t>(value);
}

std::uint64_t Get(const std::uint8_t* in, std::size_t width) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < width; ++i) value = value << 8 | in[i];
  return value;
}

// 0, or why not all of it could be written.
int WriteAll(int file, std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return 0;
}

bool Read(std::FILE* file, void* data, std::size_t size) {
  return size == 0 || std::fread(data, 1, size, file) == size;
}

}  // namespace

Result<std::unique_ptr<RecordingWriter>> RecordingWriter::Create(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) {
    return MakeError(ErrorCode::kUnavailable, fmt::format("cannot write {}: {}", path, std::strerror(errno)));
  }
  return std::unique_ptr<RecordingWriter>(new RecordingWriter(path, file));
}

RecordingWriter::~RecordingWriter() {
  if (file_ >= 0) ::close(file_);
}

Error RecordingWriter::Failure(std::string_view what, int reason) const {
  return {ErrorCode::kUnavailable, fmt::format("cannot {} {}: {}", what, path_, std::strerror(reason))};
}

bool RecordingWriter::HoldsAnything() const noexcept {
  struct stat info {};
  return ::fstat(file_, &info) == 0 && S_ISREG(info.st_mode) && info.st_size != 0;
}

// Whatever the file held gives way to a header.
Status RecordingWriter::Begin() {
  struct stat info {};
  // Devices and pipes have nothing to cut.
  const bool regular = ::fstat(file_, &info) == 0 && S_ISREG(info.st_mode);
  if (regular && ::ftruncate(file_, 0) != 0) return tl::unexpected<Error>(Failure("write", errno));
  begun_ = true;
  scratch_.assign(kMagic.begin(), kMagic.end());
  scratch_.resize(kFileHeader);
  Put(scratch_.data() + kMagic.size(), kRecordingVersion, 4);
  return Write();
}

// Writes scratch_; of a write that fails halfway nothing stays.
Status RecordingWriter::Write() {
  const int reason = WriteAll(file_, scratch_);
  if (reason == 0) {
    good_bytes_ += scratch_.size();
    return {};
  }
  // The reader copes with what cannot be cut.
  [[maybe_unused]] const int cut = ::ftruncate(file_, static_cast<off_t>(good_bytes_));
  return tl::unexpected<Error>(Failure("write", reason));
}

Status RecordingWriter::Append(std::uint64_t wall_nanos, SequenceNumber sequence, std::string_view topic,
                               std::span<const std::uint8_t> payload) {
  if (topic.size() > kMaxRecordedTopic || payload.size() > kMaxRecordedPayload) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("message {} with a topic of {} and a payload of {} bytes is too long to record",
                                 sequence, topic.size(), payload.size()));
  }
  if (status_ && !begun_) status_ = Begin();
  if (!status_) return status_;
  scratch_.resize(kMessageHeader);
  Put(scratch_.data(), wall_nanos, 8);
  Put(scratch_.data() + 8, sequence, 8);
  Put(scratch_.data() + 16, topic.size(), 4);
  Put(scratch_.data() + 20, payload.size(), 4);
  scratch_.insert(scratch_.end(), topic.begin(), topic.end());
  scratch_.insert(scratch_.end(), payload.begin(), payload.end());
  return status_ = Write();
}

Status RecordingWriter::Close() {
  if (file_ < 0) return status_;
  if (status_ && !begun_ && !HoldsAnything()) status_ = Begin();
  if (::close(std::exchange(file_, -1)) != 0 && status_) status_ = tl::unexpected<Error>(Failure("close", errno));
  return status_;
}

Result<std::unique_ptr<RecordingReader>> RecordingReader::Open(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    return MakeError(ErrorCode::kUnavailable, fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  }
  std::unique_ptr<RecordingReader> reader(new RecordingReader(path, file));
  std::array<std::uint8_t, kFileHeader> header{};
  errno = 0;
  const bool whole = Read(file, header.data(), header.size());
  if (std::ferror(file) != 0) {
    const std::string_view reason = errno == EISDIR ? "is a directory" : std::strerror(errno);
    return MakeError(ErrorCode::kUnavailable, fmt::format("cannot read {}: {}", path, reason));
  }
  if (!whole || std::memcmp(header.data(), kMagic.data(), kMagic.size()) != 0) {
    return MakeError(ErrorCode::kInvalidArgument, fmt::format("{} is not a kvwire recording", path));
  }
  const std::uint64_t version = Get(header.data() + kMagic.size(), 4);
  if (version != kRecordingVersion) {
    return MakeError(ErrorCode::kUnsupported, fmt::format("{} has recording format {}; this program reads format {}",
                                                          path, version, kRecordingVersion));
  }
  reader->good_bytes_ = header.size();
  return reader;
}

RecordingReader::~RecordingReader() { std::fclose(file_); }

RecordingReader::Outcome RecordingReader::Next(RecordedMessage* message) {
  if (last_ != Outcome::kMessage) return last_;
  std::array<std::uint8_t, kMessageHeader> header{};
  const std::size_t got = std::fread(header.data(), 1, header.size(), file_);
  if (got == 0 && std::feof(file_) != 0) return last_ = Outcome::kEnd;
  if (got != header.size()) return last_ = Outcome::kTruncated;
  const std::size_t topic = Get(header.data() + 16, 4);
  const std::size_t payload = Get(header.data() + 20, 4);
  const SequenceNumber sequence = Get(header.data() + 8, 8);
  if (topic > kMaxRecordedTopic || payload > kMaxRecordedPayload || sequence == kEndOfReplay) {
    return last_ = Outcome::kDamaged;
  }
  RecordedMessage read;
  read.wall_nanos = Get(header.data(), 8);
  read.sequence = sequence;
  read.topic.resize(topic);
  read.payload.resize(payload);
  if (!Read(file_, read.topic.data(), topic) || !Read(file_, read.payload.data(), payload)) {
    return last_ = Outcome::kTruncated;
  }
  good_bytes_ += header.size() + topic + payload;
  *message = std::move(read);
  return Outcome::kMessage;
}

}  // namespace kvwire
