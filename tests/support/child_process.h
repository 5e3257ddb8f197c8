// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace kvwire::test {

// A program that runs beside the test; its standard output can be read as it comes.
// Threads: one thread. Killed if it still runs at the end.
class ChildProcess {
 public:
  ChildProcess(const std::string& program, const std::vector<std::string>& arguments);
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  // Reads until the output holds `text`; false if it ended before, or did not within ten seconds.
  bool WaitFor(std::string_view text);

  // Reads what is there, waiting for it at most this long; false at the end of the output.
  bool ReadSome(int millis);

  void Signal(int signal) const;

  // Reads to the end and returns the exit code; -1 if it was killed, or did not end within 30 seconds.
  int Wait();

  const std::string& output() const noexcept { return output_; }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  std::string output_;
};

}  // namespace kvwire::test
