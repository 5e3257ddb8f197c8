// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/output.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/cli/stop_signal.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

constexpr int kPatienceWhenStopped = 1000;  // milliseconds
constexpr int kLook = 50;                   // where nothing tells of a stop
// A pipe that poll calls writable takes so much without waiting.
constexpr std::size_t kPiece = 4096;

// Of either stream: that it was waited for in vain. It is done once, not for each.
bool waited_in_vain = false;

// A standard stream that never waits for ever.
// Threads: one at a time.
class Stream {
 public:
  explicit Stream(int fd) noexcept : fd_(fd) {}

  void Add(std::string_view text) noexcept {
    if (text.size() > buffer_.size() - size_) Flush();
    if (text.size() > buffer_.size()) {
      Write(text);
      return;
    }
    std::copy(text.begin(), text.end(), buffer_.begin() + static_cast<std::ptrdiff_t>(size_));
    size_ += text.size();
  }
  void Flush() noexcept {
    Write({buffer_.data(), size_});
    size_ = 0;
  }
  // Why the first write that failed did; 0: none did.
  int failure() const noexcept { return failure_; }
  bool given_up() const noexcept { return given_up_; }
  bool IsTerminal() noexcept {
    Know();
    return kind_ == Kind::kTerminal;
  }
  void Remember(int reason) noexcept {
    if (failure_ == 0) failure_ = reason != 0 ? reason : EIO;
  }

 private:
  enum class Kind : unsigned char { kUnknown, kFile, kTerminal, kOther };

  void Know() noexcept {
    if (kind_ != Kind::kUnknown) return;
    struct stat status {};
    const bool file = fstat(fd_, &status) == 0 && S_ISREG(status.st_mode);
    kind_ = file ? Kind::kFile : isatty(fd_) == 1 ? Kind::kTerminal : Kind::kOther;
  }
  void Write(std::string_view text) noexcept {
    Know();
    while (!text.empty() && !given_up_) {
      if (kind_ != Kind::kFile && !AwaitRoom()) {
        given_up_ = waited_in_vain = true;
        Remember(ETIMEDOUT);
        return;
      }
      const std::size_t piece = kind_ == Kind::kFile ? text.size() : std::min(text.size(), kPiece);
      const ssize_t written = write(fd_, text.data(), piece);
      if (written >= 0) {
        text.remove_prefix(static_cast<std::size_t>(written));
      } else if (errno != EINTR && errno != EAGAIN) {
        Remember(errno);
        return;
      }
    }
  }
  // False: there is none, a stop was asked for, and it was waited for long enough.
  bool AwaitRoom() const noexcept {
    while (true) {
      const bool stopping = StopRequested();
      const int stop = StopDescriptor();
      std::array<pollfd, 2> polled{{{fd_, POLLOUT, 0}, {stopping ? -1 : stop, POLLIN, 0}}};
      const int patience = waited_in_vain ? 0 : kPatienceWhenStopped;
      const int limit = stopping ? patience : stop < 0 ? kLook : -1;
      const int ready = poll(polled.data(), polled.size(), limit);
      if (polled[0].revents != 0) return true;
      if (ready == 0 && stopping) return false;
    }
  }

  const int fd_;
  Kind kind_ = Kind::kUnknown;
  bool given_up_ = false;
  int failure_ = 0;
  std::size_t size_ = 0;
  std::array<char, 1 << 16> buffer_{};
};

// The two may be one pipe: what fits for one of them is gone for the other.
std::mutex mutex;
Stream out(STDOUT_FILENO);
Stream errors(STDERR_FILENO);

}  // namespace

void Print(std::string_view text) noexcept {
  const std::lock_guard<std::mutex> lock(mutex);
  out.Add(text);
  if (out.IsTerminal()) out.Flush();
}

void PrintError(std::string_view command, std::string_view message) noexcept {
  const std::string line = fmt::format("kvwire{}{}: {}\n", command.empty() ? "" : " ", command, EscapeText(message));
  const std::lock_guard<std::mutex> lock(mutex);
  errors.Add(line);
  errors.Flush();
}

void HandOnStdout() noexcept {
  const std::lock_guard<std::mutex> lock(mutex);
  out.Flush();
}

Status FlushStdout() {
  const std::lock_guard<std::mutex> lock(mutex);
  out.Flush();
  // What others wrote to the stream.
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) out.Remember(errno);
  if (out.failure() == 0) return {};
  return MakeError(ErrorCode::kUnavailable,
                   fmt::format("cannot write to the standard output: {}",
                               out.given_up() ? "nobody reads it" : std::strerror(out.failure())));
}

void KeepStandardStreams() noexcept {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free number is taken, which is this one. Opened the wrong way round, so that its use fails.
    open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace kvwire::engine
