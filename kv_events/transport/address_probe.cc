// SPDX-License-Identifier: Apache-2.0
#include "kv_events/transport/address_probe.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace kvwire {

namespace {

constexpr std::chrono::microseconds kLookInterval(100);

class Descriptor {
 public:
  Descriptor(int family, int type) : fd_(socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const noexcept { return fd_; }

 private:
  const int fd_;
};

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// A bound socket knows its host as a number.
AddressList Resolve(const Endpoint& endpoint) {
  std::string host = endpoint.host;
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(endpoint.port.value_or(0)).c_str(), &hints, &found) != 0) {
    found = nullptr;
  }
  return AddressList(found, &freeaddrinfo);
}

// Binding without listening disturbs nobody: sockets that allow reuse of the address share it until one listens.
bool CanBind(const addrinfo& address) {
  const Descriptor probe(address.ai_family, SOCK_STREAM);
  const int on = 1;
  return probe.fd() >= 0 && setsockopt(probe.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
         bind(probe.fd(), address.ai_addr, address.ai_addrlen) == 0;
}

template <class Condition>
bool Await(std::chrono::milliseconds patience, Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kLookInterval);
  }
  return true;
}

// The address that packets to the world leave from. Connecting a datagram socket sends nothing.
std::string OwnAddress(int family) {
  const bool v4 = family == AF_INET;
  const char* const loopback = v4 ? "127.0.0.1" : "::1";
  sockaddr_storage there{};
  there.ss_family = static_cast<sa_family_t>(family);
  auto* in4 = reinterpret_cast<sockaddr_in*>(&there);
  auto* in6 = reinterpret_cast<sockaddr_in6*>(&there);
  // Addresses of documentation (RFC 5737, RFC 3849), which belong to nobody.
  inet_pton(family, v4 ? "192.0.2.1" : "2001:db8::1", v4 ? static_cast<void*>(&in4->sin_addr) : &in6->sin6_addr);
  (v4 ? in4->sin_port : in6->sin6_port) = htons(9);
  const Descriptor socket(family, SOCK_DGRAM);
  sockaddr_storage here{};
  socklen_t size = sizeof(here);
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool known = connect(socket.fd(), reinterpret_cast<const sockaddr*>(&there), sizeof(there)) == 0 &&
                     getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&here), &size) == 0 &&
                     inet_ntop(family,
                               v4 ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(&here)->sin_addr)
                                  : &reinterpret_cast<const sockaddr_in6*>(&here)->sin6_addr,
                               text.data(), text.size()) != nullptr;
  return known ? text.data() : loopback;
}

}  // namespace

bool UnixSocketAnswers(std::string_view path) noexcept {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // "@" starts a name without a file, "*" a path that libzmq makes up: nobody's address is taken away there.
  if (path.starts_with('@') || path == "*" || path.size() >= sizeof(address.sun_path)) return false;
  std::copy(path.begin(), path.end(), address.sun_path);
  const Descriptor probe(AF_UNIX, SOCK_STREAM);
  if (probe.fd() < 0) return false;
  if (connect(probe.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return true;
  // A listener that is too busy, a socket of another kind, or one that is not ours to ask.
  struct stat found {};
  return errno == EAGAIN || errno == EPROTOTYPE || (errno == EACCES && lstat(address.sun_path, &found) == 0);
}

bool WaitUntilFree(const Endpoint& endpoint, std::chrono::milliseconds patience) noexcept {
  switch (endpoint.scheme) {
    case Endpoint::Scheme::kTcp: {
      const AddressList address = Resolve(endpoint);
      return address && Await(patience, [&] { return CanBind(*address); });
    }
    case Endpoint::Scheme::kIpc:
      return Await(patience, [&] { return !UnixSocketAnswers(endpoint.path); });
    case Endpoint::Scheme::kInproc:
      return false;
  }
  return false;
}

std::string ReachableAddress(const std::string& endpoint) {
  for (const auto& [wildcard, family] : {std::pair("tcp://0.0.0.0:", AF_INET), {"tcp://[::]:", AF_INET6}}) {
    if (!endpoint.starts_with(wildcard)) continue;
    const std::string port = endpoint.substr(std::string_view(wildcard).size());
    return family == AF_INET ? "tcp://" + OwnAddress(family) + ":" + port
                             : "tcp://[" + OwnAddress(family) + "]:" + port;
  }
  return endpoint;
}

}  // namespace kvwire
