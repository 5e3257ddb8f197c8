// SPDX-License-Identifier: Apache-2.0
#include "tests/support/tcp_proxy.h"

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <utility>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace kvwire::test {

namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::size_t kWindow = std::size_t{64} << 10;
constexpr int kReceiveBuffer = 64 << 10;  // of the kernel

sockaddr_in Loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

int MakeSocket() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) throw std::runtime_error("socket");
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kReceiveBuffer, sizeof(kReceiveBuffer));
  return fd;
}

// Two sockets may have the port: the listener and its keeper.
int BindShared(std::uint16_t port) {
  const int fd = MakeSocket();
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
  const sockaddr_in address = Loopback(port);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close(fd);
    throw std::runtime_error("bind");
  }
  return fd;
}

std::uint16_t PortOf(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

void CloseSocket(int* fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

}  // namespace

TcpProxy::TcpProxy(std::uint16_t target)
    : keeper_(BindShared(0)), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), port_(PortOf(keeper_)), target_(target) {
  Listen();
  thread_ = std::thread([this] { Run(); });
}

TcpProxy::~TcpProxy() {
  Do([this] {
    EndAll();
    const std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  });
  thread_.join();
  CloseSocket(&listener_);
  CloseSocket(&keeper_);
  CloseSocket(&wake_);
}

void TcpProxy::SetTarget(std::uint16_t target) {
  Do([this, target] { target_ = target; });
}

void TcpProxy::Close() {
  Do([this] { EndAll(); });
}

void TcpProxy::Stop() {
  Do([this] { Happen(Fault::kStop); });
}

void TcpProxy::Refuse() {
  Do([this] { Happen(Fault::kRefuse); });
}

void TcpProxy::Resume() {
  Do([this] {
    stopped_ = false;
    if (listener_ < 0) Listen();
  });
}

void TcpProxy::Delay(std::chrono::milliseconds delay) {
  Do([this, delay] { delay_ = delay; });
}

void TcpProxy::After(std::size_t bytes, Fault fault) {
  Do([this, bytes, fault] {
    until_fault_ = bytes;
    fault_ = fault;
  });
}

TcpProxy::Counts TcpProxy::counts() {
  Counts counts;
  Do([this, &counts] {
    counts = counts_;
    counts.open = connections_.size();
  });
  return counts;
}

void TcpProxy::Do(const std::function<void()>& command) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return command_ == nullptr; });
  command_ = &command;
  const std::uint64_t one = 1;
  static_cast<void>(write(wake_, &one, sizeof(one)) == sizeof(one));
  changed_.wait(lock, [this, &command] { return command_ != &command; });
}

void TcpProxy::Run() {
  for (;;) {
    const std::function<void()>* command = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      command = command_;
    }
    if (command != nullptr) {
      (*command)();
      const std::lock_guard<std::mutex> lock(mutex_);
      command_ = nullptr;
      changed_.notify_all();
      if (over_) return;
    }
    Step();
  }
}

void TcpProxy::Listen() {
  listener_ = BindShared(port_);
  if (listen(listener_, 128) != 0) throw std::runtime_error("listen");
}

