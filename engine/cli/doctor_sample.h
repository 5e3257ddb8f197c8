// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "kv_events/wire/decoder.h"
#include "kv_events/wire/frames.h"

namespace kvwire::engine {

// What messages of a stream look like, for `kvwire doctor`.
// Threads: one at a time. Bounds: kMost different ones of everything that the stream names.
class DoctorSample {
 public:
  // A well-formed message; live or replayed.
  void Add(std::string_view topic, SequenceNumber number, FrameView payload);
  // A replayed message that names no topic.
  void AddWithoutTopic(SequenceNumber number, FrameView payload);

  std::size_t messages() const noexcept { return messages_; }
  std::size_t events() const noexcept { return map_events_ + array_events_; }
  const std::set<std::string>& topics() const noexcept { return topics_; }
  const std::set<std::int64_t>& ranks() const noexcept { return ranks_; }
  const std::set<std::uint32_t>& block_sizes() const noexcept { return block_sizes_; }
  std::size_t without_rank() const noexcept { return without_rank_; }
  // "array batches of map events; hashes of 64 bits; GPU, CPU"; empty before the first event.
  std::string Format() const;
  // The first thing that could not be read; empty if nothing.
  const std::string& problem() const noexcept { return problem_; }

 private:
  static constexpr std::size_t kMost = 16;

  void Note(const DecodedBatch& decoded);
  std::string_view Dialect() const;

  std::size_t messages_ = 0;
  std::size_t map_batches_ = 0;
  std::size_t array_batches_ = 0;
  std::size_t map_events_ = 0;
  std::size_t array_events_ = 0;
  std::size_t without_rank_ = 0;
  std::set<std::string> topics_;
  std::set<std::int64_t> ranks_;
  std::set<std::uint32_t> block_sizes_;
  std::set<std::uint32_t> groups_;
  std::set<std::size_t> hash_bytes_;
  std::set<std::string> media_;
  std::string problem_;
};

}  // namespace kvwire::engine
