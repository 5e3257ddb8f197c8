// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kv_events/clock.h"
#include "kv_events/publish/replay_buffer.h"
#include "kv_events/publish/replay_service.h"
#include "kv_events/subscribe/recording.h"
#include "kv_events/transport/frame_link.h"

namespace kvwire::engine {

// Publishes a recording again, byte for byte and with its numbers, and answers replay requests from it. An agent.
//
// A number that is not above the one before is a restart of the recorded publisher: the replay buffer begins anew.
// Replayed messages carry the topic of the first message.
//
// Threads: one thread. Ownership: owns the reader, borrows the links.
class RecordingPlayer {
 public:
  struct Options {
    double speed = 0;  // times as fast as recorded; 0: as fast as it goes
    std::size_t buffer_steps = 10000;
    std::size_t buffer_bytes = std::size_t{512} << 20;
  };

  // `replay` is null when nobody can ask for a replay.
  RecordingPlayer(const Options& options, std::unique_ptr<RecordingReader> reader, FrameLink* publish,
                  FrameLink* replay);

  // Topic of the message that comes next; nothing when there is none. May read it; its time is not affected.
  std::optional<std::string> next_topic();

  // Publishes what is due, at most 32 messages, and serves replays. Returns how much was done.
  std::size_t DoWork(MonotonicNanos now);

  // How the recording ended; nothing while it is being played.
  std::optional<RecordingReader::Outcome> ended() const noexcept { return ended_; }
  // When the next message is due, as far as DoWork knows; `now` or earlier: at once.
  MonotonicNanos due() const noexcept { return due_.value_or(0); }

  std::uint64_t messages() const noexcept { return messages_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  std::uint64_t good_bytes() const noexcept { return reader_->good_bytes(); }
  // Whether a client is being answered.
  bool replaying() const noexcept { return service_ && service_->clients() > 0; }

 private:
  void Load();
  MonotonicNanos DueAt(const RecordedMessage& message, MonotonicNanos now);
  bool PublishNext();
  void BeginLife();

  const Options options_;
  const std::unique_ptr<RecordingReader> reader_;
  FrameLink* const publish_;
  FrameLink* const replay_;
  std::unique_ptr<ReplayBuffer> buffer_;
  std::unique_ptr<ReplayService> service_;
  std::optional<std::string> topic_;

  std::optional<RecordedMessage> next_;
  SharedBytes payload_;
  std::optional<RecordingReader::Outcome> ended_;
  std::optional<MonotonicNanos> started_;
  std::uint64_t first_wall_ = 0;
  std::optional<MonotonicNanos> due_;  // of next_, once it was asked for
  std::uint64_t messages_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace kvwire::engine
