// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <sys/types.h>

namespace kvwire {

// The file that binding a Unix socket made. A value.
// Threads: one at a time.
// Source: libzmq deletes whatever is at a path before it binds there, and leaves its own file behind.
class SocketFile {
 public:
  // Whether something is at this path that is no socket; a symbolic link is none. False for names without a file.
  static bool IsSomethingElse(const std::string& path) noexcept;

  // What is at the path now. Nothing for names without a file, and for paths that libzmq makes up and removes itself.
  static std::optional<SocketFile> At(const std::string& path);

  // Removes it, unless another file has taken its place. REQUIRES: the socket is still bound, so that nobody else has
  // the file's number.
  void Remove() const noexcept;

 private:
  SocketFile(std::string path, dev_t device, ino_t number) : path_(std::move(path)), device_(device), number_(number) {}

  std::string path_;
  dev_t device_;
  ino_t number_;
};

}  // namespace kvwire