void TcpProxy::Accept() {
  for (;;) {
    Connection connection;
    connection.client = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (connection.client < 0) return;
    ++counts_.accepted;
    connection.target = MakeSocket();
    const sockaddr_in address = Loopback(target_);
    const int result = connect(connection.target, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    const int one = 1;
    for (const int fd : {connection.client, connection.target}) {
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    }
    if (target_ == 0 || (result != 0 && errno != EINPROGRESS)) {
      End(&connection);
      continue;
    }
    connections_.push_back(std::move(connection));
  }
}

// With a reset: nothing that is under way arrives any more.
void TcpProxy::End(Connection* connection) {
  const linger now{1, 0};
  for (int* fd : {&connection->client, &connection->target}) {
    if (*fd >= 0) setsockopt(*fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    CloseSocket(fd);
  }
}

void TcpProxy::EndAll() {
  for (Connection& connection : connections_) End(&connection);
  connections_.clear();
}

void TcpProxy::Happen(Fault fault) {
  if (fault == Fault::kStop) {
    stopped_ = true;
    return;
  }
  // Not with a reset: the bytes before this one are to arrive.
  for (Connection& connection : connections_) {
    CloseSocket(&connection.client);
    CloseSocket(&connection.target);
  }
  connections_.clear();
  if (fault == Fault::kRefuse) CloseSocket(&listener_);
}

void TcpProxy::Read(int from, Direction* direction, Connection* connection) {
  if (direction->ended || direction->waiting >= kWindow) return;
  Chunk chunk;
  chunk.bytes.resize(kWindow - direction->waiting);
  const ssize_t got = read(from, chunk.bytes.data(), chunk.bytes.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got < 0) connection->broken = true;
  if (got <= 0) {
    direction->ended = true;
    return;
  }
  chunk.bytes.resize(static_cast<std::size_t>(got));
  chunk.due = SteadyClock::now() + delay_;
  // A delay keeps what is on its way without filling the window.
  if (delay_.count() == 0) direction->waiting += chunk.bytes.size();
  direction->chunks.push_back(std::move(chunk));
}

void TcpProxy::Write(int to, Direction* direction, Connection* connection) {
  const bool counts = direction == &connection->from_target;
  while (!direction->chunks.empty() && direction->chunks.front().due <= SteadyClock::now()) {
    Chunk& chunk = direction->chunks.front();
    std::size_t size = chunk.bytes.size() - chunk.sent;
    if (counts && until_fault_) size = std::min(size, *until_fault_);
    const ssize_t put = size == 0 ? 0 : send(to, chunk.bytes.data() + chunk.sent, size, MSG_NOSIGNAL);
    if (put < 0) {
      if (errno != EAGAIN && errno != EINTR && errno != ENOTCONN) connection->broken = true;
      return;
    }
    const auto done = static_cast<std::size_t>(put);
    chunk.sent += done;
    direction->waiting -= std::min(direction->waiting, done);
    (counts ? counts_.from_target : counts_.to_target) += done;
    if (counts && until_fault_ && (*until_fault_ -= done) == 0) return;
    if (chunk.sent == chunk.bytes.size()) direction->chunks.pop_front();
  }
  if (direction->ended && direction->chunks.empty() && !std::exchange(direction->told, true)) shutdown(to, SHUT_WR);
}

int TcpProxy::PollTimeout() const {
  if (stopped_) return -1;
  auto next = SteadyClock::time_point::max();
  for (const Connection& connection : connections_) {
    for (const Direction* direction : {&connection.to_target, &connection.from_target}) {
      if (!direction->chunks.empty()) next = std::min(next, direction->chunks.front().due);
    }
  }
  if (next == SteadyClock::time_point::max()) return -1;
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - SteadyClock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(wait, 0));
}

void TcpProxy::Step() {
  std::vector<pollfd> polled{{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};  // a negative descriptor is passed over
  for (const Connection& connection : connections_) {
    const auto wanted = [this](const Direction& in, const Direction& out) {
      int events = 0;
      if (!stopped_ && !in.ended && in.waiting < kWindow) events |= POLLIN;
      if (!stopped_ && !out.chunks.empty() && out.chunks.front().due <= SteadyClock::now()) events |= POLLOUT;
      return static_cast<short>(events);
    };
    const auto entry = [](int fd, short events) { return pollfd{events == 0 ? -1 : fd, events, 0}; };
    polled.push_back(entry(connection.client, wanted(connection.to_target, connection.from_target)));
    polled.push_back(entry(connection.target, wanted(connection.from_target, connection.to_target)));
  }
  // What is due waits for POLLOUT, what is not for its time.
  poll(polled.data(), polled.size(), PollTimeout() == 0 ? 1 : PollTimeout());
  std::uint64_t woken = 0;
  if (polled[0].revents != 0) static_cast<void>(read(wake_, &woken, sizeof(woken)) > 0);
  for (std::size_t i = 0; !stopped_ && i < connections_.size(); ++i) {
    Connection& connection = connections_[i];
    if (polled[2 + 2 * i].revents != 0) Read(connection.client, &connection.to_target, &connection);
    if (polled[3 + 2 * i].revents != 0) Read(connection.target, &connection.from_target, &connection);
    Write(connection.target, &connection.to_target, &connection);
    Write(connection.client, &connection.from_target, &connection);
    if (until_fault_ && *until_fault_ == 0) {
      until_fault_.reset();
      ++counts_.faults;
      Happen(fault_);
      return;
    }
  }
  std::erase_if(connections_, [this](Connection& connection) {
    const bool over = connection.broken || (connection.to_target.told && connection.from_target.told);
    if (over) End(&connection);
    return over;
  });
  if (polled[1].revents != 0) Accept();
}

}  // namespace kvwire::test
