// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kv_events/error.h"
#include "kv_events/transport/endpoint.h"
#include "kv_events/transport/frame_link.h"
#include "kv_events/transport/zmq_context.h"

namespace kvwire {

enum class LinkKind : std::uint8_t { kPub, kRouter, kSub, kDealer };

struct LinkOptions {
  int send_hwm = 1000;  // messages per peer; 0 = no limit
  int receive_hwm = 1000;
  std::int64_t max_message_bytes = -1;  // receiving side; -1 = no limit
  std::string subscription;             // kSub: topic prefix
};

// A ZeroMQ socket as a FrameLink. PUB drops at a subscriber's high-water mark (ZeroMQ's rule: kSent all the same);
// ROUTER is mandatory: a full peer gives kWouldBlock, a gone one kUnroutable. IPv6 is on for bracketed hosts.
//
// Threads: used by one thread at a time; may be handed over before its first use there.
// Errors: Create names the socket, the address and the reason; kAddressInUse if somebody holds the address.
class ZmqLink final : public FrameLink {
 public:
  static Result<std::unique_ptr<ZmqLink>> Bind(std::shared_ptr<ZmqContext> context, LinkKind kind,
                                               const Endpoint& endpoint, const LinkOptions& options);
  static Result<std::unique_ptr<ZmqLink>> Connect(std::shared_ptr<ZmqContext> context, LinkKind kind,
                                                  const Endpoint& endpoint, const LinkOptions& options);

  // Closes at once; messages not yet taken by peers are discarded unless CloseWithin was called.
  ~ZmqLink() override;

  // Keeps trying to hand over what was sent for up to `linger`, in the background, when the link is destroyed.
  void SetLinger(std::chrono::milliseconds linger) noexcept;

  SendResult TrySend(std::span<const OutFrame> frames) noexcept override;
  std::optional<InFrames> TryReceive() override;
  std::string endpoint() const override;

  // The raw socket, for WaitForInput.
  void* handle() const noexcept { return socket_; }

 private:
  ZmqLink(std::shared_ptr<ZmqContext> context, void* socket, LinkKind kind, std::string endpoint);

  const std::shared_ptr<ZmqContext> context_;
  void* const socket_;
  const LinkKind kind_;
  std::string endpoint_;
};

// Wakes a thread that sleeps in WaitForInput. An eventfd.
// Threads: Wake from any thread; the rest by the waiting thread.
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

// Sleeps until one of the links has input, the signal fires or the time is over. Drains the signal.
void WaitForInput(std::span<ZmqLink* const> links, WakeSignal* signal, std::chrono::microseconds timeout) noexcept;

}  // namespace kvwire
