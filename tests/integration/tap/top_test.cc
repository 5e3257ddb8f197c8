// SPDX-License-Identifier: Apache-2.0
// kvwire top as a process: on a terminal, and without one.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/integration/tap/live_source.h"
#include "tests/support/child_process.h"

namespace kvwire::test {
namespace {

bool Has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::string EndpointPair(const Source& source) { return source.info().endpoint + "," + *source.info().replay_endpoint; }

// A program on a terminal of its own. Killed if it still runs at the end.
class TerminalProcess {
 public:
  TerminalProcess(std::vector<std::string> words, winsize size) {
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      setenv("TERM", "xterm", 1);
      execv(argv[0], argv.data());
      _exit(127);
    }
    REQUIRE(pid_ > 0);
  }
  ~TerminalProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(terminal_);
  }
  TerminalProcess(const TerminalProcess&) = delete;
  TerminalProcess& operator=(const TerminalProcess&) = delete;

  // What is to be seen from now on.
  void Forget() { seen_.clear(); }
  bool WaitFor(std::string_view text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!Has(seen_, text)) {
      if (std::chrono::steady_clock::now() > end || !Read()) return Has(seen_, text);
    }
    return true;
  }
  void Press(char key) const { REQUIRE(write(terminal_, &key, 1) == 1); }
  void Resize(winsize size) const { REQUIRE(ioctl(terminal_, TIOCSWINSZ, &size) == 0); }

  // Reads to the end; the exit code, -1 if a signal ended it.
  int Wait() {
    while (Read()) {
    }
    int status = 0;
    REQUIRE(waitpid(pid_, &status, 0) == pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  const std::string& seen() const { return seen_; }

 private:
  // False at the end, and after ten seconds of silence.
  bool Read() {
    pollfd polled{terminal_, POLLIN, 0};
    if (poll(&polled, 1, 10'000) <= 0) return false;
    char buffer[4096];
    const ssize_t got = read(terminal_, buffer, sizeof(buffer));
    if (got <= 0) return false;
    seen_.append(buffer, static_cast<std::size_t>(got));
    return true;
  }

  int terminal_ = -1;
  pid_t pid_ = -1;
  std::string seen_;
};

TEST_CASE("top --once prints a row a stream, the worst first, and is 0 only when all are well") {
  Source well;
  Source violated;
  well.PublishChain(1, 5);
  violated.PublishChain(1, 3);
  violated.Publish(RemoveBatch(77));
  ChildProcess good(KVWIRE_BINARY, {"top", "--once", "--wait", "20", "--endpoint", EndpointPair(well)});
  CHECK(good.Wait() == 0);
  CAPTURE(good.output());
  CHECK(Has(good.output(), "1 stream, 1 synced\nSTREAM "));
  const std::string name = well.info().endpoint.substr(6);
  CHECK(Has(good.output(), fmt::format("\n{} synced         5 ", name)));
  CHECK(Has(good.output(), "clean"));

  ChildProcess both(KVWIRE_BINARY, {"top", "--once", "--wait", "5", "--endpoint", EndpointPair(well), "--endpoint",
                                    EndpointPair(violated)});
  CHECK(both.Wait() == 1);
  CAPTURE(both.output());
  const std::size_t first = both.output().find(violated.info().endpoint.substr(6));
  REQUIRE(first != std::string::npos);
  CHECK(first < both.output().find(name));
  CHECK(Has(both.output(), " violated\n"));
}

TEST_CASE("top --json prints an object a refresh, until it is stopped") {
  Source source;
  source.PublishChain(1, 5);
  ChildProcess top(KVWIRE_BINARY, {"top", "--json", "--interval", "0.05", "--endpoint", EndpointPair(source)});
  REQUIRE(top.WaitFor("\"state\":\"synchronised\""));
  REQUIRE(top.WaitFor("\"blocks\":[{\"group\":0,\"medium\":\"GPU\",\"blocks\":5}]"));
  source.PublishChain(100, 2);
  REQUIRE(top.WaitFor("\"next\":7,"));
  top.Signal(SIGTERM);
  CHECK(top.Wait() == 0);
  CHECK(top.output().starts_with("{\"time\":"));
  CHECK(top.output().ends_with("]}\n"));
}

TEST_CASE("top without a terminal prints plain lines, and nothing that moves a cursor") {
  Source source;
  source.PublishChain(1, 5);
  ChildProcess top(KVWIRE_BINARY, {"top", "--interval", "0.05", "--endpoint", EndpointPair(source)});
  REQUIRE(top.WaitFor(" synced "));
  top.Signal(SIGINT);
  CHECK(top.Wait() == 0);
  CHECK_FALSE(Has(top.output(), "\x1b"));
}

TEST_CASE("top on a terminal of 80 columns: no line is longer, Ctrl-C ends it, and the terminal is as it was") {
  Source source;
  source.PublishChain(1, 5);
  TerminalProcess top({KVWIRE_BINARY, "top", "--interval", "0.05", "--endpoint", EndpointPair(source), "--endpoint",
                       "tcp://a-host-with-a-name-that-is-long.cluster.local:5557"},
                      {24, 80, 0, 0});
  REQUIRE(top.WaitFor("2 streams"));
  REQUIRE(top.WaitFor(" synced "));
  CHECK(top.seen().starts_with("\x1b[?1049h\x1b[?25l"));
  std::size_t length = 0;
  std::size_t longest = 0;
  for (const std::string_view rest = top.seen(); const char c : rest) {
    // Each line ends with a sequence; what is before it is the line.
    if (c == '\x1b') longest = std::max(longest, length);
    length = c == '\n' || c == '\x1b' ? 0 : length + 1;
  }
  CHECK(longest <= 80);
  CHECK(longest > 40);

  top.Resize({10, 120, 0, 0});
  REQUIRE(top.WaitFor("a-host-with-a-name-that-is-long.cluster.local:5557 connect"));
  top.Forget();
  top.Press('\x03');
  CHECK(top.Wait() == 0);
  CAPTURE(top.seen());
  CHECK(Has(top.seen(), "\x1b[?25h\x1b[?1049l"));
  // What was seen last stays behind.
  CHECK(Has(top.seen().substr(top.seen().find("\x1b[?1049l")), "2 streams"));
}

TEST_CASE("top refuses what it does not know") {
  CHECK(ChildProcess(KVWIRE_BINARY, {"top", "--once", "--endpoint", "nonsense"}).Wait() == 4);
  CHECK(ChildProcess(KVWIRE_BINARY, {"top", "--once", "--endpoints-file", "/nowhere"}).Wait() == 4);
  CHECK(ChildProcess(KVWIRE_BINARY, {"top", "--interval", "x"}).Wait() == 105);
  CHECK(ChildProcess(KVWIRE_BINARY, {"top", "--sideways"}).Wait() == 109);
}

}  // namespace
}  // namespace kvwire::test
