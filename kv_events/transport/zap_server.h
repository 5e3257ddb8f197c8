// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kv_events/error.h"
#include "kv_events/transport/curve_allow_list.h"

namespace kvwire {

// Answers libzmq's questions who may connect, for all sockets of one context, on a thread of its own. Without it CURVE
// admits everybody who knows the server's public key.
//
// Threads: any. REQUIRES: destroyed before the context ends, and not in a forked child.
// Errors: Start: kUnavailable when the context has no socket left, kAddressInUse when it has another server of this
//   kind.
// Source: https://rfc.zeromq.org/spec/27 (ZAP).
class ZapServer {
 public:
  static Result<std::unique_ptr<ZapServer>> Start(void* context);
  ~ZapServer();
  ZapServer(const ZapServer&) = delete;
  ZapServer& operator=(const ZapServer&) = delete;

  // Sockets of the domain, which nobody else has, are for these clients.
  std::string Add(std::shared_ptr<CurveClients> clients);
  void Remove(const std::string& domain);

 private:
  ZapServer(void* handler, int stop) : handler_(handler), stop_(stop) {}

  void Run();
  void Answer();
  bool Admits(const std::vector<std::string>& question);

  void* const handler_;
  const int stop_;    // an eventfd
  std::mutex mutex_;  // guards the next two
  std::map<std::string, std::shared_ptr<CurveClients>, std::less<>> domains_;
  std::uint64_t next_ = 0;
  std::thread thread_;
};

}  // namespace kvwire
