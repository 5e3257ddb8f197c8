// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/play_player.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "kv_events/wire/frames.h"

namespace kvwire::engine {

namespace {

constexpr std::size_t kMessagesPerCall = 32;

}  // namespace

RecordingPlayer::RecordingPlayer(const Options& options, std::unique_ptr<RecordingReader> reader, FrameLink* publish,
                                 FrameLink* replay)
    : options_(options), reader_(std::move(reader)), publish_(publish), replay_(replay) {}

std::size_t RecordingPlayer::DoWork(MonotonicNanos now) {
  std::size_t work = 0;
  while (work < kMessagesPerCall) {
    if (!next_) Load();
    if (!next_) break;
    if (!due_) due_ = DueAt(*next_, now);
    if (now < *due_ || !PublishNext()) break;
    ++work;
  }
  return work + (service_ ? service_->DoWork(now) : 0);
}

std::optional<std::string> RecordingPlayer::next_topic() {
  if (!next_) Load();
  if (!next_) return std::nullopt;
  return next_->topic;
}

void RecordingPlayer::Load() {
  if (ended_) return;
  RecordedMessage message;
  const RecordingReader::Outcome outcome = reader_->Next(&message);
  if (outcome != RecordingReader::Outcome::kMessage) {
    ended_ = outcome;
    return;
  }
  payload_ = std::make_shared<const std::vector<std::uint8_t>>(std::exchange(message.payload, {}));
  next_ = std::move(message);
  due_.reset();
}

// The clock of the first message starts when it is played.
MonotonicNanos RecordingPlayer::DueAt(const RecordedMessage& message, MonotonicNanos now) {
  constexpr double kNever = 4e18;  // nanoseconds; more than a century
  if (!started_) {
    started_ = now;
    first_wall_ = message.wall_nanos;
  }
  // The recorder's wall clock may have stepped back; such a message is due at once.
  if (options_.speed <= 0 || message.wall_nanos <= first_wall_) return *started_;
  const double offset = static_cast<double>(message.wall_nanos - first_wall_) / options_.speed;
  return *started_ + static_cast<MonotonicNanos>(std::min(offset, kNever));
}

bool RecordingPlayer::PublishNext() {
  const std::span<const std::uint8_t> topic(reinterpret_cast<const std::uint8_t*>(next_->topic.data()),
                                            next_->topic.size());
  const SequenceFrame sequence = EncodeSequence(next_->sequence);
  const OutFrame frames[] = {OutFrame::Copy(topic), OutFrame::Copy(sequence), OutFrame::Share(payload_)};
  if (publish_->TrySend(frames) != SendResult::kSent) return false;
  if (!buffer_ || *topic_ != next_->topic || (buffer_->newest() && next_->sequence <= *buffer_->newest())) BeginLife();
  ++messages_;
  bytes_ += payload_->size();
  buffer_->Append(next_->sequence, std::move(payload_));
  next_.reset();
  return true;
}

// What is replayed belongs to one life of one publisher: one topic, rising numbers.
void RecordingPlayer::BeginLife() {
  topic_ = next_->topic;
  service_.reset();
  buffer_ = std::make_unique<ReplayBuffer>(replay_ == nullptr ? 0 : options_.buffer_steps, options_.buffer_bytes);
  if (replay_ != nullptr) {
    service_ = std::make_unique<ReplayService>(*topic_, ReplayLayout::kTopic, replay_, buffer_.get());
  }
}

}  // namespace kvwire::engine
