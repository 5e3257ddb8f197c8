// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv_events/clock.h"
#include "kv_events/subscribe/applied_payloads.h"
#include "kv_events/subscribe/back_off.h"
#include "kv_events/subscribe/dialect.h"
#include "kv_events/subscribe/event_stream_stats.h"
#include "kv_events/subscribe/hello_client.h"
#include "kv_events/subscribe/live_link.h"
#include "kv_events/subscribe/proof_client.h"
#include "kv_events/subscribe/replay_client.h"
#include "kv_events/subscribe/replay_gate.h"
#include "kv_events/subscribe/sequence_tracker.h"
#include "kv_events/subscribe/shelf_bound.h"
#include "kv_events/subscribe/snapshot_client.h"
#include "kv_events/subscribe/state_keeper.h"
#include "kv_events/subscribe/stream_sink.h"
#include "kv_events/subscribe/stream_state.h"
#include "kv_events/transport/frame_link.h"
#include "kv_events/wire/decoder.h"
#include "kv_events/wire/extensions.h"

namespace kvwire {

struct EventStreamOptions {
  Dialect dialect = Dialect::kVllm;
  std::optional<SequenceNumber> first_sequence;  // of a publisher's first message; nothing: as the dialect has it
  // Replayed messages count only with this beginning of their topic, as the live link's subscription has it.
  std::string topic;
  DecodeOptions decode;  // hash_bits is the dialect's
  ReplayLimits replay;
  SnapshotLimits snapshot;
  // How often a publisher that answers a hello is asked again, whether nothing was lost and both hold the same; of a
  // dialect whose replay is a state, how often that is asked for. 0: never; nothing: as the dialect has it.
  std::optional<MonotonicNanos> check_interval;
  // Of a live link that may connect to another address the next time: how long it waits for its first connection.
  // 0: without an end.
  MonotonicNanos connect_patience = 0;
  // Bounds the streams that ask at the same time; null: no bound.
  std::shared_ptr<ReplayGate> gate = ReplayGate::Shared();
  // Live messages that may wait while a replay or a snapshot runs.
  std::size_t max_waiting_messages = 4096;
  std::size_t max_waiting_bytes = std::size_t{32} << 20;
};

// A snapshot that an EventStream takes.
struct SnapshotTaking {
  bool asked = false;                        // else its turn has not come
  bool begun = false;                        // a chunk was applied: from then on no number may be missing
  bool broken = false;                       // ... and one is
  std::optional<SnapshotPiece> piece;        // waits for the live messages before it
  std::optional<MonotonicNanos> hole_since;  // those are missing, and nothing says yet that they are lost
  ShelfBound shelves;                        // of what was applied since it began
};

// The receiving end of one publisher's stream: an agent over a SUB and, for replays, a DEALER. It applies every number
// once and in order, closes gaps by replay while live messages wait, and says what it could not close. A subscriber
// that comes late (first number above first_sequence) asks for everything before. A number below an earlier live one,
// or the last one again with other content, is a publisher's restart.
//
// With a live link that watches its peers and a replay link it also asks when numbers cannot tell: when the first
// connection is made, what came before it; when a lost connection is made again, whether the publisher is still the one
// that sent the last applied message (byte for byte), and what was missed; and when Confirm is called, whether anything
// follows. A message that may be of another life than what was applied is not applied before that is answered; if
// nobody answers, or not so that it tells, the stream begins anew with what comes, as a late subscriber does. A new
// beginning takes only messages that are surely of the new life: what was read after all that an earlier connection can
// have left, and what is replayed.
//
// A publisher that answers a hello (kv_events/wire/extensions.h) tells its life by an epoch, so no bytes are compared;
// what its replay no longer has comes as a snapshot. While one runs live messages wait: its chunks and they are applied
// in the order of their numbers. A snapshot that breaks off, or whose live messages have a hole that no replay closes,
// is asked for again after a pause. Such a publisher is also asked every check_interval whether messages follow the
// last one received, and for its digest; one that differs from the sink's is followed by a snapshot.
//
// A live message below the next number repeats what was applied. If its payload is another one, or if it is not known
// and was made after what is held (without times: no answer went past it lately), live link and replay link are not of
// one publisher: the stream begins anew, and is not synchronised before they agree. That is when an answer has the
// bytes of a message that came live, or when a digest has the effect of live messages. The replay is asked for the
// latest live message once in a life that was begun by answers, when a digest differs, and, ever less often, while the
// stream is in doubt. A hello of the same life whose next number was passed before it was asked for makes it begin
// anew, too. Beginnings in
// quick succession are followed by a rest, in which live messages are dropped.
//
// A subscription chooses among live messages, a replay brings what the publisher has: options.topic leaves out there
// what the subscription leaves out here. Numbers of other topics are done, not missing.
//
// Threads: made, used and destroyed by one thread; time is an argument.
// Ownership: owns the live link and the replay links; the sink outlives the stream.
// Errors: foreign bytes end in a counter and a call of the sink; nothing throws but for lack of memory.
// Bounds: EventStreamOptions, ReplayLimits, SnapshotLimits; what the sink is given keeps to ShelfBound: a message
// beyond it is as one that cannot be read. A call of DoWork handles at most 64 messages of each kind.
class EventStream {
 public:
  // `replay` may be empty: gaps stay, and nothing is asked. REQUIRES: live and sink are not null.
  EventStream(std::unique_ptr<FrameLink> live, ReplayLinkFactory replay, const EventStreamOptions& options,
              StreamSink* sink);
  // With a live link of its own for each connection.
  EventStream(LiveLinkFactory live, ReplayLinkFactory replay, const EventStreamOptions& options, StreamSink* sink);
  EventStream(const EventStream&) = delete;
  EventStream& operator=(const EventStream&) = delete;
  ~EventStream();

