// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kv_events/subscribe/stream_state.h"
#include "kv_events/wire/decoder.h"
#include "kv_events/wire/extensions.h"
#include "kv_events/wire/frames.h"

namespace kvwire {

// Where a message came from.
enum class MessageOrigin : std::uint8_t { kLive, kReplay };

// One message of a stream, as it is applied. Views are valid only during the call that hands it out.
struct StreamMessage {
  SequenceNumber sequence = 0;
  std::string_view topic;  // a replay without topics: the last live one
  std::span<const std::uint8_t> payload;
  MessageOrigin origin = MessageOrigin::kLive;
};

// Why missing numbers stay missing.
enum class GapReason : std::uint8_t {
  kNoReplay,     // there is nobody to ask
  kNoAnswer,     // no attempt was answered to its end
  kNotInReplay,  // answered, without these numbers: asking again cannot help
  kBufferFull,   // more live messages arrived meanwhile than may wait
  kRestarted,    // the publisher began anew before they came
  kStopped,      // the subscriber was told to end
};

std::string_view ToString(GapReason reason) noexcept;

// Numbers from..to, both included, that will not be applied.
struct StreamGap {
  SequenceNumber from = 0;
  SequenceNumber to = 0;
  GapReason reason = GapReason::kNoReplay;
  // Nothing of this publisher was applied before: the subscriber came too late, rather than lost something.
  bool joined_late = false;
};

// What is known of a stream's continuity. Numbers alone do not tell a publisher's next life from its last one, nor
// whether messages follow the last one received.
enum class Continuity : std::uint8_t {
  kInterrupted,  // the connection ended: what comes next may be another life of the publisher
  kConfirmed,    // still the same life, and everything published until now was applied or reported as a gap
  kUnconfirmed,  // nobody said so, but nothing speaks for another life
  kForgotten,    // after an interruption nobody could say which life it is: what was held is void, as after a restart
  kSeveral,      // several publishers feed this stream: their numbers mix
};

std::string_view ToString(Continuity continuity) noexcept;

// How what comes live and what the publisher answers cannot both be true.
enum class Contradiction : std::uint8_t {
  kLiveDiffers,  // a live message has another content than an answer gave its number
  kLiveBehind,   // a live message was made after what an answer has behind its number (without times: comes 10 s later)
  kNumbersBack,  // a hello of the same life names a next number that was passed before the question
};

// To follow "message N".
std::string_view ToString(Contradiction contradiction) noexcept;

// What the owner of a stream learns, in the order in which it is to be applied: each number once, ascending within a
// publisher's life.
//
// Threads: called on the stream's thread, during DoWork and Finish; must not call back into the stream.
class StreamSink {
 public:
  virtual ~StreamSink() = default;

  // A batch to apply; batch.rejected lists events that could not be read.
  virtual void OnBatch(const StreamMessage& message, const DecodedBatch& batch) = 0;

  // The message has its number and cannot be read; the stream goes on behind it.
  virtual void OnUndecodable(const StreamMessage& message, const DecodeError& error) = 0;

  // Numbers are missing and a replay is asked for. It ends with OnHealed or OnJoined, or with OnGap for each part that
  // stays missing, or with kInterrupted.
  virtual void OnRecovery(SequenceNumber from, SequenceNumber to) = 0;
  // All of from..to was applied.
  virtual void OnHealed(SequenceNumber from, SequenceNumber to) = 0;
  // The same of what was published before the first message of a life was received: nothing had been lost.
  virtual void OnJoined(SequenceNumber /*from*/, SequenceNumber /*to*/) {}
  virtual void OnGap(const StreamGap& gap) = 0;

  // The publisher began anew; what was held is void. Comes after everything of the old life. `last` is the last number
  // of the old life; `first_seen` is empty when the replay told, not a live message.
  virtual void OnRestart(SequenceNumber last, std::optional<SequenceNumber> first_seen) = 0;

  virtual void OnContinuity(Continuity continuity) = 0;

  // What was applied is not the state of the publisher that is heard. kForgotten follows.
  virtual void OnContradiction(SequenceNumber /*number*/, Contradiction /*contradiction*/) {}

  // A live message that is not topic, sequence, payload.
  virtual void OnMalformed(std::size_t frame_count) = 0;

  // Only of a stream that wants certain topics. A replayed message of another topic: its number is done, and nothing of
  // it is to be applied.
  virtual void OnOtherTopic(SequenceNumber /*number*/) {}
  // A replay that names no topics, said once: its messages are handed out whatever their topic.
  virtual void OnTopicUnknown() {}

  // A snapshot: the whole state, built beside what is held, which stays until OnSnapshotEnd and goes on taking the
  // batches. What is built takes them, too, from the first chunk on, and every chunk where it comes among them: for
  // each block in it, as many announcements as it has there replace those counted so far. Removals of blocks that
  // what is built does not hold mean nothing: a later chunk would have had them.
  //
  // Numbers below `first` that were not handed out will not be: the snapshot has their effect.
  virtual void OnSnapshotBegin(SequenceNumber /*first*/) {}
  // Only the BlockStored of a chunk count. `number`: of the batch that comes after it.
  virtual void OnSnapshotChunk(SequenceNumber /*number*/, const DecodedBatch& /*chunk*/) {}
  // What was built replaces what is held, which is then the state before batch `next`. `digest`: of that state, if its
  // publisher says so.
  virtual void OnSnapshotEnd(SequenceNumber /*next*/, const std::optional<DigestEntries>& /*digest*/) {}
  // What was built is thrown away: the snapshot broke off, a batch had an AllBlocksCleared, or another life began.
  virtual void OnSnapshotAbandoned() {}

  // Digest of what is held now, for a comparison with the publisher's; nothing from who keeps none.
  virtual std::optional<DigestEntries> HeldDigest() const { return std::nullopt; }

  // The publisher's digest of the state before batch `next` is another one.
  virtual void OnDigestDiffers(SequenceNumber /*next*/, const DigestEntries& /*theirs*/) {}

  // The stream's state or its reason changed.
  virtual void OnState(const StreamStatus& /*status*/) {}
};

}  // namespace kvwire
