// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv_events/subscribe/table_salt.h"
#include "kv_events/wire/frames.h"

namespace kvwire {

// What happened to a block, in eight bytes: the message's number, the event's place in it, and the kind.
// Bounds: numbers below 2^42 and places below 2^20 are exact, larger ones saturate.
class BlockMoment {
 public:
  enum class Kind : std::uint8_t { kNone, kStored, kRemoved };

  BlockMoment() = default;
  BlockMoment(SequenceNumber sequence, std::size_t event, Kind kind) noexcept;

  SequenceNumber sequence() const noexcept { return bits_ >> 22; }
  std::size_t event() const noexcept { return bits_ >> 2 & 0xfffff; }
  Kind kind() const noexcept { return static_cast<Kind>(bits_ & 3); }

  // Order in the stream. REQUIRES: both of one publisher's life.
  bool Before(const BlockMoment& other) const noexcept { return bits_ >> 2 < other.bits_ >> 2; }

 private:
  std::uint64_t bits_ = 0;
};

// Every block that a stream ever named, by (group, low 64 bits): whether it was announced, and its last three events.
// Nothing is forgotten before Clear, so that a parent that was removed is still known.
//
// Threads: one thread at a time.
// Bounds: 40 bytes a block, times at most 2.5 (open addressing at a load of 0.4 to 0.8): 336 MB for 6 million blocks, a
// half more while it grows.
class BlockHistory {
 public:
  using Moments = std::array<BlockMoment, 3>;  // the latest first

  BlockHistory();

  void Add(std::uint32_t group, std::uint64_t low64, BlockMoment moment);

  bool WasAnnounced(std::uint32_t group, std::uint64_t low64) const noexcept;
  Moments LastThree(std::uint32_t group, std::uint64_t low64) const noexcept;

  std::size_t size() const noexcept { return size_; }
  void Clear();

 private:
  struct Slot {
    std::uint64_t low64 = 0;
    std::uint32_t group = 0;
    bool used = false;
    bool announced = false;
    Moments moments;
  };
  static_assert(sizeof(BlockMoment) == 8);

  std::size_t Find(std::uint32_t group, std::uint64_t low64) const noexcept;
  void Grow();

  TableSalt salt_ = TableSalt::OfProcess();
  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

}  // namespace kvwire