  // Takes and applies what is there. Returns the number of messages taken: 0 = nothing to do.
  int DoWork(MonotonicNanos now);

  // Asks whether everything that was published until now was applied; the sink learns kConfirmed or kUnconfirmed.
  // Nothing happens without a replay link.
  void Confirm() noexcept { question_due_ = replay_.has_value(); }

  // Ends a running recovery as not healed, an open question as not answered, and applies what waited for them.
  void Finish();

  // Whether a replay or a snapshot runs or is about to; until then nothing can be concluded from silence.
  bool recovering() const noexcept;
  // What to wait on for input; null where there is none.
  std::array<FrameLink*, 5> links() const noexcept;
  PeerCounts live_peers() noexcept { return live_.peers(); }
  // Whether a publisher is there, as of the last call.
  bool connected() const noexcept { return peers_.present() > 0; }
  // Whether somebody was ever there to be asked; needs replay links that watch their peers, or an answer.
  bool replay_reached() const noexcept;
  EventStreamStats stats() const noexcept;
  // As of the end of the last call; the sink learns changes by OnState.
  StreamStatus status() const noexcept { return status_; }
  // The epoch of the publisher's life, if it told one.
  std::optional<std::uint64_t> epoch() const noexcept { return epoch_; }
  // The number to apply next.
  SequenceNumber next() const noexcept { return tracker_.next(); }

 private:
  // Whose a held message can be.
  enum class HeldOf : std::uint8_t {
    kApplied,    // the life of what was applied
    kEither,     // that one's, or of whoever is connected now
    kConnected,  // of whoever is connected now
  };
  // A live message and what it says.
  struct Waiting {
    InFrames frames;
    SequenceNumber sequence = 0;
    std::size_t bytes = 0;
    HeldOf of = HeldOf::kApplied;
  };
  using WaitingQueue = std::deque<Waiting>;

  // What is known of who answers at the replay endpoint, since the last connection.
  enum class Publisher : std::uint8_t { kUnknown, kKvwire, kOther };
  enum class HelloPurpose : std::uint8_t { kQuestion, kCheck };

  // What a hello says of the last messages may be on its way so long.
  static constexpr MonotonicNanos kTailGrace = 500'000'000;
  // What a hello said of a number that is not reached yet.
  struct Tail {
    SequenceNumber next = 0;
    MonotonicNanos late_at = 0;  // from then on what is missing is asked for
    // Messages were sent after the hello before; nothing at all came live since.
    std::optional<MonotonicNanos> mute_since;
  };
  struct DigestAt {
    SequenceNumber next = 0;  // it is the digest before this batch
    DigestEntries entries;
  };

