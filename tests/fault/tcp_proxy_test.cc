// SPDX-License-Identifier: Apache-2.0
// The proxy that the other tests break connections with.
#include "tests/support/tcp_proxy.h"

#include <chrono>
#include <string>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/stream_support.h"

namespace kvwire::test {
namespace {

using std::chrono::milliseconds;

// A socket of the test's; blocking, with a limit of five seconds on each read.
class Peer {
 public:
  static Peer Listening() {
    Peer peer;
    sockaddr_in address = Address(0);
    REQUIRE(bind(peer.fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(listen(peer.fd_, 16) == 0);
    return peer;
  }
  static Peer To(std::uint16_t port) {
    Peer peer;
    peer.connected_ = peer.Connect(port);
    return peer;
  }
  Peer Accept() const {
    pollfd polled{fd_, POLLIN, 0};
    REQUIRE(poll(&polled, 1, 5000) == 1);
    return Peer(accept(fd_, nullptr, nullptr));
  }
  Peer() : Peer(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  Peer(Peer&& other) noexcept : fd_(other.fd_), connected_(other.connected_) { other.fd_ = -1; }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  Peer& operator=(Peer&&) = delete;
  ~Peer() {
    if (fd_ >= 0) close(fd_);
  }

  bool connected() const { return connected_; }
  std::uint16_t port() const {
    sockaddr_in address{};
    socklen_t size = sizeof(address);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    return ntohs(address.sin_port);
  }
  void Send(const std::string& text) const {
    REQUIRE(send(fd_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
  }
  // `size` bytes, or fewer if the connection ends before.
  std::string Receive(std::size_t size) const {
    std::string text(size, '\0');
    std::size_t have = 0;
    while (have < size) {
      pollfd polled{fd_, POLLIN, 0};
      REQUIRE(poll(&polled, 1, 5000) == 1);
      const ssize_t got = recv(fd_, text.data() + have, size - have, 0);
      if (got <= 0) break;
      have += static_cast<std::size_t>(got);
    }
    text.resize(have);
    return text;
  }
  bool Silent() const {
    pollfd polled{fd_, POLLIN, 0};
    return poll(&polled, 1, 0) == 0;
  }
  // Until the peer's buffers are full.
  std::size_t Fill() const {
    const std::string block(65536, 'x');
    std::size_t sent = 0;
    for (;;) {
      const ssize_t put = send(fd_, block.data(), block.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (put <= 0) return sent;
      sent += static_cast<std::size_t>(put);
    }
  }

 private:
  explicit Peer(int fd) : fd_(fd) { REQUIRE(fd >= 0); }
  static sockaddr_in Address(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return address;
  }
  bool Connect(std::uint16_t port) const {
    const sockaddr_in address = Address(port);
    return connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }

  int fd_ = -1;
  bool connected_ = false;
};

TEST_CASE("a proxy passes bytes on in both directions, and the end of a connection") {
  const Peer server = Peer::Listening();
  TcpProxy proxy(server.port());
  const Peer client = Peer::To(proxy.port());
  REQUIRE(client.connected());
  {
    const Peer accepted = server.Accept();
    client.Send("to the server");
    CHECK(accepted.Receive(13) == "to the server");
    accepted.Send("and back");
    CHECK(client.Receive(8) == "and back");
    CHECK(proxy.counts().from_target == 8);
    CHECK(proxy.counts().to_target == 13);
  }
  CHECK(client.Receive(1).empty());
}

TEST_CASE("a proxy without a target, or with one where nobody listens, ends what comes") {
  TcpProxy proxy;
  const Peer first = Peer::To(proxy.port());
  CHECK(first.Receive(1).empty());
  std::uint16_t gone = 0;
  {
    const Peer server = Peer::Listening();
    gone = server.port();
  }
  proxy.SetTarget(gone);
  const Peer second = Peer::To(proxy.port());
  CHECK(second.Receive(1).empty());
  CHECK(Eventually([&] { return proxy.counts().open == 0; }));
  CHECK(proxy.counts().accepted == 2);
}

TEST_CASE("a proxy that closes takes new connections, to another target too") {
  const Peer servers[] = {Peer::Listening(), Peer::Listening()};
  TcpProxy proxy(servers[0].port());
  const Peer client = Peer::To(proxy.port());
  const Peer accepted = servers[0].Accept();
  proxy.Close();
  CHECK(client.Receive(1).empty());
  CHECK(accepted.Receive(1).empty());
  CHECK(proxy.counts().open == 0);
  proxy.SetTarget(servers[1].port());
  const Peer again = Peer::To(proxy.port());
  const Peer other = servers[1].Accept();
  other.Send("x");
  CHECK(again.Receive(1) == "x");
}

TEST_CASE("a stopped proxy passes nothing on and closes nothing until it is resumed") {
  const Peer server = Peer::Listening();
  TcpProxy proxy(server.port());
  const Peer client = Peer::To(proxy.port());
  const Peer accepted = server.Accept();
  proxy.Stop();
  const std::size_t sent = accepted.Fill();
  CHECK(sent > 0);
  CHECK(proxy.counts().from_target == 0);
  CHECK(client.Silent());
  CHECK(proxy.counts().open == 1);
  proxy.Resume();
  CHECK(client.Receive(sent).size() == sent);
}

TEST_CASE("a proxy forwards so many bytes and then ends the connection in the middle of a message") {
  const Peer server = Peer::Listening();
  TcpProxy proxy(server.port());
  proxy.After(5, TcpProxy::Fault::kClose);
  const Peer client = Peer::To(proxy.port());
  const Peer accepted = server.Accept();
  accepted.Send("a message");
  CHECK(client.Receive(9) == "a mes");
  CHECK(Eventually([&] { return proxy.counts().faults == 1; }));
  // Once.
  const Peer again = Peer::To(proxy.port());
  const Peer other = server.Accept();
  other.Send("a message");
  CHECK(again.Receive(9) == "a message");
}

TEST_CASE("a proxy stops at a byte, and the rest comes later") {
  const Peer server = Peer::Listening();
  TcpProxy proxy(server.port());
  proxy.After(5, TcpProxy::Fault::kStop);
  const Peer client = Peer::To(proxy.port());
  const Peer accepted = server.Accept();
  accepted.Send("a message");
  CHECK(client.Receive(5) == "a mes");
  REQUIRE(Eventually([&] { return proxy.counts().faults == 1; }));
  CHECK(client.Silent());
  proxy.Resume();
  CHECK(client.Receive(4) == "sage");
}

TEST_CASE("a refusing proxy keeps its port and refuses connections until it is resumed") {
  const Peer server = Peer::Listening();
  TcpProxy proxy(server.port());
  const Peer client = Peer::To(proxy.port());
  const Peer accepted = server.Accept();
  proxy.Refuse();
  CHECK(client.Receive(1).empty());
  CHECK_FALSE(Peer::To(proxy.port()).connected());
  proxy.Resume();
  const Peer again = Peer::To(proxy.port());
  REQUIRE(again.connected());
  server.Accept().Send("x");
  CHECK(again.Receive(1) == "x");
}

TEST_CASE("a delaying proxy keeps bytes back for their time, in order") {
  const Peer server = Peer::Listening();
  TcpProxy proxy(server.port());
  proxy.Delay(milliseconds(30));
  const Peer client = Peer::To(proxy.port());
  const Peer accepted = server.Accept();
  const auto begin = std::chrono::steady_clock::now();
  for (const char* word : {"one ", "two ", "three"}) accepted.Send(word);
  CHECK(client.Receive(13) == "one two three");
  CHECK(std::chrono::steady_clock::now() - begin >= milliseconds(30));
}

}  // namespace
}  // namespace kvwire::test
