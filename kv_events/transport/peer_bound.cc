// SPDX-License-Identifier: Apache-2.0
#include "kv_events/transport/peer_bound.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

namespace kvwire {

namespace {

std::shared_ptr<zmq_msg_t> CopyOf(zmq_msg_t* frame) {
  std::shared_ptr<zmq_msg_t> copy(new zmq_msg_t, [](zmq_msg_t* message) {
    zmq_msg_close(message);
    delete message;
  });
  zmq_msg_init(copy.get());
  zmq_msg_copy(copy.get(), frame);
  return copy;
}

}  // namespace

// total_ is the sum of bytes over the watched peers; the others have none.

PeerBound::PeerBound(PeerLimits limits, Endpoint endpoint) : limits_(limits), endpoint_(std::move(endpoint)) {}

void PeerBound::Note(zmq_msg_t* frame) {
  const int fd = zmq_msg_get(frame, ZMQ_SRCFD);
  if (fd < 0) return;  // the end of a connection's subscriptions, or a peer in this process
  Peer* peer = Find(fd, frame);
  if (peer == nullptr || !peer->watched) return;
  const std::size_t bytes = zmq_msg_size(frame);
  peer->bytes += bytes;
  total_ += bytes;
  if (limits_.peer_bytes > 0 && peer->bytes > limits_.peer_bytes) {
    End(fd, peer);
  } else if (limits_.total_bytes > 0 && total_ > limits_.total_bytes) {
    EndLargest();
  }
}

// The socket behind a descriptor; nothing if it is closed.
std::optional<PeerBound::SocketId> PeerBound::SocketAt(int fd) noexcept {
  struct stat status {};
  if (fstat(fd, &status) != 0 || !S_ISSOCK(status.st_mode)) return std::nullopt;
  return status.st_ino;
}

bool PeerBound::IsOurs(int fd) const noexcept {
  sockaddr_storage name{};
  socklen_t size = sizeof(name);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return false;
  const auto is_port = [this](in_port_t port) { return endpoint_.port && ntohs(port) == *endpoint_.port; };
  if (name.ss_family == AF_INET) return is_port(reinterpret_cast<const sockaddr_in&>(name).sin_port);
  if (name.ss_family == AF_INET6) return is_port(reinterpret_cast<const sockaddr_in6&>(name).sin6_port);
  if (name.ss_family != AF_UNIX) return false;
  const auto& local = reinterpret_cast<const sockaddr_un&>(name);
  return endpoint_.scheme == Endpoint::Scheme::kIpc &&
         endpoint_.path == std::string_view(local.sun_path, strnlen(local.sun_path, sizeof(local.sun_path)));
}

// Null where the connection is gone.
PeerBound::Peer* PeerBound::Find(int fd, zmq_msg_t* frame) {
  const void* const connection = zmq_msg_gets(frame, "Peer-Address");
  const std::optional<SocketId> socket = SocketAt(fd);
  const auto known = peers_.find(fd);
  if (known != peers_.end() && known->second.connection == connection) {
    return socket == known->second.socket ? &known->second : nullptr;
  }
  if (known != peers_.end()) {
    total_ -= known->second.bytes;
    peers_.erase(known);
  }
  if (!socket || connection == nullptr) return nullptr;
  return &(peers_[fd] = Peer{connection, CopyOf(frame), *socket, 0, IsOurs(fd)});
}

// Connections that ended by themselves show only here.
void PeerBound::EndLargest() {
  std::erase_if(peers_, [this](const auto& entry) {
    if (SocketAt(entry.first) == entry.second.socket) return false;
    total_ -= entry.second.bytes;
    return true;
  });
  if (total_ <= limits_.total_bytes) return;
  const auto largest = std::max_element(peers_.begin(), peers_.end(), [](const auto& left, const auto& right) {
    return left.second.bytes < right.second.bytes;
  });
  End(largest->first, &largest->second);
}

// A duplicate holds the socket, so that the one that is shut down is the one that was looked at.
void PeerBound::End(int fd, Peer* peer) {
  const int held = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (held < 0) return;  // no descriptor is left; the next message tries again
  if (SocketAt(held) == peer->socket && shutdown(held, SHUT_RDWR) == 0) ++cut_;
  close(held);
  total_ -= peer->bytes;
  peer->bytes = 0;
  peer->watched = false;
}

}  // namespace kvwire
