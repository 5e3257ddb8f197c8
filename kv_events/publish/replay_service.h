// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv_events/clock.h"
#include "kv_events/config.h"
#include "kv_events/publish/counter.h"
#include "kv_events/publish/replay_buffer.h"
#include "kv_events/publish/replay_request.h"
#include "kv_events/publish/state_answers.h"
#include "kv_events/transport/frame_link.h"
#include "kv_events/wire/frames.h"

namespace kvwire {

// Answers requests over a ROUTER. Replay: every batch held at the time of the request with a number of at least the
// asked one, then an end mark. A client that reads slowly is resumed where it stopped; batches that fall out of the
// buffer meanwhile are left out. A second request of a client replaces its first; a malformed one while it is being
// answered changes nothing, the end mark is due anyway. With a StateAnswers it also knows the names of
// wire/extensions.h; with SnapshotForm::kXllm the answer to a replay request is the whole state in one message.
//
// A client is its identity. One that comes back under an identity of its own choice before the ROUTER misses it takes
// over what is left of the earlier answer, its end mark included, until its own request arrives; that one is answered
// whole. A client that leaves the identity to the ROUTER never meets this.
//
// Busy does not look like empty: who finds every place taken waits for one, in the order of arrival, and the answer is
// that of the time when it begins; beyond what may wait there is no answer, which the client's own deadline notices.
// Hellos, digests and malformed requests need no place.
//
// Threads: DoWork by one thread; the counters by any.
// Bounds: kMaxClients clients at once, kMaxWaiting wait; kMaxStartBytes, see wire/frames.h; snapshots, see
//   snapshot_walks.h; one kSliceMessages or kSliceBytes of messages per DoWork, clients taking turns; a client
//   without progress for kProgressDeadline is given up. A client that took neither kPaceMessages nor kPaceBytes in its
//   last kPaceWindow is given up, without an end mark, for one that waits for a place, or when it holds up the walk
//   that another snapshot waits for. Who asks again while others wait goes to the end of the line.
// Errors: a request of a wrong shape is counted and answered with an end mark; nothing throws but for lack of memory.
// Source: docs/protocol.md, "Replay".
class ReplayService {
 public:
  static constexpr std::size_t kMaxClients = 64;
  static constexpr std::size_t kMaxWaiting = 1024;
  static constexpr std::size_t kSliceMessages = 16;
  static constexpr std::size_t kSliceBytes = 64 << 10;
  static constexpr std::size_t kRequestsPerCall = 16;
  static constexpr MonotonicNanos kProgressDeadline = 30'000'000'000;
  static constexpr MonotonicNanos kPaceWindow = 10'000'000'000;
  static constexpr std::size_t kPaceMessages = 1000;
  static constexpr std::size_t kPaceBytes = std::size_t{1} << 20;

  // Borrows link, buffer and answers, which outlive it. `answers` is null where there is no state to tell of.
  ReplayService(std::string topic, ReplayLayout layout, FrameLink* link, const ReplayBuffer* buffer,
                StateAnswers* answers = nullptr);

  // Reads some requests and sends one slice. Returns how many requests and messages that were.
  std::size_t DoWork(MonotonicNanos now);

  // Clients being answered.
  std::size_t clients() const noexcept { return clients_.size(); }
  // Clients that wait for a place.
  std::size_t waiting() const noexcept { return waiting_.size(); }
  // Requests that got no answer because every place was taken and as many waited as may; among the dropped.
  std::uint64_t turned_away() const noexcept { return turned_away_; }
  // clients(), for any thread.
  std::uint64_t client_count() const noexcept { return client_count_.value(); }

  std::uint64_t requests() const noexcept { return requests_.value(); }
  std::uint64_t malformed() const noexcept { return malformed_.value(); }
  std::uint64_t dropped() const noexcept { return dropped_.value(); }
  // Of the dropped, those that were too slow while others waited.
  std::uint64_t slow() const noexcept { return slow_.value(); }
  std::uint64_t messages() const noexcept { return messages_.value(); }
  std::uint64_t hellos() const noexcept { return hellos_.value(); }
  std::uint64_t digests() const noexcept { return digests_.value(); }
  std::uint64_t snapshots() const noexcept { return snapshots_.value(); }

