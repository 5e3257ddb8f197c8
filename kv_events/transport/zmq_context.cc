// SPDX-License-Identifier: Apache-2.0
#include "kv_events/transport/zmq_context.h"

#include <cerrno>
#include <mutex>

#include <zmq.h>

namespace kvwire {

// Before it a client could write over the memory of a CURVE server (CVE-2019-13132).
static_assert(ZMQ_VERSION >= ZMQ_MAKE_VERSION(4, 3, 2), "libzmq is too old");

namespace {

// A publisher takes six, its monitors included; the default of 1023 would end at 170 ranks. A context takes 12 bytes
// for each.
constexpr int kMaxSockets = 16'384;

struct SharedContext {
  const ForkGuard fork;
  std::mutex mutex;
  std::weak_ptr<ZmqContext> context;
};

// A forked child makes a new one: the parent's mutex may be locked there for ever.
SharedContext& OfThisProcess() {
  static std::atomic<SharedContext*> present{new SharedContext};
  SharedContext* shared = present.load(std::memory_order_acquire);
  if (!shared->fork.forked()) return *shared;
  auto own = std::make_unique<SharedContext>();
  if (!present.compare_exchange_strong(shared, own.get(), std::memory_order_acq_rel)) return *shared;
  return *own.release();
}

}  // namespace

std::shared_ptr<ZmqContext> ZmqContext::Create() {
  void* const handle = zmq_ctx_new();
  if (handle != nullptr) zmq_ctx_set(handle, ZMQ_MAX_SOCKETS, kMaxSockets);
  return std::shared_ptr<ZmqContext>(new ZmqContext(handle));
}

std::shared_ptr<ZmqContext> ZmqContext::Shared() {
  // Held weakly: the last link takes the context with it, and so waits, within its linger, until what it sent is gone.
  // A context kept for good would either lose that at exit or block there for ever.
  SharedContext& shared = OfThisProcess();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  std::shared_ptr<ZmqContext> context = shared.context.lock();
  if (!context) {
    context = Create();
    shared.context = context;
  }
  return context;
}

Result<ZapServer*> ZmqContext::Doorkeeper() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!doorkeeper_) {
    Result<std::unique_ptr<ZapServer>> started = ZapServer::Start(handle_);
    if (!started) return tl::unexpected(started.error());
    doorkeeper_ = *std::move(started);
  }
  return doorkeeper_.get();
}

ZmqContext::~ZmqContext() {
  if (forked()) {
    static_cast<void>(doorkeeper_.release());  // its thread and its socket are the parent's
    return;
  }
  doorkeeper_.reset();
  // A signal may interrupt the wait.
  while (handle_ != nullptr && zmq_ctx_term(handle_) != 0 && errno == EINTR) {
  }
}

}  // namespace kvwire
