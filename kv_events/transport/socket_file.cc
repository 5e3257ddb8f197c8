// SPDX-License-Identifier: Apache-2.0
#include "kv_events/transport/socket_file.h"

#include <sys/stat.h>
#include <unistd.h>

namespace kvwire {

namespace {

// "@" starts a name without a file, "*" a path that libzmq makes up.
bool HasFile(const std::string& path) noexcept { return !path.starts_with('@') && !path.starts_with('*'); }

}  // namespace

bool SocketFile::IsSomethingElse(const std::string& path) noexcept {
  struct stat found {};
  return HasFile(path) && lstat(path.c_str(), &found) == 0 && !S_ISSOCK(found.st_mode);
}

std::optional<SocketFile> SocketFile::At(const std::string& path) {
  struct stat found {};
  if (!HasFile(path) || lstat(path.c_str(), &found) != 0) return std::nullopt;
  return SocketFile(path, found.st_dev, found.st_ino);
}

void SocketFile::Remove() const noexcept {
  struct stat found {};
  if (lstat(path_.c_str(), &found) != 0 || found.st_dev != device_ || found.st_ino != number_) return;
  unlink(path_.c_str());
}

}  // namespace kvwire
