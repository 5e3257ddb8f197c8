// SPDX-License-Identifier: Apache-2.0
#include "kv_events/transport/host_lookup.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

namespace kvwire {
namespace {

template <class Poll>
auto Await(Poll poll) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  auto answer = poll();
  while (!answer && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
    answer = poll();
  }
  return answer;
}

Endpoint At(const std::string& text) { return *Endpoint::Parse(text, "endpoint"); }

TEST_CASE("I5: a name server that never answers keeps nobody") {
  std::atomic<bool> over{false};
  std::atomic<int> inside{0};
  const HostResolver mute = [&](const std::string&) -> Result<HostAddresses> {
    ++inside;
    while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --inside;
    return HostAddresses{"127.0.0.1"};
  };
  {
    HostLookup lookup("quiet.example", mute);
    CHECK_FALSE(lookup.Poll().has_value());
    CHECK(Await([&] { return std::optional<bool>(inside == 1 ? std::optional(true) : std::nullopt); }).has_value());
    CHECK_FALSE(lookup.Poll().has_value());
    // Others are answered meanwhile.
    HostLookup other("other.example", [](const std::string&) { return HostAddresses{"10.0.0.1"}; });
    const auto answer = Await([&] { return other.Poll(); });
    REQUIRE(answer.has_value());
    CHECK(**answer == HostAddresses{"10.0.0.1"});
  }
  // The lookup is gone, its thread is not.
  CHECK(inside == 1);
  over = true;
  CHECK(Await([&] { return std::optional<bool>(inside == 0 ? std::optional(true) : std::nullopt); }).has_value());
}

TEST_CASE("an answer comes once, and the next call asks anew") {
  std::atomic<int> asked{0};
  HostLookup lookup("name", [&asked](const std::string& host) -> Result<HostAddresses> {
    CHECK(host == "name");
    if (++asked == 2) return MakeError(ErrorCode::kUnavailable, "name: cannot be resolved: no");
    if (asked == 3) throw std::runtime_error("broken");
    return HostAddresses{"10.0.0." + std::to_string(asked)};
  });
  CHECK(Await([&] { return lookup.Poll(); })->value() == HostAddresses{"10.0.0.1"});
  CHECK(Await([&] { return lookup.Poll(); })->error().message == "name: cannot be resolved: no");
  CHECK(Await([&] { return lookup.Poll(); })->error().message == "name: broken");
  CHECK(Await([&] { return lookup.Poll(); })->value() == HostAddresses{"10.0.0.4"});
}

TEST_CASE("many names wait for their turn, and all are answered") {
  std::vector<std::unique_ptr<HostLookup>> lookups;
  for (int i = 0; i < 200; ++i) {
    lookups.push_back(std::make_unique<HostLookup>("name" + std::to_string(i),
                                                   [](const std::string& host) { return HostAddresses{host}; }));
    lookups.back()->Poll();
  }
  for (int i = 0; i < 200; ++i) {
    const auto answer = Await([&] { return lookups[i]->Poll(); });
    REQUIRE(answer.has_value());
    CHECK(**answer == HostAddresses{"name" + std::to_string(i)});
  }
}

TEST_CASE("an endpoint by name is where its name says each time, with brackets around IPv6") {
  HostAddresses found{"10.0.0.1", "::1"};
  EndpointLookup lookup(At("tcp://engine:5557"), [&found](const std::string&) -> Result<HostAddresses> {
    if (found.empty()) return MakeError(ErrorCode::kUnavailable, "engine: cannot be resolved: no");
    return found;
  });
  CHECK(lookup.by_name());
  CHECK(Await([&] { return lookup.Poll(); }) == At("tcp://10.0.0.1:5557"));
  found = {"::1"};
  CHECK(Await([&] { return lookup.Poll(); }) == At("tcp://[::1]:5557"));
  CHECK(lookup.failure().empty());
  found.clear();
  CHECK(Await([&]() -> std::optional<bool> {
          lookup.Poll();
          return lookup.failure().empty() ? std::nullopt : std::optional(true);
        }).has_value());
  CHECK(lookup.failure() == "engine: cannot be resolved: no");
}

TEST_CASE("an endpoint that needs no look-up is itself at once") {
  for (const char* const text : {"tcp://10.0.0.1:5557", "tcp://[::1]:5557", "ipc:///run/kv", "inproc://kv"}) {
    CAPTURE(text);
    EndpointLookup lookup(At(text));
    CHECK_FALSE(lookup.by_name());
    CHECK(lookup.Poll() == At(text));
  }
}

TEST_CASE("the system's answer for this machine is an address") {
  HostLookup first("localhost");
  HostLookup second("localhost");
  first.Poll();
  for (HostLookup* const lookup : {&first, &second}) {
    const auto answer = Await([lookup] { return lookup->Poll(); });
    REQUIRE(answer.has_value());
    REQUIRE(answer->has_value());
    CHECK(IsHostAddress((*answer)->front()));
  }
  CHECK_FALSE(ResolveHost("no.such.host.invalid").has_value());
}

}  // namespace
}  // namespace kvwire
