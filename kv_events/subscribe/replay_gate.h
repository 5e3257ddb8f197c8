// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>

namespace kvwire {

// Bounds how many streams ask for old messages or a snapshot at the same time, so that a router that starts does not
// ask all its publishers at once. First come, first served.
//
// Threads: any, of the gate and of different places.
// Bounds: a place that was admitted and is not used holds its share until it leaves.
class ReplayGate {
 public:
  static constexpr std::size_t kDefaultCapacity = 8;

  // One stream's turn. Leaves when it is destroyed.
  // Threads: one thread at a time.
  class Place {
   public:
    // Without a gate it is always admitted.
    explicit Place(std::shared_ptr<ReplayGate> gate) noexcept : gate_(std::move(gate)) {}
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() { Leave(); }

    // Whether it is this place's turn; the first call queues. Stays true until Leave.
    bool Enter();
    void Leave() noexcept;

   private:
    friend class ReplayGate;
    enum class Standing : unsigned char { kOutside, kQueued, kInside };

    const std::shared_ptr<ReplayGate> gate_;
    Standing standing_ = Standing::kOutside;  // guarded by the gate
    bool used_ = false;                       // Enter was called since the last Leave
  };

  // REQUIRES: capacity > 0.
  explicit ReplayGate(std::size_t capacity = kDefaultCapacity) : capacity_(capacity) {}

  // The process's gate.
  static const std::shared_ptr<ReplayGate>& Shared();

  std::size_t inside() const;
  std::size_t queued() const;

 private:
  void Admit();  // REQUIRES: mutex_ is held

  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::size_t inside_ = 0;
  std::deque<Place*> queue_;
};

}  // namespace kvwire
