// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace kvwire::test {

// While it lives, the process can open no further descriptor.
// Threads: no other drought at the same time.
class DescriptorDrought {
 public:
  DescriptorDrought() {
    getrlimit(RLIMIT_NOFILE, &before_);
    constexpr rlim_t kFew = 256;
    rlimit low = before_;
    if (low.rlim_cur > kFew) low.rlim_cur = kFew;
    setrlimit(RLIMIT_NOFILE, &low);
    for (int fd = 0; (fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)) >= 0;) taken_.push_back(fd);
  }
  DescriptorDrought(const DescriptorDrought&) = delete;
  DescriptorDrought& operator=(const DescriptorDrought&) = delete;
  ~DescriptorDrought() {
    for (const int fd : taken_) close(fd);
    setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  rlimit before_{};
  std::vector<int> taken_;
};

}  // namespace kvwire::test
