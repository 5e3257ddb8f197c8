// SPDX-License-Identifier: Apache-2.0
#include "kv_events/transport/address_probe.h"

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "kv_events/transport/zmq_link.h"
#include "tests/support/own_loopback.h"

namespace kvwire {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A listening socket, as libzmq makes them.
class Listener {
 public:
  Listener(int family, const sockaddr* address, socklen_t size) : fd_(socket(family, SOCK_STREAM, 0)) {
    const int on = 1;
    setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    REQUIRE(bind(fd_, address, size) == 0);
    REQUIRE(listen(fd_, 1) == 0);
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() { Close(); }

  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  std::uint16_t port() const {
    sockaddr_in address{};
    socklen_t size = sizeof(address);
    REQUIRE(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    return ntohs(address.sin_port);
  }

 private:
  int fd_;
};

TEST_CASE("a tcp address is free when nobody listens there") {
  const std::string host = test::OwnLoopback();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  REQUIRE(inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1);
  Listener listener(AF_INET, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const std::string port = std::to_string(listener.port());
  const Endpoint endpoint = *Endpoint::Parse("tcp://" + host + ":" + port, "endpoint");
  const Endpoint wildcard = *Endpoint::Parse("tcp://0.0.0.0:" + port, "endpoint");
  CHECK_FALSE(WaitUntilFree(endpoint, milliseconds(1)));
  CHECK_FALSE(WaitUntilFree(wildcard, milliseconds(1)));
  listener.Close();
  CHECK(WaitUntilFree(endpoint, seconds(5)));
}

TEST_CASE("a path answers while somebody listens, and is free afterwards although the file stays") {
  const std::string path = "/tmp/kvwire-test-probe" + std::to_string(getpid());
  const Endpoint endpoint = *Endpoint::Parse("ipc://" + path, "endpoint");
  CHECK_FALSE(UnixSocketAnswers(path));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  Listener listener(AF_UNIX, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  CHECK(UnixSocketAnswers(path));
  CHECK(UnixSocketAnswers(path));
  CHECK(UnixSocketAnswers(path));  // its backlog is full by now
  CHECK_FALSE(WaitUntilFree(endpoint, milliseconds(1)));
  listener.Close();
  CHECK_FALSE(UnixSocketAnswers(path));
  CHECK(WaitUntilFree(endpoint, seconds(5)));
  std::filesystem::remove(path);
}

TEST_CASE("what cannot be judged is not waited for") {
  CHECK_FALSE(UnixSocketAnswers("@abstract"));
  CHECK_FALSE(UnixSocketAnswers("*"));
  CHECK_FALSE(UnixSocketAnswers(std::string(200, 'x')));
  CHECK_FALSE(WaitUntilFree(*Endpoint::Parse("inproc://a", "endpoint"), seconds(5)));
  CHECK_FALSE(WaitUntilFree(*Endpoint::Parse("tcp://a.name:5557", "endpoint"), seconds(5)));
}

TEST_CASE("B2: a wildcard address is reported as one that a peer can connect to; others stay") {
  const auto context = ZmqContext::Create();
  for (const char* text : {"tcp://*:0", "tcp://0.0.0.0:0"}) {
    const auto bound = ZmqLink::Bind(context, LinkKind::kRouter, *Endpoint::Parse(text, "endpoint"), LinkOptions());
    REQUIRE(bound.has_value());
    const std::string address = ReachableAddress((*bound)->endpoint());
    CAPTURE(address);
    CHECK(address.find("0.0.0.0") == std::string::npos);
    CHECK(address.find('*') == std::string::npos);
    LinkOptions watching;
    watching.watch_peers = true;
    const auto peer = ZmqLink::Connect(context, LinkKind::kDealer, *Endpoint::Parse(address, "endpoint"), watching);
    REQUIRE(peer.has_value());
    for (int i = 0; i < 500 && (*peer)->peers().connected == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    CHECK((*peer)->peers().connected == 1);
  }
  CHECK(ReachableAddress("tcp://[::]:5557").find("[::]") == std::string::npos);
  for (const char* same : {"tcp://127.0.0.1:5557", "tcp://[::1]:5557", "ipc:///x", "inproc://0.0.0.0:1"}) {
    CHECK(ReachableAddress(same) == same);
  }
}

}  // namespace
}  // namespace kvwire
