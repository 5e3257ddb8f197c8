// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/http_connection.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace kvwire::engine {

namespace {

constexpr std::size_t kBufferBytes = 16384;

// The events that happened; 0 when none did in time.
short Poll(int socket, short events, std::chrono::milliseconds time) {
  pollfd entry{socket, events, 0};
  const int ready = ::poll(&entry, 1, static_cast<int>(std::max<std::int64_t>(time.count(), 0)));
  return ready > 0 ? entry.revents : short{0};
}

}  // namespace

HttpConnection::HttpConnection(int socket, std::chrono::milliseconds patience)
    : socket_(socket), patience_(patience), buffer_(kBufferBytes) {}

HttpConnection::~HttpConnection() { ::close(socket_); }

bool HttpConnection::AwaitRequest(std::chrono::milliseconds time, const std::function<bool()>& give_up) {
  constexpr std::chrono::milliseconds kSlice(50);
  const Clock::time_point deadline = Clock::now() + time;
  // What came before the time was up is a request.
  while (begin_ == end_ && !Fill(std::min(deadline, Clock::now() + kSlice))) {
    if (PeerGone() || give_up() || Clock::now() >= deadline) return false;
  }
  taken_ = 0;
  limit_ = kMaxHeadBytes;
  request_end_ = Clock::now() + kMaxRequestTime;
  return true;
}

bool HttpConnection::PeerGone() const {
  return (Poll(socket_, POLLRDHUP, std::chrono::milliseconds(0)) & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

void HttpConnection::FinishWriting() {
  constexpr std::size_t kMostDiscarded = std::size_t{64} << 20;
  constexpr std::chrono::milliseconds kLinger(1000);
  ::shutdown(socket_, SHUT_WR);
  const Clock::time_point deadline = Clock::now() + kLinger;
  for (std::size_t discarded = 0; discarded < kMostDiscarded; discarded += end_) {
    begin_ = end_ = 0;
    if (!Fill(deadline)) return;
  }
}

bool HttpConnection::HasInput() const {
  return begin_ < end_ || Poll(socket_, POLLIN, std::chrono::milliseconds(0)) != 0;
}

bool HttpConnection::Fill(Clock::time_point deadline) {
  while (true) {
    const ssize_t received = ::recv(socket_, buffer_.data(), buffer_.size(), 0);
    if (received > 0) {
      begin_ = 0;
      end_ = static_cast<std::size_t>(received);
      return true;
    }
    if (received == 0) return false;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0 || Poll(socket_, POLLIN, left) == 0) return false;
  }
}

ssize_t HttpConnection::Read(char* data, std::size_t size) {
  if (begin_ == end_ && !Fill(std::min(request_end_, Clock::now() + patience_))) return -1;
  const std::size_t count = std::min({size, end_ - begin_, limit_ - std::min(limit_, taken_)});
  if (count == 0) return -1;
  std::memcpy(data, buffer_.data() + begin_, count);
  begin_ += count;
  taken_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t HttpConnection::Write(const char* data, std::size_t size) {
  for (std::size_t written = 0; written < size;) {
    const ssize_t sent = ::send(socket_, data + written, size - written, MSG_NOSIGNAL);
    if (sent > 0) {
      written += static_cast<std::size_t>(sent);
    } else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (Poll(socket_, POLLOUT, patience_) == 0) return -1;
    } else if (sent == 0 || errno != EINTR) {
      return -1;
    }
  }
  return static_cast<ssize_t>(size);
}

}  // namespace kvwire::engine
