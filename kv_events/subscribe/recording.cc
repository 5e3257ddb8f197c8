// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/recording.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

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

bool Write(std::FILE* file, const void* data, std::size_t size) {
  return size == 0 || std::fwrite(data, 1, size, file) == size;
}

bool Read(std::FILE* file, void* data, std::size_t size) {
  return size == 0 || std::fread(data, 1, size, file) == size;
}

}  // namespace

Result<std::unique_ptr<RecordingWriter>> RecordingWriter::Create(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) {
    return MakeError(ErrorCode::kUnavailable, fmt::format("cannot write {}: {}", path, std::strerror(errno)));
  }
  std::unique_ptr<RecordingWriter> writer(new RecordingWriter(path, file));
  std::array<std::uint8_t, kFileHeader> header{};
  std::memcpy(header.data(), kMagic.data(), kMagic.size());
  Put(header.data() + kMagic.size(), kRecordingVersion, 4);
  if (!Write(file, header.data(), header.size())) return tl::unexpected<Error>(writer->Failed("write").error());
  return writer;
}

RecordingWriter::~RecordingWriter() {
  if (file_ != nullptr) std::fclose(file_);
}

Status RecordingWriter::Failed(std::string_view what) const {
  return MakeError(ErrorCode::kUnavailable, fmt::format("cannot {} {}: {}", what, path_, std::strerror(errno)));
}

Status RecordingWriter::Append(std::uint64_t wall_nanos, SequenceNumber sequence, std::string_view topic,
                               std::span<const std::uint8_t> payload) {
  if (topic.size() > kMaxRecordedTopic || payload.size() > kMaxRecordedPayload) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("message {} with a topic of {} and a payload of {} bytes is too long to record",
                                 sequence, topic.size(), payload.size()));
  }
  std::array<std::uint8_t, kMessageHeader> header{};
  Put(header.data(), wall_nanos, 8);
  Put(header.data() + 8, sequence, 8);
  Put(header.data() + 16, topic.size(), 4);
  Put(header.data() + 20, payload.size(), 4);
  if (!Write(file_, header.data(), header.size()) || !Write(file_, topic.data(), topic.size()) ||
      !Write(file_, payload.data(), payload.size())) {
    return Failed("write");
  }
  return {};
}

Status RecordingWriter::Close() {
  if (file_ == nullptr) return {};
  if (std::fclose(std::exchange(file_, nullptr)) != 0) return Failed("close");
  return {};
}

Result<std::unique_ptr<RecordingReader>> RecordingReader::Open(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    return MakeError(ErrorCode::kUnavailable, fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  }
  std::unique_ptr<RecordingReader> reader(new RecordingReader(path, file));
  std::array<std::uint8_t, kFileHeader> header{};
  if (!Read(file, header.data(), header.size()) || std::memcmp(header.data(), kMagic.data(), kMagic.size()) != 0) {
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
  if (topic > kMaxRecordedTopic || payload > kMaxRecordedPayload) return last_ = Outcome::kDamaged;
  RecordedMessage read;
  read.wall_nanos = Get(header.data(), 8);
  read.sequence = Get(header.data() + 8, 8);
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
