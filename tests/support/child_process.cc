// SPDX-License-Identifier: Apache-2.0
#include "tests/support/child_process.h"

#include <chrono>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kvwire::test {

namespace {

using SteadyClock = std::chrono::steady_clock;

}  // namespace

ChildProcess::ChildProcess(const std::string& program, const std::vector<std::string>& arguments) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  out_ = ends[0];
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  if (posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ) != 0) pid_ = -1;
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (out_ >= 0) close(out_);
}

bool ChildProcess::ReadSome(int millis) {
  pollfd polled{out_, POLLIN, 0};
  if (poll(&polled, 1, millis) <= 0) return true;
  char buffer[4096];
  const ssize_t got = read(out_, buffer, sizeof(buffer));
  if (got <= 0) return false;
  output_.append(buffer, static_cast<std::size_t>(got));
  return true;
}

bool ChildProcess::WaitFor(std::string_view text) {
  const auto deadline = SteadyClock::now() + std::chrono::seconds(10);
  bool open = true;
  while (output_.find(text) == std::string::npos) {
    if (!open || SteadyClock::now() > deadline) return false;
    open = ReadSome(100);
  }
  return true;
}

void ChildProcess::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

int ChildProcess::Wait() {
  if (pid_ <= 0) return -1;
  const auto deadline = SteadyClock::now() + std::chrono::seconds(30);
  while (ReadSome(100)) {
    if (SteadyClock::now() > deadline) return -1;
  }
  int status = 0;
  if (waitpid(pid_, &status, 0) != pid_) return -1;
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace kvwire::test
