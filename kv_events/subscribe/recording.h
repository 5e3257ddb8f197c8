// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv_events/error.h"
#include "kv_events/wire/frames.h"

namespace kvwire {

// A recorded stream: messages as they were applied, byte for byte.
//
// The file, integers big-endian:
//   8 bytes   "KVWIREC\n"
//   4 bytes   format version, 1
//   then for each message
//   8 bytes   wall time of reception, nanoseconds since 1970
//   8 bytes   sequence number
//   4 bytes   length of the topic, at most 64 KiB
//   4 bytes   length of the payload, at most 64 MiB
//   topic, payload
// A file that ends inside a message was cut off; what comes before is good.
struct RecordedMessage {
  std::uint64_t wall_nanos = 0;
  SequenceNumber sequence = 0;
  std::string topic;
  std::vector<std::uint8_t> payload;

  friend bool operator==(const RecordedMessage&, const RecordedMessage&) = default;
};

inline constexpr std::uint32_t kRecordingVersion = 1;
inline constexpr std::size_t kMaxRecordedTopic = std::size_t{64} << 10;
inline constexpr std::size_t kMaxRecordedPayload = std::size_t{64} << 20;

// Writes a recording. A message is handed to the system whole before Append returns, so that a process that is killed
// leaves all of them readable.
// Threads: one thread at a time. Ownership: owns the file.
// Errors: name the file and the reason. The first failure of a write is final: what came before stays readable, nothing
//   is added, and every later call returns it again.
// Bounds: memory for one message.
class RecordingWriter {
 public:
  // Opens the file, or makes an empty one. What an existing file holds is replaced by the first Append; without one it
  // stays as it is, and only an empty file becomes a recording of no messages, at Close.
  static Result<std::unique_ptr<RecordingWriter>> Create(const std::string& path);

  RecordingWriter(const RecordingWriter&) = delete;
  RecordingWriter& operator=(const RecordingWriter&) = delete;
  // Closes the file; call Close to learn whether all of it was written.
  ~RecordingWriter();

  Status Append(std::uint64_t wall_nanos, SequenceNumber sequence, std::string_view topic,
                std::span<const std::uint8_t> payload);
  Status Close();

 private:
  RecordingWriter(std::string path, int file) : path_(std::move(path)), file_(file) {}
  Status Begin();
  Status Write();
  bool HoldsAnything() const noexcept;
  Error Failure(std::string_view what, int reason) const;

  const std::string path_;
  int file_;                           // -1: closed
  bool begun_ = false;                 // the header is written
  std::uint64_t good_bytes_ = 0;       // written as whole messages, header included
  std::vector<std::uint8_t> scratch_;  // what is written next
  Status status_;
};

// Reads a recording, message by message.
// Threads: one thread at a time. Ownership: owns the file.
class RecordingReader {
 public:
  enum class Outcome : std::uint8_t {
    kMessage,
    kEnd,
    kTruncated,  // the file ends inside a message
    kDamaged,    // a length above its limit, or a number that no batch has: what follows cannot be trusted
  };

  // Errors: no such file, a directory, not a recording, or another version.
  static Result<std::unique_ptr<RecordingReader>> Open(const std::string& path);

  RecordingReader(const RecordingReader&) = delete;
  RecordingReader& operator=(const RecordingReader&) = delete;
  ~RecordingReader();

  // *message is set only with kMessage. Every other outcome is final.
  Outcome Next(RecordedMessage* message);

  // Bytes read so far as whole messages, header included: where a cut or damage begins.
  std::uint64_t good_bytes() const noexcept { return good_bytes_; }

 private:
  RecordingReader(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}

  const std::string path_;
  std::FILE* const file_;
  std::uint64_t good_bytes_ = 0;
  Outcome last_ = Outcome::kMessage;
};

}  // namespace kvwire
