// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/publisher_bench.h"

namespace kvwire::test {

// A hundred clients of one replay at once, half of which behave badly.

inline constexpr std::size_t kCrowdClients = 100;
inline constexpr std::size_t kCrowdPayload = 4096;

enum class Manner : std::uint8_t { kReads, kVanishes, kStopsReading };

struct CrowdClient {
  Manner manner = Manner::kReads;
  std::unique_ptr<ZmqLink> dealer;
  std::vector<SequenceNumber> numbers;
  bool whole = false;

  bool done() const { return manner != Manner::kReads || whole; }

  // Some messages, if they are there. However crowded the service is, an end without messages would be a lie.
  void Read(std::size_t wanted) {
    for (int i = 0; i < 16 && !done(); ++i) {
      const std::optional<Replayed> message = ReceiveReplayed(dealer.get());
      if (!message) return;
      if (!message->end) {
        numbers.push_back(message->number);
      } else {
        whole = numbers.size() >= wanted && numbers == Range(0, numbers.back());
        REQUIRE(whole);
      }
    }
  }
};

using Crowd = std::vector<CrowdClient>;

// All have asked for everything; `connect` makes their links.
inline Crowd MakeCrowd(const std::function<std::unique_ptr<ZmqLink>()>& connect) {
  Crowd crowd(kCrowdClients);
  for (std::size_t i = 0; i < kCrowdClients; ++i) {
    crowd[i].manner = i % 2 == 0 ? Manner::kReads : i % 4 == 1 ? Manner::kVanishes : Manner::kStopsReading;
    crowd[i].dealer = connect();
    Ask(crowd[i].dealer.get(), 0);
  }
  return crowd;
}

inline void Vanish(Crowd* crowd, Manner manner) {
  for (CrowdClient& client : *crowd) {
    if (client.manner == manner) client.dealer.reset();
  }
}

inline bool Served(const Crowd& crowd) {
  return std::all_of(crowd.begin(), crowd.end(), [](const CrowdClient& client) { return client.done(); });
}

}  // namespace kvwire::test
