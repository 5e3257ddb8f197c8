// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "kv_events/transport/endpoint.h"

struct zmq_msg_t;

namespace kvwire {

// How many bytes the peers of a socket may send. libzmq keeps what subscribers ask for in a tree that takes up to forty
// times the bytes, with no bound of its own. 0: no limit.
struct PeerLimits {
  std::size_t peer_bytes = 0;   // over one connection, in its whole life
  std::size_t total_bytes = 0;  // over all that are connected

  bool any() const noexcept { return peer_bytes > 0 || total_bytes > 0; }
};

// Ends the connections of a bound socket whose peers send more than they may: one above its own limit, or, when the sum
// is above the limit of all, the one that sent most. The peer sees a lost connection, and may come back.
//
// libzmq tells for each message which descriptor it came over, and has no call that ends a connection; the descriptor
// is shut down, and its owner, libzmq, sees it end. Messages may be read when their connection is gone and its
// descriptor is another's: libzmq's properties of a connection, kept as long as it is counted, tell the two apart. Only
// sockets of this address are touched.
//
// Threads: one.
// Bounds: one entry for each descriptor of the process, with a frame.
class PeerBound {
 public:
  // `endpoint` is the address that the socket is bound to, with its real port.
  PeerBound(PeerLimits limits, Endpoint endpoint);

  // A frame that was received.
  void Note(zmq_msg_t* frame);

  // Connections ended.
  std::uint64_t cut() const noexcept { return cut_; }

 private:
  using SocketId = std::uint64_t;
  struct Peer {
    const void* connection = nullptr;  // libzmq's properties of it
    std::shared_ptr<zmq_msg_t> first;  // keeps them where they are
    SocketId socket = 0;
    std::size_t bytes = 0;
    bool watched = false;  // a connection of this address that was not ended
  };

  static std::optional<SocketId> SocketAt(int fd) noexcept;
  bool IsOurs(int fd) const noexcept;
  Peer* Find(int fd, zmq_msg_t* frame);
  void EndLargest();
  void End(int fd, Peer* peer);

  const PeerLimits limits_;
  const Endpoint endpoint_;
  std::map<int, Peer> peers_;  // by descriptor
  std::size_t total_ = 0;      // of the watched
  std::uint64_t cut_ = 0;
};

}  // namespace kvwire
