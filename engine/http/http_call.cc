// SPDX-License-Identifier: Apache-2.0
#include "engine/http/http_call.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/http/caller_scope.h"
#include "engine/http/http_body_reader.h"
#include "engine/http/http_head.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

using Clock = std::chrono::steady_clock;
using Outcome = tl::expected<void, std::string>;

constexpr std::size_t kMaxHeadBytes = std::size_t{64} << 10;

tl::unexpected<std::string> Failed(std::string why) { return tl::unexpected<std::string>(std::move(why)); }
tl::unexpected<std::string> Failed(std::string_view what, int reason) {
  return Failed(fmt::format("{}: {}", what, std::strerror(reason)));
}

// A connection whose every wait ends at the deadline, and soon after nobody waits for the outcome any more.
class Connection {
 public:
  Connection() = default;
  ~Connection() { Close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  Outcome Connect(const addrinfo& address, Clock::time_point deadline);
  void set_deadline(Clock::time_point deadline) { deadline_ = deadline; }
  Outcome Write(std::string_view bytes);

  // Some bytes; 0 when the server closed the connection, -1 when `fault` tells why there is none, or the bytes that may
  // be read are used up.
  ssize_t Read(char* data, std::size_t size);
  void set_max_bytes(std::size_t bytes) { left_ = max_ = bytes; }
  const std::string& fault() const noexcept { return fault_; }

 private:
  Outcome Await(short events) const;
  void Close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }

  int socket_ = -1;
  Clock::time_point deadline_;
  std::array<char, 16384> buffer_;
  std::size_t begin_ = 0;  // of what was received and not read yet
  std::size_t end_ = 0;
  std::size_t max_ = 0;
  std::size_t left_ = 0;
  std::string fault_;
};

Outcome Connection::Await(short events) const {
  constexpr std::chrono::milliseconds kSlice(20);
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
    if (left.count() <= 0) return Failed("the time is over");
    if (CallerScope::Gone()) return Failed("nobody waits for it any more");
    pollfd entry{socket_, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::min<std::chrono::milliseconds>(left, kSlice).count()));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return Failed("cannot wait", errno);
  }
}

Outcome Connection::Connect(const addrinfo& address, Clock::time_point deadline) {
  Close();
  deadline_ = deadline;
  socket_ = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol);
  if (socket_ < 0) return Failed("no socket", errno);
  const int on = 1;
  ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (::connect(socket_, address.ai_addr, address.ai_addrlen) == 0) return {};
  if (errno != EINPROGRESS) return Failed("cannot connect", errno);
  Outcome ready = Await(POLLOUT);
  if (!ready) return Failed(fmt::format("cannot connect: {}", ready.error()));
  int reason = 0;
  socklen_t size = sizeof(reason);
  if (::getsockopt(socket_, SOL_SOCKET, SO_ERROR, &reason, &size) != 0) reason = errno;
  if (reason != 0) return Failed("cannot connect", reason);
  return {};
}

Outcome Connection::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      Outcome ready = Await(POLLOUT);
      if (!ready) return Failed(fmt::format("cannot send the request: {}", ready.error()));
    } else if (sent == 0 || errno != EINTR) {
      return Failed("cannot send the request", errno);
    }
  }
  return {};
}

ssize_t Connection::Read(char* data, std::size_t size) {
  while (begin_ == end_) {
    Outcome ready = Await(POLLIN);
    if (!ready) {
      fault_ = std::move(ready).error();
      return -1;
    }
    const ssize_t received = ::recv(socket_, buffer_.data(), buffer_.size(), 0);
    if (received == 0) return 0;
    if (received > 0) {
      begin_ = 0;
      end_ = static_cast<std::size_t>(received);
    } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      fault_ = std::strerror(errno);
      return -1;
    }
  }
  const std::size_t count = std::min({size, end_ - begin_, left_});
  if (count == 0) {
    fault_ = fmt::format("it is larger than {} bytes", max_);
    return -1;
  }
  std::memcpy(data, buffer_.data() + begin_, count);
  begin_ += count;
  left_ -= count;
  return static_cast<ssize_t>(count);
}

