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

HttpConnection::HttpConnection(int socket, Times times) : socket_(socket), times_(times), buffer_(kBufferBytes) {}

HttpConnection::~HttpConnection() { ::close(socket_); }

bool HttpConnection::AwaitRequest(std::chrono::milliseconds time, const std::function<bool()>& give_up) {
  constexpr std::chrono::milliseconds kSlice(50);
  const Clock::time_point deadline = Clock::now() + time;
  while (!SkipEmptyLines() && !(Fill(std::min(deadline, Clock::now() + kSlice)) && SkipEmptyLines())) {
    const bool waits_on = !PeerGone() && !give_up() && Clock::now() < deadline;
    // What came before the decision is a request.
    if (!waits_on && !(Fill(Clock::now()) && SkipEmptyLines())) return false;
  }
  taken_ = 0;
  limit_ = kMaxHeadBytes;
  begun_ = Clock::now();
  request_end_ = begun_ + times_.head;
  return true;
}

void HttpConnection::OnHeadRead() {
  limit_ = kMaxRequestBytes;
  request_end_ = begun_ + kMaxRequestTime;
}

bool HttpConnection::SkipEmptyLines() {
  while (begin_ < end_ && (buffer_[begin_] == '\r' || buffer_[begin_] == '\n')) ++begin_;
  return begin_ < end_;
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
  if (begin_ == end_) {
    const Clock::time_point now = Clock::now();
    const Clock::time_point deadline = std::min(request_end_, now + times_.patience);
    if (now >= request_end_ || !Fill(deadline)) {
      end_reason_ = Clock::now() >= deadline ? End::kTime : End::kClosed;
      return -1;
    }
  }
  const std::size_t count = std::min({size, end_ - begin_, limit_ - std::min(limit_, taken_)});
  if (count == 0) {
    end_reason_ = End::kBytes;
    return -1;
  }
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
      if (Poll(socket_, POLLOUT, times_.patience) == 0) return -1;
    } else if (sent == 0 || errno != EINTR) {
      return -1;
    }
  }
  return static_cast<ssize_t>(size);
}

}  // namespace kvwire::engine
