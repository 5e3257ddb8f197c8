// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "kv_events/error.h"
#include "kv_events/fork_guard.h"
#include "kv_events/transport/zap_server.h"

namespace kvwire {

// A ZeroMQ context, shared by everything in the process that must reach each other over inproc. Destroying the last
// reference terminates it; every link holds one.
// Threads: may be shared between threads. A forked child leaves its parent's alone, and has a shared one of its own.
// Bounds: 16,384 sockets, a link takes one, and two more when it watches its peers.
class ZmqContext {
 public:
  static std::shared_ptr<ZmqContext> Create();

  // The process-wide context, made on first use.
  static std::shared_ptr<ZmqContext> Shared();

  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;
  ~ZmqContext();

  void* handle() const noexcept { return handle_; }

  // Who answers which clients may connect; made on first use. It lives as long as the context.
  Result<ZapServer*> Doorkeeper();

  // Whether it is the parent's of this process.
  bool forked() const noexcept { return fork_.forked(); }

  // Whether its threads run: the first socket starts them. Set by whoever opens one.
  bool running() const noexcept { return running_.load(std::memory_order_relaxed); }
  void SetRunning() noexcept { running_.store(true, std::memory_order_relaxed); }

 private:
  explicit ZmqContext(void* handle) : handle_(handle) {}

  void* const handle_;
  const ForkGuard fork_;
  std::atomic<bool> running_{false};
  std::mutex mutex_;  // guards the next
  std::unique_ptr<ZapServer> doorkeeper_;
};

}  // namespace kvwire