  // Of live links that are given up for being mute.
  static constexpr BackOff kRenewals{5'000'000'000, 300'000'000'000, 600'000'000'000};

  EventStream(LiveLink live, ReplayLinkFactory replay, const EventStreamOptions& options, StreamSink* sink);

  // event_stream.cc: live messages, replays, gaps.
  bool TakeLive();
  void HandleLive(Waiting message);
  void TakeGap(Waiting message);
  void ApplyLive(Waiting message);
  bool Apply(const StreamMessage& message);
  bool Fits(const DecodedBatch& batch);
  void NoteApplied(const DecodedBatch& batch);
  void NoteUnreadable();
  void Note(SequenceNumber number, FrameView payload, MessageOrigin origin);
  bool SameAsLast(const Waiting& message) const;
  bool CanReplay() const noexcept { return replay_ && traits_.replay == ReplayForm::kHistory; }
  bool WorkOnReplay();
  void TakeReplayed(const InFrames& frames);
  void ApplyReplayed(const ReplayMessage& message);
  void StartRecovery(SequenceNumber to);
  void Wait(Waiting message);
  bool TooManyKept(const WaitingQueue& queue) const noexcept;
  void EndRecovery(GapReason reason);
  void FlushWaiting(GapReason reason);
  void GiveUp(SequenceNumber to, GapReason reason);
  void NoteRefusal(SequenceNumber there) noexcept;
  bool Behind();
  void UpdateStatus();

  // event_stream_questions.cc: connections, lives, hellos.
  // Whether the publisher was connected and is not.
  bool Away() const noexcept { return peers_.disconnected > 0 && peers_.present() == 0; }
  bool LookAtPeers();
  void Interrupt();
  void TakeUnreadEnd();
  void NoteDrained();
  bool ListenForSilence();
  void Hold(Waiting message);
  void KeepHeld(HeldOf of);
  void JudgeHeld();
  void Restart(std::optional<SequenceNumber> first_seen);
  void Forget();
  void BeginLife();
  void BeginWithConnected();
  bool WorkOnQuestion(bool drained);
  void Ask();
  void AskByContent();
  void AskForState();
  bool RenewMute();
  bool TellLife(const ReplayMessage& message);
  void EndQuestion(ReplayClient::Outcome outcome);
  void StopQuestion() noexcept;
  bool WorkOnHello();
  bool CheckDue() const noexcept;
  MonotonicNanos LongerCheckPause() const noexcept;
  void StartHello(HelloPurpose purpose);
  void TakeHello(Hello hello);
  void AskBehind();
  void TakeNoHello(HelloClient::Outcome outcome);
  bool HelloOpen() const noexcept { return hello_ && (hello_->active() || ask_again_at_); }
  void BeginOtherLife();
  bool FollowTail();
  void CompareDigest();
  void JudgeDigest(const DigestEntries& theirs);
  void CheckSoon() noexcept { next_check_ = now_; }

  // event_stream_trust.cc
  bool JudgeRepeated(const Waiting& message);
  void Hear(const Waiting& message);
  void Contradict(SequenceNumber number, Contradiction contradiction);
  void Rest();
  bool Resting() const noexcept { return now_ < rest_until_; }
  void NoteAnswered(const AppliedPayloads::Entry& answered);
  void NoteLive();
  void Agree();
  bool WorkOnProof();
  void TakeProof(ProofClient::Outcome outcome);

  // event_stream_snapshot.cc
  bool SnapshotsOffered() const noexcept;
  void WantSnapshot();
  void BeginSnapshot();
  bool WorkOnSnapshot();
  void PumpSnapshot();
  void TakeEarlierState();
  void PlacePiece();
  void EndSnapshot(const SnapshotPiece& end);
  void SkipTo(SequenceNumber number);
  bool TakeHole();
  void AbandonSnapshot();
  void FailSnapshot(SnapshotClient::Outcome outcome);

  const EventStreamOptions options_;
  const DialectTraits& traits_;
  const DecodeOptions decode_;
  const MonotonicNanos check_interval_;
  StreamSink* const sink_;
  LiveLink live_;
  ReplayGate::Place place_;
  std::optional<ReplayClient> replay_;
  std::optional<HelloClient> hello_;  // nothing where it may not be asked
  std::optional<SnapshotClient> snapshot_;
  std::optional<ProofClient> proof_;
  MonotonicNanos now_ = 0;  // of the running call
  SequenceTracker tracker_;
  EventStreamStats stats_;
  StateKeeper keeper_;
  StreamStatus status_;
  std::optional<ResumeRefusal> refused_;  // until what is held is all there is again
  ShelfBound shelves_;                    // of what the sink holds

  std::optional<Waiting> last_live_;  // to tell a repetition from a restart
  AppliedPayloads applied_;           // of this life
  double newest_ts_ = 0;              // of the batches and chunks of this life, Unix seconds
  MonotonicNanos answered_at_ = 0;    // the latest answer that moved the next number
  std::string topic_;                 // the latest
  bool topic_unknown_ = false;        // and the sink knows

  // The running recovery: numbers [recover_from_, recover_to_]; those below tracker_.next() are done. Without an end
  // while a question runs and no live message says where it ends.
  SequenceNumber recover_from_ = 0;
  std::optional<SequenceNumber> recover_to_;
  bool recovery_lost_some_ = false;
  bool recovery_joins_ = false;  // nothing of this life was applied before
  WaitingQueue waiting_;         // ascending numbers

  PeerCounts peers_;
  bool question_due_ = false;
  bool joining_ = false;  // the last question asked for all there is
  bool asking_ = false;   // a question runs: by a hello, a replay or a snapshot
  std::optional<AppliedPayloads::Entry>
      life_asked_;            // ... and whether its publisher is the one that sent this is still open
  bool interrupted_ = false;  // the connection ended, and nobody said yet that the life did not
  bool reconnected_ = false;  // ... and somebody is connected: messages may be of either life
  bool unread_end_ = false;   // the connection ended before anything was applied; it may have left messages
  bool stopping_ = false;
  WaitingQueue held_;           // not judged yet, as they came; only while interrupted_
  std::size_t kept_bytes_ = 0;  // of waiting_ and held_

  Publisher publisher_ = Publisher::kUnknown;
  std::optional<Hello> said_;           // the last hello of this life
  std::optional<std::uint64_t> epoch_;  // of this life
  HelloPurpose hello_purpose_ = HelloPurpose::kCheck;
  SequenceNumber hello_behind_ = 0;  // a hello of this life that names a lower next number contradicts what is held
  std::optional<MonotonicNanos> ask_again_at_;  // the running question's hello got no answer of a kvwire publisher
  int end_marks_ = 0;                           // such answers on this connection
  bool unheard_ = false;  // the publisher of the running question's replay answered hellos, and not this one
  std::optional<MonotonicNanos> next_check_;
  MonotonicNanos check_pause_ = 0;
  MonotonicNanos checked_at_ = 0;
  MonotonicNanos heard_at_ = 0;                 // the last live message, or the connection
  std::optional<MonotonicNanos> behind_since_;  // what was said to be sent has not come
  std::optional<Tail> tail_;
  std::optional<DigestAt> digest_due_;

  BackOff beginnings_;
  MonotonicNanos rest_until_ = 0;
  // The latest live message of this life; of a stream in doubt, also of the one that was left.
  std::optional<AppliedPayloads::Entry> heard_;
  bool by_answers_ = false;    // what is held is partly from answers
  bool live_since_ = false;    // ... and events came live after the latest
  bool proven_ = false;        // live messages and answers of this life agreed
  bool proof_wanted_ = false;  // the replay is to be asked for heard_
  bool proof_asked_ = false;   // it was, as it is once in a life
  MonotonicNanos proof_at_ = 0;
  MonotonicNanos proof_pause_ = 0;
  BackOff renewals_;
  bool renewed_ = false;         // the live link was, and brought nothing since
  MonotonicNanos renew_at_ = 0;  // not earlier

  std::optional<SnapshotTaking> taking_;
  bool snapshot_wanted_ = false;
  int snapshot_attempts_ = 0;
  MonotonicNanos snapshot_at_ = 0;  // not earlier
  MonotonicNanos snapshot_pause_ = 0;
  BackOff earlier_states_;
};

}  // namespace kvwire