 private:
  // What is left of an answer: at most one of the three, then the end mark.
  struct Answer {
    std::optional<SequenceNumber> last;  // of a replay: the newest batch at the time of the request
    SequenceNumber next = 0;             // number to go on with
    std::optional<StateAnswers::Message> message;
    std::optional<SnapshotWalks::TicketId> snapshot;
  };
  // What a client takes. The host's delays are not its own.
  struct Pace {
    MonotonicNanos since = 0;
    std::size_t messages = 0;
    std::size_t bytes = 0;
    bool slow = false;  // in the window before

    void Look(MonotonicNanos now) {
      if (now - since < kPaceWindow) return;
      *this = {now, 0, 0, messages < kPaceMessages && bytes < kPaceBytes};
    }
  };
  struct Client {
    std::vector<std::uint8_t> identity;
    Answer answer;
    MonotonicNanos last_progress = 0;
    Pace pace;
  };
  struct WaitingClient {
    std::vector<std::uint8_t> identity;
    ReplayRequest request;
  };
  // The next message to a client, as it stands between the empty frame and the end of the message.
  struct Outgoing {
    enum class Kind : std::uint8_t { kWait, kMessage, kEnd };
    Kind kind = Kind::kEnd;
    std::optional<std::string_view> label;  // topic or name; nothing: no such frame
    SequenceNumber number = kEndOfReplay;
    SharedBytes payload;  // null: of length zero
  };
  struct Budget {
    std::size_t messages = kSliceMessages;
    std::size_t bytes = kSliceBytes;
  };
  enum class Progress { kTurnOver, kBlocked, kDone, kGone };

  std::size_t ReadRequests(MonotonicNanos now);
  void Accept(InFrames frames, MonotonicNanos now);
  void Count(const std::optional<ReplayRequest>& request);
  Answer AnswerTo(const ReplayRequest& request, MonotonicNanos now);
  void Admit(std::vector<std::uint8_t> identity, const std::optional<ReplayRequest>& request, MonotonicNanos now);
  void AnswerAtOnce(const std::vector<std::uint8_t>& identity, Answer answer, MonotonicNanos now);
  void Wait(std::vector<std::uint8_t> identity, const ReplayRequest& request);
  void AdmitWaiting(MonotonicNanos now);
  void Seat(std::vector<std::uint8_t> identity, Answer answer, MonotonicNanos now);
  void Forget(const Answer& answer);
  void Remove(std::size_t index);
  std::size_t GiveUpSlow(MonotonicNanos now);
  std::size_t SendSlice(MonotonicNanos now);
  Progress Serve(Client* client, Budget* budget, MonotonicNanos now);
  Outgoing Next(const Answer& answer, MonotonicNanos now) const;
  void Advance(Answer* answer, const Outgoing& sent);
  SendResult Send(const std::vector<std::uint8_t>& identity, const Outgoing& message);
  Outgoing End() const;
  // The topic, where the layout has one.
  std::optional<std::string_view> Label(std::string_view topic) const;

  const std::string topic_;
  const ReplayLayout layout_;
  FrameLink* const link_;
  const ReplayBuffer* const buffer_;
  StateAnswers* const answers_;
  std::vector<Client> clients_;
  std::deque<WaitingClient> waiting_;  // empty unless every place is taken; none of them is in clients_
  std::uint64_t turned_away_ = 0;
  std::size_t turn_ = 0;  // index of the client that comes first in the next slice
  Counter requests_;
  Counter malformed_;
  Counter dropped_;
  Counter slow_;
  Counter messages_;
  Counter hellos_;
  Counter digests_;
  Counter snapshots_;
  Counter client_count_;
};

}  // namespace kvwire
