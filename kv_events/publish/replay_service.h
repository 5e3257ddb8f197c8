// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "kv_events/clock.h"
#include "kv_events/config.h"
#include "kv_events/publish/counter.h"
#include "kv_events/publish/replay_buffer.h"
#include "kv_events/transport/frame_link.h"
#include "kv_events/wire/frames.h"

namespace kvwire {

// Answers replay requests over a ROUTER: every batch held at the time of the request with a number of at least the
// asked one, then an end mark. A client that reads slowly is resumed where it stopped; batches that fall out of the
// buffer meanwhile are left out. A second request of a client replaces its first; a malformed one while it is being
// answered changes nothing, the end mark is due anyway.
//
// A client is its identity. One that comes back under an identity of its own choice before the ROUTER misses it takes
// over what is left of the earlier answer, its end mark included, until its own request arrives; that one is answered
// whole. A client that leaves the identity to the ROUTER never meets this.
//
// Threads: DoWork by one thread; the counters by any.
// Bounds: kMaxClients clients at once, further ones get an end mark only; kMaxStartBytes, see wire/frames.h; one
//   kSliceMessages or kSliceBytes of messages per DoWork, clients taking turns; a client without progress for
//   kProgressDeadline is given up.
// Errors: a request of a wrong shape is counted and answered with an end mark; nothing throws but for lack of memory.
// Source: docs/protocol.md, "Replay".
class ReplayService {
 public:
  static constexpr std::size_t kMaxClients = 64;
  static constexpr std::size_t kSliceMessages = 16;
  static constexpr std::size_t kSliceBytes = 64 << 10;
  static constexpr std::size_t kRequestsPerCall = 16;
  static constexpr MonotonicNanos kProgressDeadline = 30'000'000'000;

  // Borrows link and buffer, which outlive it.
  ReplayService(std::string topic, ReplayLayout layout, FrameLink* link, const ReplayBuffer* buffer);

  // Reads some requests and sends one slice. Returns how many requests and messages that were.
  std::size_t DoWork(MonotonicNanos now);

  // Clients being answered.
  std::size_t clients() const noexcept { return clients_.size(); }

  std::uint64_t requests() const noexcept { return requests_.value(); }
  std::uint64_t malformed() const noexcept { return malformed_.value(); }
  std::uint64_t dropped() const noexcept { return dropped_.value(); }
  std::uint64_t messages() const noexcept { return messages_.value(); }

 private:
  struct Client {
    std::vector<std::uint8_t> identity;
    SequenceNumber next = 0;             // number to go on with
    std::optional<SequenceNumber> last;  // newest batch at the time of the request; nothing: only the end mark is due
    MonotonicNanos last_progress = 0;
  };
  struct Budget {
    std::size_t messages = kSliceMessages;
    std::size_t bytes = kSliceBytes;
  };
  enum class Progress { kTurnOver, kBlocked, kDone, kGone };

  std::size_t ReadRequests(MonotonicNanos now);
  void Accept(InFrames frames, MonotonicNanos now);
  void Admit(Client client);
  std::size_t SendSlice(MonotonicNanos now);
  Progress Serve(Client* client, Budget* budget, MonotonicNanos now);
  SendResult SendBatch(const Client& client, const ReplayBuffer::Entry& entry);
  SendResult SendEnd(const std::vector<std::uint8_t>& identity);

  const std::string topic_;
  const ReplayLayout layout_;
  FrameLink* const link_;
  const ReplayBuffer* const buffer_;
  std::vector<Client> clients_;
  std::size_t turn_ = 0;  // index of the client that comes first in the next slice
  Counter requests_;
  Counter malformed_;
  Counter dropped_;
  Counter messages_;
};

}  // namespace kvwire
