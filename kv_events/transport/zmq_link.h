// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kv_events/error.h"
#include "kv_events/fork_guard.h"
#include "kv_events/transport/endpoint.h"
#include "kv_events/transport/frame_link.h"
#include "kv_events/transport/peer_bound.h"
#include "kv_events/transport/socket_file.h"
#include "kv_events/transport/zmq_context.h"

namespace kvwire {

enum class LinkKind : std::uint8_t { kPub, kRouter, kSub, kDealer };

struct LinkOptions {
  int send_hwm = 1000;  // messages per peer; 0 = no limit
  int receive_hwm = 1000;
  std::int64_t max_message_bytes = -1;  // receiving side, per frame; -1 = no limit
  std::size_t max_frames = 64;          // receiving side: further frames of a message are thrown away
  PeerLimits peer_limits;               // kPub, bound to tcp or ipc: of what peers send
  std::string subscription;             // kSub: topic prefix
  std::string identity;                 // kDealer: what a ROUTER calls it, up to 255 bytes; empty: the ROUTER chooses
  std::chrono::milliseconds reconnect_max{0};  // pauses between attempts to connect grow to this; 0: they do not grow
  bool watch_peers = false;                    // makes peers() count; inproc addresses never do
  // kSub, kDealer: asks the peer for a sign of life this often. A peer that gives none for twice as long is
  // disconnected, and so is this link by its peer that hears nothing for three times as long, where that is 65 s at
  // most; a link whose reader is so far behind that it takes nothing off the network counts as dead, too. 0: never
  // asks.
  std::chrono::milliseconds heartbeat{0};
};

// What a subscriber that watches its peers asks for.
inline constexpr std::chrono::milliseconds kSubscriberHeartbeat{5000};

// A ZeroMQ socket as a FrameLink. PUB (an XPUB) drops at a subscriber's high-water mark (ZeroMQ's rule: kSent all the
// same), and receives one message per subscription that comes (byte 1, then the topic prefix) or goes (byte 0); whoever
// uses it reads them, or they pile up inside libzmq, whatever receive_hwm;
// ROUTER is mandatory: a full peer gives kWouldBlock, a gone one kUnroutable; of two peers with one identity the later
// takes over. IPv6 is on for bracketed hosts and "::". Shared frames of 1 KiB or more are sent without a copy. A peer
// that does not finish its handshake within 5 s is disconnected. A machine at the other end of a tcp connection that
// does not answer for half a minute is taken for gone.
//
// Threads: used by one thread at a time; may be handed over before its first use there. In a forked child nothing of it
//   touches the socket: it sends kFailed, receives nothing, and its end closes nothing.
// Errors: Bind and Connect name the setting, the socket, the address and the reason; kAddressInUse if somebody holds
//   the address, kInvalidArgument if an ipc path holds something else than a socket, kUnavailable if the process has
//   too few file descriptors left for the link: libzmq would end it; or is a child that was forked with the context.
class ZmqLink final : public FrameLink {
 public:
  static Result<std::unique_ptr<ZmqLink>> Bind(std::shared_ptr<ZmqContext> context, LinkKind kind,
                                               const Endpoint& endpoint, const LinkOptions& options);
  static Result<std::unique_ptr<ZmqLink>> Connect(std::shared_ptr<ZmqContext> context, LinkKind kind,
                                                  const Endpoint& endpoint, const LinkOptions& options);

  // Closes at once; messages not yet taken by peers are discarded unless SetLinger was called. Waits, at most
  // 200 ms, until a bound address can be bound again. The file of an ipc address goes with the link that made it.
  ~ZmqLink() override;

  // Keeps trying to hand over what was sent for up to `linger`, in the background, when the link is destroyed.
  void SetLinger(std::chrono::milliseconds linger) noexcept;

  SendResult TrySend(std::span<const OutFrame> frames) noexcept override;
  std::optional<InFrames> TryReceive() override;
  std::string endpoint() const override;

  PeerCounts peers() noexcept override;

  // Connections ended because of LinkOptions.peer_limits.
  std::uint64_t cut_off() const noexcept { return bound_peers_ ? bound_peers_->cut() : 0; }

  bool forked() const noexcept { return fork_.forked(); }

  // The raw socket, for WaitForInput.
  void* handle() const noexcept { return socket_; }

 private:
  class Monitor;

  ZmqLink(std::shared_ptr<ZmqContext> context, void* socket, LinkKind kind, const LinkOptions& options);
  static Result<std::unique_ptr<ZmqLink>> Open(std::shared_ptr<ZmqContext> context, LinkKind kind,
                                               const Endpoint& endpoint, const LinkOptions& options);
  bool Configure(const Endpoint& endpoint, const LinkOptions& options) noexcept;
  void LimitPeers(const PeerLimits& limits);

  const ForkGuard fork_;
  const std::shared_ptr<ZmqContext> context_;
  void* const socket_;
  const LinkKind kind_;
  const std::size_t max_frames_;
  std::string endpoint_;
  bool bound_ = false;
  std::optional<SocketFile> file_;  // that binding made
  std::optional<PeerBound> bound_peers_;
  Unforked<std::unique_ptr<Monitor>> monitor_;
};

// Wakes a thread that sleeps in WaitForInput. An eventfd.
// Threads: Wake from any thread; the rest by the waiting thread.
// Errors: fd() is -1 when the system had no descriptor left; then Wake does nothing.
class WakeSignal {
 public:
  WakeSignal();
  ~WakeSignal();
  WakeSignal(const WakeSignal&) = delete;
  WakeSignal& operator=(const WakeSignal&) = delete;

  void Wake() noexcept;
  void Drain() noexcept;
  int fd() const noexcept { return fd_; }

 private:
  int fd_;
};

// Sleeps until one of the links has input or may be written again, the signal fires or the time is over. Drains the
// signal. May return early without a reason. Null entries are skipped, and those of a forked child's parent.
void WaitForInput(std::span<ZmqLink* const> links, WakeSignal* signal, std::chrono::microseconds timeout);

}  // namespace kvwire
