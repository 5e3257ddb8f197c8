// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

#include "engine/http/kv_transfer_params.h"
#include "engine/serve/kv_transfer_config.h"
#include "engine/serve/task_timer.h"
#include "engine/serve/worker_pool.h"
#include "kv_events/error.h"
#include "kv_events/log.h"
#include "scheduler/scheduler_output.h"

namespace kvwire::engine {

class RankLife;

// A finished request whose blocks are held.
struct HeldRequest {
  std::uint32_t rank = 0;
  scheduler::RequestId id = 0;

  friend bool operator==(const HeldRequest&, const HeldRequest&) = default;
};
// As other engines name it, and back; none if it is not a request of this life. See KVTransferConfig::life.
std::string NameOf(const HeldRequest& held, std::string_view life);
std::optional<HeldRequest> ParseHeldRequest(std::string_view name, std::string_view life);

// Words of the KV memory as they travel: 8 bytes each, the lowest first.
std::string PackWords(std::span<const std::uint64_t> words);
// REQUIRES: the size is a multiple of 8.
std::vector<std::uint64_t> UnpackWords(std::string_view bytes);

// The path of the fetch; docs/serve.md has its bodies.
inline constexpr const char* kTransferPath = "/kv/transfer/blocks";

// The transfers of an engine's ranks: fetches what is received over HTTP and hands it to the step thread, and gives
// back what was held too long. A fetch ends the other engine's hold, also one of nothing.
//
// Threads: any, but Stop and the destructor: the owner. Ownership: what `call` needs outlives Stop.
// Errors: a transfer that fails ends the reception as failed, and is counted by the scheduler; the first one after a
//   good one is a warning.
// Bounds: 256 fetches at a time, 4096 more wait. One may take kFetchTime from the end of its model time on, waiting
//   included; its reply must have exactly the bytes that the reception has room for. Holds end on a thread of their
//   own.
class KVTransfer {
 public:
  // Runs a function on the step thread of a rank's present life and waits for it; false if it could not run.
  using Call = std::function<bool(std::uint32_t rank, const std::function<void(RankLife&)>& function)>;

  KVTransfer(KVTransferConfig config, Call call, LogSink log);
  ~KVTransfer() { Stop(); }
  KVTransfer(const KVTransfer&) = delete;
  KVTransfer& operator=(const KVTransfer&) = delete;

  // A reception of a rank began.
  void Begin(std::uint32_t rank, scheduler::Reception reception, KVTransferParams source);
  // Nothing will be received of what another engine holds.
  void Release(KVTransferParams source);
  // A finished request of this engine holds blocks.
  void Hold(const HeldRequest& held);

  const KVTransferConfig& config() const noexcept { return config_; }

  // Gives up what is under way. Idempotent.
  void Stop();

 private:
  struct Arriving;

  [[nodiscard]] bool Start(std::function<void()> fetch);
  void Fetch(const std::shared_ptr<Arriving>& arriving);
  void End(const std::shared_ptr<Arriving>& arriving, const tl::expected<std::string, std::string>& bytes);
  void Deliver(const std::shared_ptr<Arriving>& arriving);
  tl::expected<std::string, std::string> Ask(const KVTransferParams& source,
                                             const std::vector<std::vector<scheduler::BlockId>>& blocks,
                                             std::size_t reply_bytes, std::chrono::milliseconds time) const;
  void NoteOutcome(const KVTransferParams& source, const std::string* failure);

  const KVTransferConfig config_;
  const Call call_;
  const LogSink log_;
  std::atomic<bool> failing_{false};
  std::atomic<bool> stopped_{false};
  TaskTimer timer_;
  WorkerPool fetches_;
};

}  // namespace kvwire::engine
