// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "kv_events/error.h"
#include "scheduler/scheduler.h"

namespace kvwire::engine {

// What a request has produced since it was last looked at.
struct OutputChunk {
  std::vector<TokenId> tokens;
  // At most one of these, with the last chunk: how the request ended.
  std::optional<scheduler::FinishedRequest> finished;
  std::optional<Error> refused;
  // With the first token: how many of the prompt's were in the cache when the request was first admitted.
  std::optional<std::uint32_t> cached_tokens = std::nullopt;

  bool last() const noexcept { return finished || refused; }
  bool empty() const noexcept { return tokens.empty() && !last(); }
};

// The way of one request's tokens from the egress thread to whoever waits for them.
//
// Threads: Push by one thread, Take by another.
// Bounds: a token waits as 4 bytes; the request's max_tokens bounds their number.
class OutputStream {
 public:
  void Push(OutputChunk chunk);

  // What has come; waits for it, at most this long. Empty when nothing came.
  OutputChunk Take(std::chrono::milliseconds timeout);

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  OutputChunk chunk_;  // guarded by mutex_
};

}  // namespace kvwire::engine
