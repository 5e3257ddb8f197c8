// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvwire::engine {

// How a request of the engine ended, as its client sees it.
enum class FinishedCount : std::uint8_t { kStop, kLength, kAbort, kError };
inline constexpr std::array<const char*, 4> kFinishedNames{"stop", "length", "abort", "error"};

// Why the HTTP surface refused a request of the engine that might have been answered at another time.
enum class RefusalCount : std::uint8_t {
  kQueueFull,  // status 429
  kStopping,   // 503: the engine stops or restarts, or did before the request was answered
  kTokenizer,  // 503: the tokenize service does not answer
};
inline constexpr std::array<const char*, 3> kRefusalNames{"queue_full", "stopping", "tokenizer"};

// What the HTTP surface counts itself, by rank. Threads: any.
class ServerCounters {
 public:
  explicit ServerCounters(std::uint32_t num_ranks) : finished_(num_ranks), refused_(num_ranks) {}

  // REQUIRES: rank < num_ranks, here and below.
  void CountFinished(std::uint32_t rank, FinishedCount how) noexcept {
    finished_[rank][static_cast<std::size_t>(how)].fetch_add(1, std::memory_order_relaxed);
  }
  std::uint64_t finished(std::uint32_t rank, std::size_t how) const noexcept {
    return finished_[rank][how].load(std::memory_order_relaxed);
  }

  void CountRefused(std::uint32_t rank, RefusalCount why, std::uint64_t requests) noexcept {
    refused_[rank][static_cast<std::size_t>(why)].fetch_add(requests, std::memory_order_relaxed);
  }
  std::uint64_t refused(std::uint32_t rank, std::size_t why) const noexcept {
    return refused_[rank][why].load(std::memory_order_relaxed);
  }

 private:
  std::vector<std::array<std::atomic<std::uint64_t>, kFinishedNames.size()>> finished_;
  std::vector<std::array<std::atomic<std::uint64_t>, kRefusalNames.size()>> refused_;
};

}  // namespace kvwire::engine
