// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/output_stream.h"

#include <utility>

namespace kvwire::engine {

void OutputStream::Push(OutputChunk chunk) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    chunk_.tokens.insert(chunk_.tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
    if (chunk.finished) chunk_.finished = std::move(chunk.finished);
    if (chunk.refused) chunk_.refused = std::move(chunk.refused);
    if (chunk.cached_tokens) chunk_.cached_tokens = chunk.cached_tokens;
  }
  came_.notify_one();
}

OutputChunk OutputStream::Take(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  came_.wait_for(lock, timeout, [this] { return !chunk_.empty(); });
  return std::exchange(chunk_, {});
}

}  // namespace kvwire::engine
