// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/rank_group.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kv_events/escape_text.h"

namespace kvwire {

namespace {

// Over inproc nobody is seen to come or go.
bool Present(const StreamFigures& stream, RankPresence presence) {
  const bool seen = stream.address.endpoint.scheme != Endpoint::Scheme::kInproc;
  return presence == RankPresence::kNow && seen ? stream.connected : stream.reached;
}

struct Ranks {
  std::int64_t dp_size = 0;
  std::set<std::int64_t> named;
  std::set<std::int64_t> present;
};

}  // namespace

StreamAddress AsRank(StreamAddress address, std::int64_t rank) {
  address.instance = address.name;
  address.name = fmt::format("{}#{}", address.instance, rank);
  address.rank = rank;
  return address;
}

Result<std::vector<StreamAddress>> AddressesOfRanks(const StreamAddress& rank0, std::int64_t dp_size) {
  std::vector<StreamAddress> addresses;
  for (std::int64_t rank = 0; rank < dp_size; ++rank) {
    Result<RankEndpoints> endpoints = EndpointsForRank({rank0.endpoint, rank0.replay_endpoint}, rank, dp_size);
    if (!endpoints) return tl::unexpected<Error>(endpoints.error());
    StreamAddress address = AsRank(rank0, rank);
    address.endpoint = std::move(endpoints->publish);
    address.replay_endpoint = std::move(endpoints->replay);
    address.dp_size = dp_size;
    addresses.push_back(std::move(address));
  }
  return addresses;
}

std::string OtherRank(const StreamAddress& address, const std::optional<std::int64_t>& named) {
  if (!address.rank || !named || *named == *address.rank) return {};
  return fmt::format("its batches name rank {}, and its address is that of rank {}", *named, *address.rank);
}

std::optional<std::string> RankNotes::Look(const StreamAddress& address, const std::optional<std::int64_t>& named) {
  if (!address.rank || !named || *named == *address.rank) return std::nullopt;
  if (said_.size() == kMost || std::ranges::find(said_, *named) != said_.end()) return std::nullopt;
  said_.push_back(*named);
  return OtherRank(address, named) + ": ports and ranks are mixed up";
}

std::string RankGroup::Why() const {
  if (missing.empty()) return {};
  return fmt::format("rank{} {} missing", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
}

std::string RankGroup::ToString() const {
  if (complete()) return fmt::format("{}: all {} ranks are there", EscapeText(instance), ranks.size());
  const std::size_t there = ranks.size() - missing.size();
  return fmt::format("{}: incomplete, {} ({} of {} are there)", EscapeText(instance), Why(), there, ranks.size());
}

std::vector<RankGroup> RankGroupsOf(std::span<const StreamFigures> streams, RankPresence presence) {
  std::map<std::string, Ranks> instances;
  for (const StreamFigures& stream : streams) {
    const StreamAddress& address = stream.address;
    if (address.instance.empty() || !address.rank) continue;
    Ranks& ranks = instances[address.instance];
    ranks.dp_size = std::max(ranks.dp_size, address.dp_size);
    ranks.named.insert(*address.rank);
    if (Present(stream, presence)) ranks.present.insert(*address.rank);
  }
  std::vector<RankGroup> groups;
  for (auto& [instance, ranks] : instances) {
    for (std::int64_t rank = 0; rank < ranks.dp_size; ++rank) ranks.named.insert(rank);
    RankGroup group{instance, {ranks.named.begin(), ranks.named.end()}, {}};
    std::ranges::set_difference(ranks.named, ranks.present, std::back_inserter(group.missing));
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace kvwire