Outcome ConnectTo(const HttpCall& call, Connection* connection) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(call.host.c_str(), std::to_string(call.port).c_str(), &hints, &found);
  if (failure != 0) return Failed(fmt::format("the host is not known: {}", ::gai_strerror(failure)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  const Clock::time_point deadline = Clock::now() + call.connect_timeout;
  Outcome connected = Failed("the host has no address");
  for (const addrinfo* address = found; address != nullptr && !connected; address = address->ai_next) {
    connected = connection->Connect(*address, deadline);
  }
  return connected;
}

std::string RequestHead(const HttpCall& call) {
  const bool is_v6 = call.host.find(':') != std::string::npos;
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: {}{}{}:{}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
      call.path.empty() ? "/" : call.path, is_v6 ? "[" : "", call.host, is_v6 ? "]" : "", call.port, call.content_type,
      call.body.size());
}

// The status of "HTTP/1.1 200 OK"; 0 for anything else.
int StatusOf(std::string_view line) {
  constexpr std::size_t kVersionBytes = 9;
  const bool is_http = line.starts_with("HTTP/1.1 ") || line.starts_with("HTTP/1.0 ");
  if (!is_http || line.size() < kVersionBytes + 3) return 0;
  int status = 0;
  for (const char c : line.substr(kVersionBytes, 3)) {
    if (c < '0' || c > '9') return 0;
    status = status * 10 + (c - '0');
  }
  const bool ends = line.size() == kVersionBytes + 3 || line[kVersionBytes + 3] == ' ';
  return ends && status >= 100 ? status : 0;
}

tl::expected<HttpHead, std::string> ReadHead(Connection* connection) {
  HttpHeadParser parser = HttpHeadParser::OfMessage();
  while (true) {
    char byte = 0;
    const ssize_t count = connection->Read(&byte, 1);
    if (count == 0) return Failed("the server closed the connection");
    if (count < 0) return Failed(connection->fault());
    switch (parser.Take(byte)) {
      case HttpHeadParser::State::kMore:
        break;
      case HttpHeadParser::State::kComplete:
        return parser.head();
      case HttpHeadParser::State::kFaulty:
        return Failed(parser.fault());
    }
  }
}

tl::expected<std::string, std::string> ReadBody(const HttpCall& call, HttpFraming framing, Connection* connection) {
  std::array<char, 16384> piece;
  connection->set_max_bytes(2 * call.max_reply_bytes);
  HttpBodyReader reader(framing, [connection](char* data, std::size_t size) { return connection->Read(data, size); });
  std::string body;
  while (true) {
    const ssize_t count = reader.Read(piece.data(), piece.size());
    if (count == 0) return body;
    if (count < 0) return Failed(connection->fault().empty() ? "it ends too early or is broken" : connection->fault());
    if (static_cast<std::size_t>(count) > call.max_reply_bytes - body.size()) {
      return Failed(fmt::format("it is larger than {} bytes", call.max_reply_bytes));
    }
    body.append(piece.data(), static_cast<std::size_t>(count));
  }
}

bool HasNoBody(int status) { return status == 204 || status == 304; }

}  // namespace

tl::expected<HttpReply, std::string> Call(const HttpCall& call) {
  Connection connection;
  Outcome done = ConnectTo(call, &connection);
  if (!done) return Failed(std::move(done).error());
  connection.set_deadline(Clock::now() + call.reply_timeout);
  done = connection.Write(RequestHead(call));
  if (done) done = connection.Write(call.body);
  if (!done) return Failed(std::move(done).error());

  // Of all heads together, those before the final one included.
  connection.set_max_bytes(kMaxHeadBytes);
  HttpReply reply;
  HttpHead head;
  do {
    auto read = ReadHead(&connection);
    if (!read) return Failed(fmt::format("no reply: {}", read.error()));
    head = *std::move(read);
    reply.status = StatusOf(head.start_line);
    if (reply.status == 0) {
      return Failed(
          fmt::format("the reply begins with \"{}\", expected HTTP/1.1 and a status", ShortText(head.start_line)));
    }
  } while (reply.status < 200);
  if (HasNoBody(reply.status)) return reply;
  const std::string packing = FieldOf(head.fields, "content-encoding").value_or("");
  if (!packing.empty() && LowerCase(packing) != "identity") {
    return Failed(fmt::format("the reply has Content-Encoding \"{}\", expected none", ShortText(packing)));
  }
  const auto framing = FramingOf(head.fields);
  if (!framing) return Failed(fmt::format("the reply's {}", framing.error().message));
  auto body = ReadBody(call, framing->value_or(HttpFraming{HttpFraming::Kind::kUntilEnd, 0}), &connection);
  if (!body)
    return Failed(fmt::format("status {}, and the reply's body cannot be read: {}", reply.status, body.error()));
  reply.body = *std::move(body);
  return reply;
}

}  // namespace kvwire::engine
