// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv_events/error.h"
#include "kv_events/subscribe/stream_figures.h"

namespace kvwire {

// Data-parallel ranks that an instance can have here.
inline constexpr std::int64_t kMaxDpSize = 1024;

// `address` as that of rank `rank` of the instance called as it is: the name becomes "NAME#RANK".
StreamAddress AsRank(StreamAddress address, std::int64_t rank);

// "its batches name rank 3, and its address is that of rank 2"; empty when they do not name another one.
std::string OtherRank(const StreamAddress& address, const std::optional<std::int64_t>& named);

// Says that a stream's batches name another rank, once for each such rank.
// Threads: one thread at a time. Bounds: kMost ranks.
class RankNotes {
 public:
  static constexpr std::size_t kMost = 16;

  // The line to be said now, without the stream's name.
  std::optional<std::string> Look(const StreamAddress& address, const std::optional<std::int64_t>& named);

 private:
  std::vector<std::int64_t> said_;
};

// The streams of all ranks of an instance, from the addresses of its rank 0 and by the producer's rule: port + rank,
// of ipc "_dp<rank>". Errors: name endpoint or replay_endpoint, its value and what is allowed.
// REQUIRES: dp_size is 1 to kMaxDpSize.
Result<std::vector<StreamAddress>> AddressesOfRanks(const StreamAddress& rank0, std::int64_t dp_size);

// An instance of several ranks, as far as its ranks are there. A missing rank looks like an empty cache, so whoever
// believes the others must know of it. A value.
struct RankGroup {
  std::string instance;
  std::vector<std::int64_t> ranks;  // that there should be; ascending, as the next
  std::vector<std::int64_t> missing;

  bool complete() const noexcept { return missing.empty(); }
  // "rank 2 missing", "ranks 1, 3 missing"; empty if none is.
  std::string Why() const;
  // "tcp://10.0.0.5:5557: incomplete, rank 2 missing (3 of 4 are there)"; the instance's text escaped.
  std::string ToString() const;

  friend bool operator==(const RankGroup&, const RankGroup&) = default;
};

enum class RankPresence : std::uint8_t {
  kNow,   // a rank is missing when nobody is connected
  kEver,  // ... when nobody ever was, and nothing came
};

// The instances that streams say they are ranks of, in the order of their names. There should be as many ranks as any
// of their addresses says, and those that they name.
std::vector<RankGroup> RankGroupsOf(std::span<const StreamFigures> streams, RankPresence presence);

}  // namespace kvwire
