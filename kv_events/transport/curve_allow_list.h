// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include <sys/stat.h>

#include "kv_events/error.h"
#include "kv_events/log.h"

namespace kvwire {

// Who may connect to sockets that are closed with CURVE.
// Threads: Admit by one thread, the rest by any.
class CurveClients {
 public:
  virtual ~CurveClients() = default;

  // Whether a client that has proved to own this public key (Z85) may come. `address` is the network's.
  virtual bool Admit(std::string_view public_key, std::string_view address) = 0;

  std::uint64_t admitted() const noexcept { return admitted_.load(std::memory_order_relaxed); }
  std::uint64_t denied() const noexcept { return denied_.load(std::memory_order_relaxed); }

 protected:
  // Counts what it is given, and returns it.
  bool Counted(bool admit) noexcept;

 private:
  std::atomic<std::uint64_t> admitted_{0};
  std::atomic<std::uint64_t> denied_{0};
};

// Anybody who knows the server's public key.
class AnyCurveClient final : public CurveClients {
 public:
  bool Admit(std::string_view public_key, std::string_view address) override;
};

// The keys of a file: one public key a line, words behind it are a name; empty lines, and lines that begin with "# "
// or hold "#" alone, are comments. The file is looked at for every client that comes: who was added may come, who was
// taken out stays only while his connection lasts. A file that cannot be read, or has a bad line, changes nothing, and
// is told of once. Errors: Open names the setting, the file, the line and what is allowed. Bounds: 1 MiB. The first 64
// keys that are denied are logged, each once.
class CurveAllowList final : public CurveClients {
 public:
  static Result<std::shared_ptr<CurveAllowList>> Open(const std::string& path, std::string_view setting, LogSink log);

  bool Admit(std::string_view public_key, std::string_view address) override;

 private:
  // What tells one version of a file from the next.
  struct Version {
    dev_t device = 0;
    ino_t number = 0;
    off_t size = 0;
    std::int64_t modified = 0;  // nanoseconds
    friend bool operator==(const Version&, const Version&) = default;
  };

  CurveAllowList(std::string path, std::string setting, LogSink log);
  static Version VersionOf(const std::string& path) noexcept;
  Status Read();
  void Refresh();

  const std::string path_;
  const std::string setting_;
  const LogSink log_;
  Version version_;
  std::set<std::string, std::less<>> keys_;
  std::set<std::string, std::less<>> told_;  // denied keys that were logged
};

}  // namespace kvwire
