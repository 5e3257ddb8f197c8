// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/zmtp_probe.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string_view>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/cli/stop_signal.h"
#include "kv_events/escape_text.h"
#include "kv_events/transport/host_lookup.h"

namespace kvwire::engine {

namespace {

using Time = std::chrono::steady_clock::time_point;

constexpr std::size_t kGreetingBytes = 64;
constexpr std::size_t kSignatureBytes = 10;
// Mechanisms.
constexpr std::string_view kOpen = "NULL";
constexpr std::string_view kClosed = "CURVE";

class Socket {
 public:
  explicit Socket(int family) : fd_(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // Empty, or why not.
  std::string Connect(const sockaddr* address, socklen_t size, Time deadline) const {
    if (fd_ < 0) return std::strerror(errno);
    if (connect(fd_, address, size) == 0) return {};
    if (errno != EINPROGRESS) return std::strerror(errno);
    if (!Wait(POLLOUT, deadline)) return "no answer in time";
    int reason = 0;
    socklen_t length = sizeof(reason);
    getsockopt(fd_, SOL_SOCKET, SO_ERROR, &reason, &length);
    return reason == 0 ? std::string() : std::strerror(reason);
  }

  void Send(std::string_view bytes) const {
    // So few bytes fit into a new socket's buffer.
    [[maybe_unused]] const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  // Up to `size` bytes, fewer when they end or do not come in time.
  std::string Read(std::size_t size, Time deadline) const {
    std::string bytes;
    while (bytes.size() < size && Wait(POLLIN, deadline)) {
      std::array<char, 512> buffer{};
      const ssize_t got = recv(fd_, buffer.data(), std::min(buffer.size(), size - bytes.size()), 0);
      if (got <= 0) break;
      bytes.append(buffer.data(), static_cast<std::size_t>(got));
    }
    return bytes;
  }

 private:
  bool Wait(short events, Time deadline) const {
    while (!StopRequested()) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      if (left.count() <= 0) return false;
      pollfd polled{fd_, events, 0};
      const int ready = poll(&polled, 1, static_cast<int>(left.count()));
      if (ready > 0) return true;
      if (ready < 0 && errno != EINTR) return false;
    }
    return false;
  }

  const int fd_;
};

// ZMTP 3.0, of a client.
std::string Greeting(std::string_view mechanism) {
  std::string greeting(kGreetingBytes, '\0');
  greeting[0] = '\xff';
  greeting[8] = 1;
  greeting[9] = '\x7f';
  greeting[10] = 3;
  std::copy(mechanism.begin(), mechanism.end(), greeting.begin() + 12);
  return greeting;
}

// The value of a property of a READY command's body.
std::optional<std::string> Property(std::string_view body, std::string_view name) {
  constexpr std::size_t kLengthBytes = 4;
  while (!body.empty()) {
    const auto name_size = static_cast<std::uint8_t>(body[0]);
    if (body.size() < 1 + name_size + kLengthBytes) return std::nullopt;
    const std::string_view key = body.substr(1, name_size);
    body.remove_prefix(1 + name_size);
    std::size_t value_size = 0;
    for (std::size_t i = 0; i < kLengthBytes; ++i) value_size = value_size << 8 | static_cast<std::uint8_t>(body[i]);
    body.remove_prefix(kLengthBytes);
    if (value_size > body.size()) return std::nullopt;
    if (key == name) return std::string(body.substr(0, value_size));
    body.remove_prefix(value_size);
  }
  return std::nullopt;
}

void ReadReady(const Socket& socket, Time deadline, ProbeResult* result) {
  constexpr char kShortCommand = 4;
  constexpr std::string_view kReady = "\x05READY";
  const std::string head = socket.Read(2, deadline);
  if (head.size() < 2 || head[0] != kShortCommand) return;
  const std::string body = socket.Read(static_cast<std::uint8_t>(head[1]), deadline);
  if (!std::string_view(body).starts_with(kReady)) return;
  result->socket_type = EscapeText(Property(std::string_view(body).substr(kReady.size()), "Socket-Type").value_or(""));
}

void Converse(const Socket& socket, std::chrono::milliseconds timeout, std::string_view mechanism,
              ProbeResult* result) {
  socket.Send(Greeting(mechanism));
  const std::string signature = socket.Read(kSignatureBytes, std::chrono::steady_clock::now() + timeout);
  if (signature.empty()) return;
  if (signature.size() < kSignatureBytes || signature[0] != '\xff' || signature[9] != '\x7f') {
    result->speech = ProbeResult::Speech::kOther;
    result->first_bytes = EscapeText(signature);
    return;
  }
  result->speech = ProbeResult::Speech::kZmtp;
  const Time deadline = std::chrono::steady_clock::now() + timeout;
  const std::string rest = socket.Read(kGreetingBytes - kSignatureBytes, deadline);
  if (rest.size() < kGreetingBytes - kSignatureBytes) return;
  result->major = static_cast<std::uint8_t>(rest[0]);
  result->minor = static_cast<std::uint8_t>(rest[1]);
  constexpr std::size_t kMechanismBytes = 20;
  const std::string theirs = rest.substr(2, kMechanismBytes);
  result->mechanism = EscapeText(theirs.substr(0, theirs.find('\0')));
  if (result->mechanism == kOpen) ReadReady(socket, deadline, result);
}

// The addresses of the endpoint's host. Empty: there are none, and the result says why.
HostAddresses AddressesOf(const Endpoint& endpoint, ProbeResult* result) {
  constexpr std::chrono::milliseconds kLook(20);
  if (endpoint.host.starts_with('[')) return {endpoint.host.substr(1, endpoint.host.size() - 2)};
  if (IsHostAddress(endpoint.host)) return {endpoint.host};
  HostLookup lookup(endpoint.host);
  std::optional<Result<HostAddresses>> answer;
  while (!(answer = lookup.Poll()) && !StopRequested()) SleepUnlessStopped(kLook);
  if (!answer) {
    result->resolve_error = fmt::format("{}: the name server has not answered yet", endpoint.host);
  } else if (!*answer) {
    result->resolve_error = answer->error().message;
  } else if ((*answer)->empty()) {
    result->resolve_error = fmt::format("{}: it has no address", endpoint.host);
  } else {
    return **answer;
  }
  return {};
}

void ProbeTcp(const Endpoint& endpoint, std::chrono::milliseconds timeout, std::string_view mechanism,
              ProbeResult* result) {
  result->addresses = AddressesOf(endpoint, result);
  if (result->addresses.empty()) return;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(endpoint.port.value_or(0));
  if (const int failed = getaddrinfo(result->addresses.front().c_str(), port.c_str(), &hints, &found); failed != 0) {
    result->resolve_error = fmt::format("{}: {}", endpoint.host, gai_strerror(failed));
    return;
  }
  const Socket socket(found->ai_family);
  result->connect_error = socket.Connect(found->ai_addr, found->ai_addrlen, std::chrono::steady_clock::now() + timeout);
  result->connected = result->connect_error.empty();
  if (result->connected) Converse(socket, timeout, mechanism, result);
  freeaddrinfo(found);
}

void ProbeIpc(const Endpoint& endpoint, std::chrono::milliseconds timeout, std::string_view mechanism,
              ProbeResult* result) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t size = std::min(endpoint.path.size(), sizeof(address.sun_path) - 1);
  endpoint.path.copy(address.sun_path, size);
  // "@name" is a name without a file.
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  const bool abstract = address.sun_path[0] == '\0';
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size + (abstract ? 0 : 1));
  const Socket socket(AF_UNIX);
  result->connect_error =
      socket.Connect(reinterpret_cast<const sockaddr*>(&address), length, std::chrono::steady_clock::now() + timeout);
  result->connected = result->connect_error.empty();
  if (result->connected) Converse(socket, timeout, mechanism, result);
}

ProbeResult ProbeAs(std::string_view mechanism, const Endpoint& endpoint, std::chrono::milliseconds timeout) {
  ProbeResult result;
  if (endpoint.scheme == Endpoint::Scheme::kTcp) {
    ProbeTcp(endpoint, timeout, mechanism, &result);
  } else {
    ProbeIpc(endpoint, timeout, mechanism, &result);
  }
  return result;
}

}  // namespace

// A socket hangs up on who greets it with another mechanism than its own, before or after its first bytes.
ProbeResult Probe(const Endpoint& endpoint, std::chrono::milliseconds timeout) {
  const Time begin = std::chrono::steady_clock::now();
  ProbeResult result = ProbeAs(kOpen, endpoint, timeout);
  const bool hung_up = result.connected && result.mechanism.empty() && result.speech != ProbeResult::Speech::kOther &&
                       std::chrono::steady_clock::now() - begin < timeout;
  if (!hung_up || StopRequested()) return result;
  ProbeResult closed = ProbeAs(kClosed, endpoint, timeout);
  return closed.mechanism.empty() ? result : closed;
}

}  // namespace kvwire::engine
