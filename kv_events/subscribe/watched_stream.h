// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kv_events/clock.h"
#include "kv_events/error.h"
#include "kv_events/log.h"
#include "kv_events/subscribe/event_stream.h"
#include "kv_events/subscribe/figure_board.h"
#include "kv_events/subscribe/live_link.h"
#include "kv_events/subscribe/rank_group.h"
#include "kv_events/subscribe/state_notes.h"
#include "kv_events/subscribe/stream_checker.h"
#include "kv_events/subscribe/stream_figures.h"
#include "kv_events/transport/host_lookup.h"
#include "kv_events/transport/zmq_context.h"
#include "kv_events/transport/zmq_link.h"

namespace kvwire {

// How long a SUB that was connected to an address of a name waits before the name is asked again.
inline constexpr MonotonicNanos kNamePatience = 10'000'000'000;

// A SUB for each connection to where `address` is then; `first`, if any, is the first of them.
LiveLinkFactory LiveLinksTo(std::shared_ptr<ZmqContext> context, std::shared_ptr<EndpointLookup> address,
                            const LinkOptions& link, std::unique_ptr<ZmqLink> first);

// A DEALER for each attempt to replay, connected to where `address` is then.
ReplayLinkFactory ReplayLinksTo(std::shared_ptr<ZmqContext> context, std::shared_ptr<EndpointLookup> address);

// One stream at its address: sockets, EventStream, sink, and the figures of it all.
//
// Threads: figures by any; the rest by one thread at a time, which may be another one than the one that made it.
// Errors: Create names the address; a name that cannot be looked up goes to the log, and is asked again. Bounds: as
// EventStream; `receive_hwm` messages wait in the socket.
class WatchedStream {
 public:
  struct Options {
    EventStreamOptions stream;                                   // the topic is the address's
    int receive_hwm = 10'000;                                    // live messages; 0: no limit
    LogSink log;                                                 // how the state changes; may be empty
    std::chrono::milliseconds heartbeat = kSubscriberHeartbeat;  // as LinkOptions has it

    // Of the live link.
    LinkOptions Link() const;
  };

  static Result<std::unique_ptr<WatchedStream>> Create(const std::shared_ptr<ZmqContext>& context,
                                                       StreamAddress address, Options options,
                                                       std::unique_ptr<CheckedSink> sink);
  WatchedStream(const WatchedStream&) = delete;
  WatchedStream& operator=(const WatchedStream&) = delete;

  const StreamAddress& address() const noexcept { return board_.address(); }

  // One piece of work; 0 = nothing to do until a link has input, or kLook has passed.
  static constexpr std::chrono::milliseconds kLook{20};
  int DoWork(MonotonicNanos now);
  void AppendLinks(std::vector<ZmqLink*>* links) const;

  // EventStream::Confirm and ::Finish.
  void Confirm(MonotonicNanos now);
  void Finish(MonotonicNanos now);

  // As FigureBoard has them.
  StreamFigures figures() const { return board_.figures(); }

  // Closes the sockets; afterwards only figures and TakeSink may be called. Idempotent.
  void Close() noexcept;
  // The sink. REQUIRES: the stream is closed.
  std::unique_ptr<CheckedSink> TakeSink() noexcept { return std::move(sink_); }

 private:
  WatchedStream(StreamAddress address, Options options, std::unique_ptr<CheckedSink> sink);
  void NoteState(MonotonicNanos now);
  void NoteLookups();
  void NoteRank();
  std::string Title() const;

  const Options options_;
  std::unique_ptr<CheckedSink> sink_;
  std::shared_ptr<EndpointLookup> live_address_;
  std::shared_ptr<EndpointLookup> replay_address_;  // null without one
  std::string lookups_failed_;                      // as it was said last
  std::unique_ptr<EventStream> stream_;

  StateNotes notes_;
  RankNotes ranks_;
  FigureBoard board_;
};

}  // namespace kvwire
