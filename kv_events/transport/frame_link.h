// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvwire {

// Immutable bytes that the live message and the replay buffer share.
using SharedBytes = std::shared_ptr<const std::vector<std::uint8_t>>;

// One frame to send: borrowed bytes, copied during the call, or shared bytes that may be sent without a copy.
struct OutFrame {
  std::span<const std::uint8_t> bytes;
  SharedBytes shared;  // when set, bytes views it

  static OutFrame Copy(std::span<const std::uint8_t> bytes) { return {bytes, nullptr}; }
  static OutFrame Share(SharedBytes shared) {
    const std::span<const std::uint8_t> bytes(*shared);
    return {bytes, std::move(shared)};
  }
};

using InFrames = std::vector<std::vector<std::uint8_t>>;

enum class SendResult : std::uint8_t {
  kSent,
  kWouldBlock,  // nothing of the message was sent; try again later
  kUnroutable,  // ROUTER: the peer is gone
  kFailed,      // the socket is broken or closed
};

// What a link that watches its peers saw so far; only the differences between two looks mean something.
struct PeerCounts {
  std::uint64_t connected = 0;      // connections ready for messages
  std::uint64_t disconnected = 0;   // of those, ended
  std::uint64_t accept_failed = 0;  // connections that the system could not give us, e.g. for lack of descriptors
  std::uint64_t failed = 0;         // connections that ended in their handshake

  std::uint64_t present() const noexcept { return connected - disconnected; }
  friend bool operator==(const PeerCounts&, const PeerCounts&) = default;
};

// A message socket: whole messages of frames in and out, never blocking. The seam under every protocol: ZeroMQ in
// production, memory or a lossy link in tests.
//
// Threads: made, used and destroyed by one thread.
class FrameLink {
 public:
  FrameLink() = default;
  FrameLink(const FrameLink&) = delete;
  FrameLink& operator=(const FrameLink&) = delete;
  virtual ~FrameLink() = default;

  // All frames or none. For a ROUTER the first frame is the peer's identity.
  virtual SendResult TrySend(std::span<const OutFrame> frames) noexcept = 0;

  // The next message, if one is there. For a ROUTER the first frame is the peer's identity.
  virtual std::optional<InFrames> TryReceive() = 0;

  // A connection's messages are there only after it was counted, and may still be there after its end was. All zero for
  // a link that does not watch.
  virtual PeerCounts peers() noexcept { return {}; }

  // The address in use after binding, e.g. with the port that the operating system chose.
  virtual std::string endpoint() const = 0;
};

}  // namespace kvwire
