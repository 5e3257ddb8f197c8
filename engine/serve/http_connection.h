// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

#include <sys/types.h>

namespace kvwire::engine {

// One client's connection, and the time and bytes that it may take.
//
// Threads: one thread; shutting down the socket from another one ends every call here.
// Ownership: closes the socket.
// Bounds: a request's line and headers kMaxHeadBytes and `head` long, all of it kMaxRequestBytes and kMaxRequestTime; a
// silence within a request `patience`; a write that finds no room `patience`.
class HttpConnection {
 public:
  static constexpr std::size_t kMaxHeadBytes = std::size_t{64} << 10;
  static constexpr std::size_t kMaxRequestBytes = std::size_t{64} << 20;
  static constexpr std::chrono::seconds kMaxRequestTime{120};

  struct Times {
    std::chrono::milliseconds patience;
    std::chrono::milliseconds head;
  };

  // Why there was nothing to read.
  enum class End { kClosed, kTime, kBytes };

  HttpConnection(int socket, Times times);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // Waits for the first byte of a request; empty lines before it are passed over. False when none came within the time,
  // the connection ended, or `give_up`, asked now and then, said so. Never false when there is a byte of a request to
  // read.
  bool AwaitRequest(std::chrono::milliseconds time, const std::function<bool()>& give_up);

  // Its line and headers were read.
  void OnHeadRead();

  // The client has closed the connection, or its half of it, or is gone.
  bool PeerGone() const;

  // Lets a client that is still sending read the last response before the connection is reset.
  void FinishWriting();

  bool HasInput() const;
  // What there is, waiting for it; -1 at the end of the connection and at a bound, which `end` tells.
  ssize_t Read(char* data, std::size_t size);
  End end() const noexcept { return end_reason_; }
  // All of it, or -1.
  ssize_t Write(const char* data, std::size_t size);

 private:
  using Clock = std::chrono::steady_clock;

  // Whether a byte of a request was received.
  bool SkipEmptyLines();

  // Whether there is something to read before the deadline.
  bool Fill(Clock::time_point deadline);

  const int socket_;
  const Times times_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  // of what was received and not read yet
  std::size_t end_ = 0;
  std::size_t taken_ = 0;  // bytes of this request
  std::size_t limit_ = kMaxHeadBytes;
  Clock::time_point begun_;        // of this request
  Clock::time_point request_end_;  // the latest for what is being read of it
  End end_reason_ = End::kClosed;
};

}  // namespace kvwire::engine
